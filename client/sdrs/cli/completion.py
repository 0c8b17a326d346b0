"""Completion: the script for each shell, and the names that it offers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

from sdrs.cli.connection import open_cluster
from sdrs.cli.settings import Settings, Verb, settings_of

# A shell that waits for Tab must not hang on a cluster that is away.
_PATIENCE_SECONDS = 1.0
_STEPS_OFFERED = 30

Offer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@click.command(
    cls=Verb,
    examples="""
    eval "$(sdrs completion bash)"                       now, in this shell
    sdrs completion bash > ~/.local/share/bash-completion/completions/sdrs
    sdrs completion zsh > "${fpath[1]}/_sdrs"
    sdrs completion fish > ~/.config/fish/completions/sdrs.fish
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    It completes verbs, options, and the names of jobs, steps, pools, groups, nodes, disks and backup targets.
    """
    script = get_completion_class(shell)
    if script is None:
        raise click.ClickException(f"click knows no completion for {shell}")
    click.echo(script(context.find_root().command, {}, "sdrs", "_SDRS_COMPLETE").source())


def _offer(names: Callable[[Settings, click.Context], Iterable[str]]) -> Offer:
    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        settings = settings_of(context)
        settings.timeout_seconds = _PATIENCE_SECONDS
        try:
            return [CompletionItem(name) for name in names(settings, context) if name.startswith(incomplete)]
        except Exception:  # whatever is wrong, a prompt is no place to say it
            return []

    return complete


def _jobs(settings: Settings, context: click.Context) -> Iterable[str]:
    with open_cluster(settings) as cluster:
        return [job.name for job in cluster.jobs()]


def _steps(settings: Settings, context: click.Context) -> Iterable[str]:
    with open_cluster(settings) as cluster:
        return [str(save.step) for save in cluster.checkpoints(context.params["job"]).list()[:_STEPS_OFFERED]]


def _pools(settings: Settings, context: click.Context) -> Iterable[str]:
    with open_cluster(settings) as cluster:
        return [info.pool.name for info in cluster.pools()]


def _nodes(settings: Settings, context: click.Context) -> Iterable[str]:
    with open_cluster(settings) as cluster:
        return [node.id for node in cluster.nodes()]


def _disks(settings: Settings, context: click.Context) -> Iterable[str]:
    with open_cluster(settings) as cluster:
        return [found.disk.id for found in cluster.disks()]


def _groups(settings: Settings, context: click.Context) -> Iterable[str]:
    with open_cluster(settings) as cluster:
        return [group.id for group in cluster.groups()]


def _targets(settings: Settings, context: click.Context) -> Iterable[str]:
    with open_cluster(settings) as cluster:
        return [found.target.name for found in cluster.backups.targets()]


complete_job = _offer(_jobs)
complete_step = _offer(_steps)
complete_pool = _offer(_pools)
complete_node = _offer(_nodes)
complete_group = _offer(_groups)
complete_disk = _offer(_disks)
complete_target = _offer(_targets)


def complete_nodes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The next of several, separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    named = before.split(",")
    found = [item.value for item in complete_node(context, parameter, last) if item.value not in named]
    return [CompletionItem(f"{before}{comma}{name}") for name in found]
