"""``sdrs sim``: what the scheduler would make of a trace of jobs, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from sdrs.cli.amounts import duration, format_duration
from sdrs.cli.output import Column, Listing, emit_facts, emit_json, emit_listing, emit_note, emit_warning
from sdrs.cli.progress import stage_bar
from sdrs.cli.settings import Settings, VerbGroup, pass_settings
from sdrs_core.errors import InvalidArgumentError
from sdrs_core.levels import parse_level
from sdrs_scheduler.sim.plot import check_plot, draw
from sdrs_scheduler.sim.report import Report
from sdrs_scheduler.sim.settings import LEAST_NODES, PolicyName, Preemption, Restart, SimSettings
from sdrs_scheduler.sim.sweeps import Result, Sweep, interval_label, run_variant, variants
from sdrs_scheduler.sim.traces import TimeUnit, Trace, read_trace

# With so many jobs, deciding at each change takes long and changes little.
_MANY_JOBS = 5000
_TICK_OF_MANY_SECONDS = 60

F = TypeVar("F", bound=Callable[..., Any])

_EXAMPLES = """
sdrs sim run --trace jobs.csv --nodes 8 --gpus 8
sdrs sim run --trace jobs.csv --nodes 8 --gpus 8 --mtbf 30d --checkpoint-interval auto
sdrs sim run --trace jobs.csv --nodes 64 --gpus 8 --mtbf 30d --sweep interval --plot sweep.png
sdrs sim run --trace jobs.csv --nodes 64 --gpus 8 --policy srtf --preempt kill -o json
"""


@click.group(cls=VerbGroup, examples=_EXAMPLES)
def sim() -> None:
    """Run the scheduler's policy over a trace of jobs, in virtual time."""


def _choice(kind: type[PolicyName | Restart | Preemption | Sweep | TimeUnit]) -> click.Choice[str]:
    return click.Choice([member.value for member in kind])


def _never_or_duration(text: str) -> float:
    return math.inf if text == "never" else float(duration(text))


def _auto_or_duration(text: str) -> float | None:
    return None if text == "auto" else float(duration(text))


# A usage message calls types by their names.
_never_or_duration.__name__ = _auto_or_duration.__name__ = "duration"


def _cluster_options(function: F) -> F:
    options = (
        click.option("--nodes", type=int, required=True, metavar="N", help="How many nodes there are."),
        click.option("--gpus", type=int, required=True, metavar="N", help="How many GPUs a node has."),
        click.option(
            "--mtbf",
            "mtbf_seconds",
            type=_never_or_duration,
            default="never",
            metavar="TIME",
            help="Of one node, on average, between two failures: 30d, or never (the default).",
        ),
        click.option("--repair", type=duration, default="1h", metavar="TIME", help="Until a node is back (1h)."),
    )
    return _apply(options, function)


def _checkpoint_options(function: F) -> F:
    options = (
        click.option(
            "--checkpoint-interval",
            "interval_seconds",
            type=_auto_or_duration,
            default="30m",
            metavar="TIME|auto",
            help="Of work between two saves (30m); auto: by Young and Daly, for each job.",
        ),
        click.option(
            "--save-cost", type=duration, default="10s", metavar="TIME", help="A save holds up for this (10s)."
        ),
        click.option("--restore-cost", type=duration, default="30s", metavar="TIME", help="Until it is loaded (30s)."),
        click.option(
            "--level",
            type=click.Choice([str(level) for level in LEAST_NODES]),
            default="L2",
            help="L1 is out of reach while its node is down. Default L2.",
        ),
        click.option(
            "--torn",
            type=float,
            default=0.0,
            metavar="SHARE",
            help="Of the checkpoints, so many cannot be restored although they lie there (0).",
        ),
    )
    return _apply(options, function)


def _policy_options(function: F) -> F:
    options = (
        click.option(
            "--policy",
            type=_choice(PolicyName),
            default="priority",
            help="priority is what the scheduler does; the others are what papers compare with.",
        ),
        click.option(
            "--restart",
            type=_choice(Restart),
            default="verified",
            help="After a failure: from a checkpoint that was found whole, from the newest unseen, or from the top.",
        ),
        click.option(
            "--preempt",
            type=_choice(Preemption),
            default="checkpoint",
            help="Who has to leave saves first, is killed, or never has to leave.",
        ),
    )
    return _apply(options, function)


def _apply(options: tuple[Callable[[F], F], ...], function: F) -> F:
    # The first one listed is applied last, so that the help lists it first.
    for option in reversed(options):
        function = option(function)
    return function


