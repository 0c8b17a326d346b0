"""The command ``sdrs``: its verbs, and what happens around each of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from sdrs.cli import failures
from sdrs.cli.automatic import pause, resume
from sdrs.cli.backups import backup
from sdrs.cli.brought_verbs import brought_names, brought_verb
from sdrs.cli.checkpoints import ckpt
from sdrs.cli.completion import completion
from sdrs.cli.disks import disk
from sdrs.cli.doctor import doctor
from sdrs.cli.events import history
from sdrs.cli.groups import failover, group, switchover
from sdrs.cli.metadata import meta
from sdrs.cli.nodes import node
from sdrs.cli.output import emit_json
from sdrs.cli.pools import pool
from sdrs.cli.repairs import repair
from sdrs.cli.scrub import scrub
from sdrs.cli.settings import Settings, Verb, VerbGroup, pass_settings, settings_from_environment
from sdrs.cli.status import status
from sdrs.cli.up import down, up


class Root(VerbGroup):
    """Our own verbs first, then those that other packages bring."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or brought_verb(cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *(name for name in brought_names() if name not in self.commands)]

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run one command and exit: every way out of the program leads through here."""
        settings = settings_from_environment()
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, obj=settings, **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            failures.silence_stdout()
            code = failures.FAILED
        except Exception as error:
            code = failures.report(error, settings)
        sys.exit(code if isinstance(code, int) else 0)


EXAMPLES = """
sdrs up                                  start a cluster on this machine
sdrs status                              how it is
sdrs history                             what happened to it
sdrs ckpt push llm-7b 1000 out/          save a folder as a checkpoint
sdrs ckpt list llm-7b -o json            for programs
sdrs ckpt pull llm-7b restored/          the newest one, verified, back as files
sdrs job submit llm.yaml                 a training that comes back from its checkpoints
"""


def _version_number() -> str:
    from importlib import metadata  # slow to load, and needed only here

    try:
        return metadata.version("sdrs")
    except metadata.PackageNotFoundError:
        return "0+source"  # run from a checkout that was never installed


def _print_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(f"sdrs {_version_number()}")
        context.exit()


@click.group(
    cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, examples=EXAMPLES
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def root() -> None:
    """Keep the state of GPU training jobs alive: clusters, pools, groups and checkpoints.

    Exit codes: 0 done, 1 failed, 2 usage, 3 degraded or partial, 4 refused as unsafe, 5 not allowed, 6 unreachable.
    """


@click.command(cls=Verb, examples="sdrs version\nsdrs version -o json")
@pass_settings
def version(settings: Settings) -> None:
    """Print the version of this command line."""
    if settings.is_json:
        emit_json({"version": _version_number(), "python": sys.version.split()[0]})
    else:
        click.echo(f"sdrs {_version_number()}")


for verb in (
    *(up, down, status, history, doctor),
    *(pool, node, disk, group, ckpt),
    *(switchover, failover, pause, resume, repair, scrub, backup, meta),
    *(completion, version),
):
    root.add_command(verb)
