"""The daemon ``storaged``: reads its configuration, wires its roles, serves until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

from sdrs_core.errors import SdrsError
from sdrs_storaged.config import Config, load_config, split_address
from sdrs_storaged.data_dir import DataDir
from sdrs_storaged.logs import configure_logs, get_log
from sdrs_storaged.metrics import new_registry, serve_metrics
from sdrs_storaged.rpc.channels import Channels
from sdrs_storaged.surroundings import Surroundings
from sdrs_storaged.version import VERSION

E = TypeVar("E", bound=Exception)

log = get_log("storaged")


class Daemon:
    """One process. ``run`` starts what its roles need, in order, and stops it in the opposite order."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.is_serving = False

    async def run(self, stop: asyncio.Event) -> None:
        async with AsyncExitStack() as cleanup, asyncio.TaskGroup() as tasks:
            data_dir = DataDir(self._config.data_dir)
            cleanup.callback(data_dir.close)

            async def announce() -> None:
                await asyncio.to_thread(data_dir.announce, around.facts)

            around = Surroundings(self._config, new_registry(), Channels(), cleanup, tasks, announce)
            around.facts |= {"version": VERSION, "roles": list(self._config.roles), "ready": False}
            cleanup.push_async_callback(around.channels.close)
            if self._config.metrics:
                around.metrics_endpoint, stop_metrics = serve_metrics(
                    around.registry, *split_address(self._config.metrics)
                )
                cleanup.callback(stop_metrics)
                around.facts["metrics"] = around.metrics_endpoint
            try:
                # Only what is needed: the control plane is most of the code, and a cluster starts many nodes.
                if "controller" in self._config.roles:
                    from sdrs_storaged.controller_role import start_controller

                    await start_controller(around)
                if "node" in self._config.roles:
                    from sdrs_storaged.node_role import start_node

                    await start_node(around)
                around.facts["ready"] = True
                await announce()
                self.is_serving = True
                log.info("ready", pid=os.getpid(), version=VERSION)
                await stop.wait()
                log.info("stopping")
            finally:
                await cleanup.aclose()


async def _run(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    daemon = Daemon(config)
    running = asyncio.ensure_future(daemon.run(stop))

    def ask_to_stop() -> None:
        # The first signal drains; before the daemon serves, and on a second one, there is nothing to wait for.
        if stop.is_set() or not daemon.is_serving:
            running.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask_to_stop)
    await running


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="storaged", description="The storage daemon of SDRS: roles controller and node."
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file; see deploy/storaged.example.toml")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key, as in node.domain=rack-7"
    )
    parser.add_argument("--insecure", action="store_true", help="allow to listen beyond loopback in the clear")
    parser.add_argument("--check", action="store_true", help="validate the configuration and exit")
    parser.add_argument("--version", action="version", version=f"storaged {VERSION}")
    flags = parser.parse_args()
    overrides = [*flags.set, *(["insecure=true"] if flags.insecure else [])]
    try:
        config = load_config(flags.config, os.environ, overrides)
        config.check_exposure()
        if flags.check:
            return
        configure_logs(config.log_level, config.log_format)
        asyncio.run(_run(config))
    except* SdrsError as group:
        error = _first(group)
        sys.stderr.write(f"storaged: {error.message}\n")
        sys.exit(error.exit_code)
    except* OSError as group:
        # Of the system, not of ours: a disk that is full or gone while the daemon starts.
        sys.stderr.write(f"storaged: {_first(group)}: check the disk, the path and its rights\n")
        sys.exit(1)
    except* (asyncio.CancelledError, KeyboardInterrupt):
        sys.exit(130)


def _first(group: BaseExceptionGroup[E]) -> E:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
