"""A launch order as the scripts that Slurm runs: one for the job, one for each node, one for signals. Pure."""

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

# Shells between Slurm and the command stay when Slurm signals all processes there are: one that dies of a warning ends
# the run under a trainer that saves.
_STAY = "trap : TERM USR1 USR2"

_JOB = """\
folder={folder}
# The scheduler, and Slurm before a limit of its own, signal this shell only: who hears it is decided on each node.
for signal in TERM USR1 USR2; do trap "pass_on $signal" $signal; done
pass_on() {{
    {pass_on} || scancel --signal="$1" "$SLURM_JOB_ID"
}}

# However often it was submitted, and whoever requeues it: it begins once.
if ! (set -o noclobber; echo "$SLURM_JOB_ID $(date +%s%3N)" > "$folder/claimed") 2> /dev/null; then
    echo "this run was begun by Slurm job $(cut -d' ' -f1 "$folder/claimed"): nothing to do for job $SLURM_JOB_ID"
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
# After SIGTERM torchrun kills its processes after 30 s otherwise, however long their save may take.
export PET_SHUTDOWN_TIMEOUT={grace_seconds}
# With job control a command in the background does not ignore SIGINT.
set -m
{start} &
set +m
until wait $!; ! kill -0 $! 2> /dev/null; do :; done
wait $!
code=$?
echo "$code $(date +%s%3N)" > "$folder/over"
exit "$code"
"""

_NODE = """\
#!/bin/bash
{stay}
folder={folder}
node=$SLURMD_NODENAME
exec >> "$folder/logs/$node.log" 2>&1
export SDRS_NODE=$node SDRS_NODE_RANK=$SLURM_NODEID PET_NODE_RANK=$SLURM_NODEID SDRS_RUN={run}@$node@$SLURM_JOB_ID
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

_SIGNAL = """\
#!/bin/bash
node=$SLURMD_NODENAME
exec >> {folder}/logs/"$node.log" 2>&1
signal=$1
number=$(kill -l "$signal")
mark="SDRS_RUN={run}@$node@$SLURM_JOB_ID"
marked=$(grep -lzxF "$mark" /proc/[0-9]*/environ 2> /dev/null | grep -o '[0-9]*' | tr '\\n' ' ')
# Those that wrote over their environment (setproctitle does) are known by their parents.
marked=" $(ps -eo pid=,ppid= | awk -v marked="$marked" '
    {{ parent[$1] = $2 }}
    END {{
        count = split(marked, seeds, " ")
        for (i = 1; i <= count; i++) ours[seeds[i]]
        do {{
            grew = 0
            for (pid in parent) if (!(pid in ours) && parent[pid] in ours) {{ ours[pid]; grew = 1 }}
        }} while (grew)
        for (pid in ours) printf "%s ", pid
    }}')"

field() {{ sed -n "s/^$2:[[:space:]]*//p" "/proc/$1/status" 2> /dev/null; }}

# Who has no handler dies of a signal. A shell that waits for its trainer, or torchrun at USR1, would end the run while
# the trainer saves: they are passed over, unless nobody listens and dying is what is left.
listening= is_heard=
for pid in $marked; do
    if (( 0x0$(field "$pid" SigCgt) >> (number - 1) & 1 )); then
        listening+=" $pid"
        # The first shell of a command has a handler from us that does nothing.
        [[ $(field "$pid" Name) == bash && $marked != *" $(field "$pid" PPid) "* ]] || is_heard=1
    elif [[ $signal == USR2 ]]; then
        echo "sdrs: process $pid ($(field "$pid" Name)) tells no stacks; it is $(field "$pid" State)"
    fi
done
[[ -n $is_heard || $signal == USR2 ]] || listening=$marked
kill -s "$signal" $listening 2> /dev/null
# A stopped one does it as the first thing when it goes on; others do not mind.
[[ $signal != USR2 ]] || kill -s CONT $marked 2> /dev/null
exit 0
"""


def job_name(run: str) -> str:
    return f"sdrs-{run}"


def job_script(order: LaunchOrder, folder: Path, settings: SlurmSettings) -> str:
    """For sbatch; ``folder`` is the run's, and every node sees it."""
    gpus = _gpus_per_node(order)
    options = "".join(f"#SBATCH {option}\n" for option in _options(order, folder, settings))
    return f"#!/bin/bash\n{options}" + _JOB.format(
        pass_on=_pass_on(order),
        folder=shlex.quote(str(folder)),
        slots=gpus or 1,
        grace_seconds=math.ceil(order.grace_seconds),
        exports="\n".join(_exports(order)),
        start=_start(order, gpus),
    )


def node_script(order: LaunchOrder, folder: Path) -> str:
    return _NODE.format(
        stay=_STAY,
        folder=shlex.quote(str(folder)),
        run=shlex.quote(order.run),
        workdir=shlex.quote(order.workdir),
        command=_command(order),
    )


def signal_script(order: LaunchOrder, folder: Path) -> str:
    return _SIGNAL.format(folder=shlex.quote(str(folder)), run=order.run)


def _options(order: LaunchOrder, folder: Path, settings: SlurmSettings) -> Iterator[str]:
    nodes = [slot.node for slot in order.slots]
    gpus = _gpus_per_node(order)
    yield f"--job-name={job_name(order.run)}"
    # One owner of retries: the scheduler, with a job of its own for each attempt.
    yield "--no-requeue"
    yield f"--nodes={len(nodes)}"
    yield "--ntasks-per-node=1"
    yield f"--nodelist={','.join(nodes)}"
    if order.excluded_nodes:
        yield f"--exclude={','.join(order.excluded_nodes)}"
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
    yield f"--signal=B:{order.signal}@{min(max(math.ceil(order.grace_seconds), 1), 65535)}"
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


def _pass_on(order: LaunchOrder) -> str:
    if order.launch is Launch.ONCE:
        return '"$folder/signal.sh" "$1"'
    count = len(order.slots)
    # Beside the step of the command, on what it has.
    words = ["srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--overlap", "--gres=none"]
    return " ".join([*words, "--mpi=none", "--input=none", '"$folder/signal.sh" "$1"'])


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