@sim.command("run", examples=_EXAMPLES)
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="A CSV file: job_id,num_gpu,submit_time,duration[,user,priority], in seconds; or one of Muri or Chronus.",
)
@_cluster_options
@_checkpoint_options
@_policy_options
@click.option("--time-unit", type=_choice(TimeUnit), help="Of the trace's times, if it is not what its kind has.")
@click.option("--jobs", "job_limit", type=click.IntRange(min=1), metavar="N", help="Only the first N jobs.")
@click.option(
    "--tick",
    type=duration,
    metavar="TIME",
    help=f"Decide at multiples of it; 0s: at each change. Default 0s; {_TICK_OF_MANY_SECONDS}s for many jobs.",
)
@click.option("--sweep", type=_choice(Sweep), help="Simulate several, that differ in this.")
@click.option("--seed", type=int, default=0, metavar="N", help="Of failures and torn checkpoints (0).")
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), metavar="FILE", help="Draw the results: a PNG.")
@pass_settings
def run(
    settings: Settings,
    /,
    trace_file: Path,
    time_unit: str | None,
    job_limit: int | None,
    tick: int | None,
    sweep: str | None,
    plot_file: Path | None,
    **assumptions: Any,
) -> None:
    """Simulate a trace, and tell how long jobs take and what failures cost.

    The same trace, options and seed give the same numbers. Docs: docs/simulator.md.
    """
    wanted = _sim_settings(**assumptions)
    if plot_file is not None:
        check_plot(plot_file)
    trace = read_trace(trace_file, TimeUnit(time_unit) if time_unit else None)
    jobs = trace.jobs[:job_limit]
    if tick is None:
        tick = _TICK_OF_MANY_SECONDS if len(jobs) >= _MANY_JOBS else 0
    wanted = replace(wanted, tick_seconds=float(tick))
    if trace.without_gpu_count:
        emit_warning(settings, f"{trace.without_gpu_count} jobs of {trace_file} ask for no GPU, and are left out")
    results: list[Result] = []
    with stage_bar(settings, "simulated jobs") as advance:
        for variant in variants(wanted, Sweep(sweep) if sweep else None):
            results.append(run_variant(jobs, variant, partial(advance, variant.label)))
    if plot_file is not None:
        draw(results, f"{trace_file.name}: {len(jobs)} jobs on {wanted.nodes} × {wanted.gpus_per_node} GPUs", plot_file)
    if settings.is_json:
        emit_json(_record(trace, len(jobs), sweep, results))
        return
    if sweep:
        emit_listing(settings, _listing(sweep, results))
    else:
        emit_facts(settings, _facts(results[0].report))
    for result in results:
        _warn_of_unfinished(settings, result)
    if plot_file is not None:
        emit_note(settings, f"drawn: {plot_file}")


def _sim_settings(
    nodes: int,
    gpus: int,
    mtbf_seconds: float,
    repair: int,
    interval_seconds: float | None,
    save_cost: int,
    restore_cost: int,
    level: str,
    torn: float,
    policy: str,
    restart: str,
    preempt: str,
    seed: int,
) -> SimSettings:
    if mtbf_seconds == 0 or interval_seconds == 0:
        raise InvalidArgumentError("--mtbf and --checkpoint-interval must be above 0: use 30d, 30m, or never and auto")
    return SimSettings(
        nodes=nodes,
        gpus_per_node=gpus,
        mtbf_seconds=mtbf_seconds,
        repair_seconds=float(repair),
        interval_seconds=interval_seconds,
        save_seconds=float(save_cost),
        restore_seconds=float(restore_cost),
        level=parse_level(level),
        torn=torn,
        policy=PolicyName(policy),
        restart=Restart(restart),
        preemption=Preemption(preempt),
        seed=seed,
    )


def _warn_of_unfinished(settings: Settings, result: Result) -> None:
    left = result.report.job_count - result.report.done_count
    if left:
        emit_warning(
            settings,
            f"{result.variant.label}: {left} jobs fail faster than they get on, and were given up after "
            f"{format_duration(result.report.makespan)}: averages are of the others",
        )


def _facts(report: Report) -> dict[str, str]:
    return {
        "jobs done": f"{report.done_count} of {report.job_count}",
        "average completion": _time(report.average_completion),
        "median completion": _time(report.median_completion),
        "p99 completion": _time(report.p99_completion),
        "average wait": _time(report.average_wait),
        "makespan": _time(report.makespan),
        "utilization": f"{report.utilization:.1%}",
        "goodput": f"{report.goodput:.2%}",
        "lost work": f"{report.lost_gpu_hours:.1f} GPU-hours",
        "saving": f"{report.saving_gpu_hours:.1f} GPU-hours",
        "restoring": f"{report.restoring_gpu_hours:.1f} GPU-hours",
        "node failures": str(report.node_failure_count),
        "restarts": str(report.restart_count),
        "preemptions": str(report.preemption_count),
    }


def _listing(sweep: str, results: list[Result]) -> Listing:
    titles = ("average", "median", "p99", "wait", "makespan", "use", "goodput", "lost GPU-h", "restarts", "preemptions")
    return Listing(
        columns=[Column(sweep), *(Column(title, is_number=True) for title in titles)],
        rows=[_row(result) for result in results],
        when_empty="nothing was simulated",
    )


def _row(result: Result) -> list[str]:
    report = result.report
    times = (
        report.average_completion,
        report.median_completion,
        report.p99_completion,
        report.average_wait,
        report.makespan,
    )
    return [
        result.variant.label,
        *("-" if math.isnan(seconds) else f"{seconds:,.0f}s" for seconds in times),
        f"{report.utilization:.1%}",
        f"{report.goodput:.2%}",
        f"{report.lost_gpu_hours:,.1f}",
        str(report.restart_count),
        str(report.preemption_count),
    ]


def _time(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds:,.0f} s ({format_duration(seconds)})"


def _record(trace: Trace, job_count: int, sweep: str | None, results: list[Result]) -> dict[str, object]:
    """What programs read: names here are a promise. Times are seconds; null: never, auto, or of nothing."""
    return {
        "trace": {
            "file": trace.source,
            "kind": trace.kind.value,
            "time_unit": trace.unit.value,
            "jobs": job_count,
            "jobs_without_gpu": trace.without_gpu_count,
        },
        "sweep": sweep,
        "results": [
            {
                "label": result.variant.label,
                "settings": {
                    **_finite(asdict(result.variant.settings)),
                    "level": str(result.variant.settings.level),
                    "interval": interval_label(result.variant.settings.interval_seconds),
                },
                "report": _finite(asdict(result.report)),
            }
            for result in results
        ],
    }


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """JSON knows neither infinity nor NaN."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }
