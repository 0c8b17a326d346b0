"""A launch order as the two scripts that Slurm runs: one for the job, one for each node. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from sdrs_core.errors import InvalidArgumentError
from sdrs_scheduler.executors.executor import LaunchOrder
from sdrs_scheduler.executors.slurm.settings import SlurmSettings
from sdrs_scheduler.jobs.spec import Launch

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MIB = 1 << 20

# Shells between Slurm and the command hear every signal that is meant for it. They stay: one that dies of a warning
# ends the run under a trainer that saves.
_STAY = "trap : TERM USR1 USR2"

_JOB = """\
{stay}
folder={folder}

# However often it was submitted, and whoever requeues it: it begins once.
if ! (set -o noclobber; echo "$SLURM_JOB_ID" > "$folder/claimed") 2> /dev/null; then
    echo "this run was begun by Slurm job $(cat "$folder/claimed"): nothing to do for job $SLURM_JOB_ID"
    exit 0
fi

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if [[ ${{#nodes[@]}} == 0 ]]; then
    echo "scontrol does not tell the nodes of this job" >&2
    exit 1
fi
printf '%s\\n' "${{nodes[@]}}" > "$folder/nodes.new" && mv "$folder/nodes.new" "$folder/nodes"
printf '%s slots={slots}\\n' "${{nodes[@]}}" > "$folder/hosts"

# The first node, where this script runs, under the address at which Slurm reaches it.
address=$(scontrol show node "${{nodes[0]}}" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
# Below the ports that systems give away by themselves; other jobs may be on this node.
port=$((20000 + SLURM_JOB_ID % 10000))
while (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null; do port=$((20000 + (port - 20000 + 7) % 10000)); done

{exports}
export SDRS_NODE_COUNT=${{#nodes[@]}} SDRS_HOSTFILE="$folder/hosts"
export MASTER_ADDR="${{address:-${{nodes[0]}}}}" MASTER_PORT=$port
export PET_NNODES=$SDRS_NODE_COUNT PET_MASTER_ADDR=$MASTER_ADDR PET_MASTER_PORT=$port PET_MAX_RESTARTS=0
{start}
code=$?
echo "$code" > "$folder/over"
exit "$code"
"""

_NODE = """\
#!/bin/bash
{stay}
folder={folder}
node=$SLURMD_NODENAME
exec >> "$folder/logs/$node.log" 2>&1
export SDRS_NODE=$node SDRS_NODE_RANK=$SLURM_NODEID PET_NODE_RANK=$SLURM_NODEID SDRS_RUN={run}@$node
if cd {workdir}; then
    {command}
    code=$?
else
    code=1
fi
# Whole or not at all: the scheduler reads it while it is written.
echo "$code $(date +%s%3N)" > "$folder/exits/.$node" && mv "$folder/exits/.$node" "$folder/exits/$node"
# What the command left behind, where Slurm tracks processes by their parents only. This shell has not got the mark.
for _ in 1 2 3 4 5; do
    left=$(grep -lzxF "SDRS_RUN=$SDRS_RUN" /proc/[0-9]*/environ 2> /dev/null | grep -o '[0-9]*') || break
    kill -KILL $left 2> /dev/null
done
exit "$code"
"""


def job_name(run: str) -> str:
    return f"sdrs-{run}"


def job_script(order: LaunchOrder, folder: Path, settings: SlurmSettings) -> str:
    """For sbatch; ``folder`` is the run's, and every node sees it."""
    gpus = _gpus_per_node(order)
    return (
        "#!/bin/bash\n"
        + "".join(f"#SBATCH {option}\n" for option in _options(order, folder, settings))
        + (
            _JOB.format(
                stay=_STAY,
                folder=shlex.quote(str(folder)),
                slots=gpus or 1,
                exports="\n".join(_exports(order)),
                start=_start(order, gpus),
            )
        )
    )


def node_script(order: LaunchOrder, folder: Path) -> str:
    return _NODE.format(
        stay=_STAY,
        folder=shlex.quote(str(folder)),
        run=shlex.quote(order.run),
        workdir=shlex.quote(order.workdir),
        command=_command(order),
    )


def _options(order: LaunchOrder, folder: Path, settings: SlurmSettings) -> Iterator[str]:
    nodes = [slot.node for slot in order.slots]
    gpus = _gpus_per_node(order)
    yield f"--job-name={job_name(order.run)}"
    # One owner of retries: the scheduler, with a job of its own for each attempt.
    yield "--no-requeue"
    yield f"--nodes={len(nodes)}"
    yield "--ntasks-per-node=1"
    yield f"--nodelist={','.join(nodes)}"
    if excluded := [node for node in order.excluded_nodes if node not in nodes]:
        yield f"--exclude={','.join(excluded)}"
    if gpus:
        yield f"--gres={_gres(order, gpus)}"
    if order.exclusive:
        yield "--exclusive"
    if order.cpus_per_node:
        yield f"--cpus-per-task={order.cpus_per_node}"
    if order.memory_bytes_per_node:
        yield f"--mem={math.ceil(order.memory_bytes_per_node / _MIB)}M"
    if order.time_limit_seconds:
        # The scheduler ends it at its limit; Slurm only if the scheduler does not.
        yield f"--time={math.ceil((order.time_limit_seconds + order.grace_seconds) / 60) + 1}"
    # Before a limit of Slurm's own, the partition's for example.
    yield f"--signal={order.signal}@{min(max(math.ceil(order.grace_seconds), 1), 65535)}"
    yield f'--output="{str(folder).replace("%", "%%")}/slurm.log"'
    yield "--open-mode=append"
    for name in ("partition", "account", "qos", "reservation"):
        if value := getattr(settings, name):
            yield f"--{name}={value}"
    yield from settings.options


def _start(order: LaunchOrder, gpus: int) -> str:
    if order.launch is Launch.ONCE:
        # No step of Slurm's around it: mpirun and its like make steps themselves.
        return '"$folder/node.sh"'
    words = ["srun", f"--nodes={len(order.slots)}", f"--ntasks={len(order.slots)}", "--ntasks-per-node=1"]
    words += ["--kill-on-bad-exit=1", "--wait=0", "--export=ALL", "--mpi=none", "--cpu-bind=none", "--input=none"]
    if gpus:
        words.append(f"--gres={_gres(order, gpus)}")
    if order.cpus_per_node:
        # Since 22.05 srun does not take it over from the job.
        words.append(f"--cpus-per-task={order.cpus_per_node}")
    return " ".join([*map(shlex.quote, words), '"$folder/node.sh"'])


def _command(order: LaunchOrder) -> str:
    if isinstance(order.command, str):
        return "bash -c " + shlex.quote(f"{_STAY}\n{order.command}")
    return shlex.join(order.command)


def _exports(order: LaunchOrder) -> Iterator[str]:
    for name, value in order.environment.items():
        if not _NAME.fullmatch(name):
            raise InvalidArgumentError(f"{order.run}: {name!r} cannot name an environment variable", run=order.run)
        yield f"export {name}={shlex.quote(value)}"


def _gres(order: LaunchOrder, gpus: int) -> str:
    return f"gpu:{order.gpu_type}:{gpus}" if order.gpu_type else f"gpu:{gpus}"


def _gpus_per_node(order: LaunchOrder) -> int:
    counts = {len(slot.gpus) for slot in order.slots}
    if len(counts) != 1:
        raise InvalidArgumentError(
            f"{order.run}: Slurm gives each node of a job the same number of GPUs, not {sorted(counts)}", run=order.run
        )
    return counts.pop()
