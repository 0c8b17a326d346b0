"""The daemons of a cluster on this machine: their files, and what stands in their configurations."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from sdrs.cli.local_layout import ETCD_COUNT, HOST, EtcdPorts, Layout
from sdrs.cli.pointer import replace_file

SCHEDULER = "scheduler"
Sections = dict[str, dict[str, object]]  # of a TOML file; "" is what comes before the first


class Program(StrEnum):
    STORAGED = "storaged"
    ETCD = "etcd"
    SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class Daemon:
    """One process of the cluster and its files."""

    name: str
    dir: Path
    settings: str = field(repr=False)
    program: Program = Program.STORAGED

    @property
    def config(self) -> Path:
        return self.dir / f"{self.name}.{'yaml' if self.program is Program.ETCD else 'toml'}"

    @property
    def data_dir(self) -> Path:
        return self.dir / self.name

    @property
    def log(self) -> Path:
        return self.dir / "logs" / f"{self.name}.log"

    def write_config(self) -> None:
        # etcd asks that its folder be nobody else's; in the scheduler's are the environments of jobs.
        self.data_dir.mkdir(exist_ok=True, mode=0o777 if self.program is Program.STORAGED else 0o700)
        replace_file(self.config, self.settings)


def controller_daemons(directory: Path, layout: Layout) -> list[Daemon]:
    if layout.etcd is None:
        return [_controller(directory, "controller", layout.controller_addresses[0], {})]
    store: Sections = {"controller.etcd": {"endpoints": [f"{HOST}:{port}" for port in layout.etcd.clients]}}
    return [
        _controller(directory, f"controller-{number}", address, store)
        for number, address in enumerate(layout.controller_addresses, start=1)
    ]


def _controller(directory: Path, name: str, address: str, store: Sections) -> Daemon:
    # The pool `default` is made by `sdrs up` once it is known how many nodes there are.
    controller: dict[str, object] = {"listen": address, "default_pool": False}
    if store:
        controller["store"] = "etcd"
    return _daemon(directory, name, {"": {"roles": ["controller"]}, "controller": controller, **store})


def node_daemons(directory: Path, layout: Layout) -> list[Daemon]:
    domains = dict(layout.domains)
    return [
        _node(
            directory,
            node_name(number),
            layout.controller_addresses,
            layout.disk_counts[number - 1],
            domains.get(number, node_name(number)),
        )
        for number in layout.node_numbers
    ]


def node_name(number: int) -> str:
    return f"node-{number}"


def _node(directory: Path, name: str, controllers: list[str], disk_count: int, domain: str) -> Daemon:
    disks = [str(directory / name / f"disk-{number}") for number in range(1, disk_count + 1)]
    node: dict[str, object] = {
        "id": name,
        "listen": f"{HOST}:0",
        "data_listen": f"{HOST}:0",
        "controllers": controllers,
        # Mostly each node counts as a failure domain, so that placement behaves here as it will on many machines.
        "domain": domain,
        "disks": disks,
    }
    return _daemon(directory, name, {"": {"roles": ["node"]}, "node": node})


def _daemon(directory: Path, name: str, sections: Sections) -> Daemon:
    return Daemon(name, directory, _toml(directory, name, sections))


def _toml(directory: Path, name: str, sections: Sections) -> str:
    sections[""] |= {"data_dir": str(directory / name), "log_format": "console"}
    lines = ["# Written by `sdrs up`, and again each time it runs."]
    for section, values in sections.items():
        lines += ["", f"[{section}]"] if section else []
        # TOML's strings, numbers and arrays are JSON's.
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def scheduler_daemon(directory: Path, layout: Layout) -> Daemon:
    """It is a client of the cluster like any other; its jobs run on the nodes of this machine."""
    sections: Sections = {"": {"url": layout.url}, "local": {}}
    return Daemon(SCHEDULER, directory, _toml(directory, SCHEDULER, sections), Program.SCHEDULER)


def etcd_daemons(directory: Path, layout: Layout) -> list[Daemon]:
    if layout.etcd is None:
        return []
    members = [(f"etcd-{number}", port) for number, port in enumerate(layout.etcd.peers, start=1)]
    cluster = ",".join(f"{name}=http://{HOST}:{port}" for name, port in members)
    return [
        _etcd(directory, name, f"http://{HOST}:{client}", f"http://{HOST}:{peer}", cluster)
        for (name, peer), client in zip(members, layout.etcd.clients, strict=True)
    ]


def _etcd(directory: Path, name: str, client_url: str, peer_url: str, cluster: str) -> Daemon:
    settings = {
        "name": name,
        "data-dir": str(directory / name),
        "listen-client-urls": client_url,
        "advertise-client-urls": client_url,
        "listen-peer-urls": peer_url,
        "initial-advertise-peer-urls": peer_url,
        "initial-cluster": cluster,
        "initial-cluster-state": "new",
        # Three that share a busy machine's disk with everything else: twice etcd's usual patience.
        "heartbeat-interval": 200,
        "election-timeout": 2000,
        "log-level": "warn",
    }
    # JSON is YAML.
    return Daemon(name, directory, json.dumps(settings, indent=2) + "\n", Program.ETCD)


def purge_daemons(directory: Path, layout: Layout) -> None:
    """Delete their data, configurations and logs; also of the store that the cluster was moved from, or half to."""
    purge_etcd_parts(directory)
    every = replace(layout, etcd=None, removed=())
    scheduler = scheduler_daemon(directory, every)
    _purge([scheduler, *node_daemons(directory, every), *controller_daemons(directory, every)])
    shutil.rmtree(directory / "logs", ignore_errors=True)


def purge_etcd_parts(directory: Path) -> None:
    anywhere = Layout(0, (), EtcdPorts(0, (0,) * ETCD_COUNT, (0,) * ETCD_COUNT))
    _purge([*controller_daemons(directory, anywhere), *etcd_daemons(directory, anywhere)])


def _purge(daemons: list[Daemon]) -> None:
    for daemon in daemons:
        if daemon.data_dir.exists():
            shutil.rmtree(daemon.data_dir)
        daemon.config.unlink(missing_ok=True)
