"""A tiny model trained on numpy that saves every few steps and resumes by itself: the smallest useful use of the SDK.

    python examples/train_tiny.py --job demo --steps 60 --save-every 10

Kill it whenever you like and start it again: it goes on from its newest checkpoint, and ends with the same weights.
As the command of a job (``sdrs job submit``) it is started again by the scheduler, and goes on from where that says.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time

import numpy as np

import sdrs

FEATURES = 2048


def digest(state: dict[str, object]) -> str:
    """Over every bit of the state, so that "the same" means the same."""
    hasher = hashlib.sha256()
    for name in sorted(state):
        value = state[name]
        hasher.update(name.encode())
        hasher.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return hasher.hexdigest()[:16]


def fresh_state(ballast_mib: int) -> dict[str, object]:
    random = np.random.default_rng(0)
    return {
        "weights": np.zeros(FEATURES),
        "momentum": np.zeros(FEATURES),
        "target": random.standard_normal(FEATURES),
        # Stands for the rest of a real model, so that a save takes long enough to be killed in.
        "ballast": random.standard_normal((ballast_mib << 20) // 8),
        "step": 0,
    }


def train_step(state: dict[str, object]) -> float:
    """One step of gradient descent; the batch depends on the step alone, so a resumed run repeats it exactly."""
    step = int(state["step"]) + 1  # type: ignore[call-overload]
    batch = np.random.default_rng(step).standard_normal((32, FEATURES))
    error = batch @ (state["weights"] - state["target"])  # type: ignore[operator]
    state["momentum"] = 0.9 * state["momentum"] + batch.T @ error / len(batch)  # type: ignore[operator]
    state["weights"] = state["weights"] - 0.002 * state["momentum"]  # type: ignore[operator]
    state["ballast"] += step % 7  # type: ignore[operator]
    state["step"] = step
    return float(np.mean(error**2))


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--job", default="tiny")
    flags.add_argument("--pool", help="where its checkpoints go; the pool `default` if it is not given")
    flags.add_argument("--steps", type=int, default=60)
    flags.add_argument("--save-every", type=int, default=10)
    flags.add_argument("--ballast-mib", type=int, default=16)
    flags.add_argument("--step-seconds", type=float, default=0.0, help="make each step last so long")
    options = flags.parse_args()

    job = sdrs.current_job()
    with sdrs.connect() as cluster:
        ckpts = job.checkpoints() if job else cluster.checkpoints(options.job, pool=options.pool)
        if ckpts.latest() is None:
            state = fresh_state(options.ballast_mib)
            print(f"start from nothing as pid {os.getpid()}", flush=True)
        else:
            state = ckpts.restore()
            print(f"resume at step {state['step']} as pid {os.getpid()}, digest {digest(state)}", flush=True)
        while state["step"] < options.steps:
            loss = train_step(state)
            time.sleep(options.step_seconds)
            if job:
                job.report(step=state["step"], loss=loss)
            if state["step"] % options.save_every == 0:
                print(f"saving step {state['step']} loss {loss:.4f} digest {digest(state)}", flush=True)
                done = ckpts.save(step=state["step"], state=state).wait()
                print(f"saved step {done.step} at {done.level}, {done.size_bytes >> 20} MiB", flush=True)
        print(f"finished digest {digest(state)}", flush=True)


if __name__ == "__main__":
    main()
