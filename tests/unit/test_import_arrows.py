"""The arrows between our packages: core <- proto <- {storaged, client} <- scheduler.

Read from the source with ast, so that an import inside a function or behind TYPE_CHECKING counts as well: an arrow is
a matter of design, not of what happens to run.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SOURCE_ROOTS = {
    "sdrs_core": "core",
    "sdrs_proto": "proto",
    "sdrs_storaged": "storaged",
    "sdrs": "client",
    "sdrs_scheduler": "scheduler",
}

MAY_IMPORT = {
    "sdrs_core": set(),
    "sdrs_proto": {"sdrs_core"},
    "sdrs_storaged": {"sdrs_core", "sdrs_proto"},
    "sdrs": {"sdrs_core", "sdrs_proto"},
    "sdrs_scheduler": {"sdrs_core", "sdrs_proto", "sdrs"},
}

# Modules that the world starts or imports, and none of ours needs to.
ENTRY_POINTS = {
    "sdrs",
    "sdrs.aio",
    "sdrs.cli.main",
    "sdrs.fsspec",
    "sdrs.huggingface",
    "sdrs.lightning",
    "sdrs.torch",
    "sdrs_scheduler.__main__",
    "sdrs_scheduler.cli.jobs",  # verbs of `sdrs`, found by entry points
    "sdrs_scheduler.cli.queues",
    "sdrs_scheduler.cli.sim",
    "sdrs_scheduler.executors.local.shepherd",  # a process for each run
    "sdrs_storaged.__main__",
    "sdrs_storaged.app",
    "sdrs_storaged.control.meta.memory",  # the MetaStore's twin: tests run the control plane on it
}

# What `pip install sdrs` brings. The SDK and what it stands on may import no more than this when they are loaded;
# what a part needs on top it imports inside the function that uses it.
BASE_INSTALL = {"google", "grpc", "numpy", "safetensors", "xxhash"}
LIGHT_PACKAGES = {"sdrs", "sdrs_core", "sdrs_proto"}
# Parts of the SDK that are asked for by name, with an extra of their own. `import sdrs` must not load them.
EXTRAS_OF_PARTS = {
    "sdrs.cli": {"click", "rich"},
    "sdrs.fsspec": {"fsspec"},
    "sdrs.huggingface": {"transformers"},
    "sdrs.lightning": {"lightning", "lightning_fabric"},
    "sdrs.torch": {"torch"},
}


@dataclass
class Module:
    """One file, and the dotted names that it imports."""

    name: str
    path: Path
    imports: set[str] = field(default_factory=set)
    imports_on_load: set[str] = field(default_factory=set)

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]


def _imported_names(node: ast.Import | ast.ImportFrom, module: Module) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    origin = node.module or ""
    if node.level:
        parts = module.name.split(".")
        # In a package's __init__.py one dot means the package itself, elsewhere the one around the module.
        drop = node.level - (module.path.name == "__init__.py")
        origin = ".".join([*parts[: len(parts) - drop], *filter(None, [origin])])
    yield origin
    # `from a.b import c`: c may be a module as well as a name.
    yield from (f"{origin}.{alias.name}" for alias in node.names)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _collect(node: ast.AST, module: Module, on_load: bool) -> None:
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = set(_imported_names(node, module))
        module.imports |= names
        if on_load:
            module.imports_on_load |= names
    elif isinstance(node, ast.If) and _is_type_checking(node.test):
        for child in node.body:
            _collect(child, module, on_load=False)
        for child in node.orelse:
            _collect(child, module, on_load)
    else:
        runs_later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            _collect(child, module, on_load and not runs_later)


def parse_module(name: str, path: Path, source: str) -> Module:
    module = Module(name, path)
    _collect(ast.parse(source, str(path)), module, on_load=True)
    return module


@cache
def all_modules() -> dict[str, Module]:
    modules = {}
    for package, folder in SOURCE_ROOTS.items():
        for path in sorted((ROOT / folder / package).rglob("*.py")):
            parts = list(path.relative_to(ROOT / folder).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            name = ".".join(parts)
            modules[name] = parse_module(name, path, path.read_text(encoding="utf-8"))
    return modules


def wrong_arrows(module: Module) -> set[str]:
    ours = {name for name in module.imports if name.partition(".")[0] in SOURCE_ROOTS}
    return {name for name in ours if name.partition(".")[0] not in {module.package, *MAY_IMPORT[module.package]}}


def heavy_imports(module: Module) -> set[str]:
    allowed = BASE_INSTALL | set(SOURCE_ROOTS) | sys.stdlib_module_names
    for part, extras in EXTRAS_OF_PARTS.items():
        if f"{module.name}.".startswith(f"{part}."):
            allowed = allowed | extras
    return {name.partition(".")[0] for name in module.imports_on_load} - allowed


def with_parents(name: str) -> set[str]:
    """Importing a.b.c loads a and a.b too."""
    parts = name.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts) + 1)}


def test_the_source_was_found() -> None:
    packages = {module.package for module in all_modules().values()}
    assert {"sdrs_core", "sdrs_proto", "sdrs_storaged", "sdrs"} <= packages


def test_arrows_between_packages_point_down() -> None:
    wrong = {module.name: names for module in all_modules().values() if (names := wrong_arrows(module))}
    assert not wrong, f"imports against the arrows: {wrong}"


def test_every_module_is_imported_by_another() -> None:
    modules = all_modules()
    used = set(ENTRY_POINTS)
    for module in modules.values():
        for name in module.imports:
            used |= with_parents(name) - {module.name}
    unused = modules.keys() - used
    assert not unused, f"nobody imports {sorted(unused)}: delete it, or list it in ENTRY_POINTS"


def test_every_listed_entry_point_exists() -> None:
    assert all_modules().keys() >= ENTRY_POINTS


def test_the_sdk_loads_only_what_the_base_install_brings() -> None:
    light = [module for module in all_modules().values() if module.package in LIGHT_PACKAGES]
    heavy = {module.name: names for module in light if (names := heavy_imports(module))}
    assert not heavy, f"not in the base install, import it where it is used: {heavy}"


def test_import_sdrs_loads_nothing_beyond_the_base_install() -> None:
    # The real thing, in a fresh interpreter: packages that our dependencies would load on their own count as well.
    program = "import sys, sdrs, sdrs.aio; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    server = {"aiofiles", "blake3", "boto3", "botocore", "click", "prometheus_client", "pydantic", "rich", "structlog"}
    assert not set(loaded.stdout.split()) & (server | {"fsspec", "sdrs_storaged", "torch", "zfec"})


# The rules themselves: each must be able to go red.


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("sdrs_core.ids", "import sdrs_proto.v1"),
        ("sdrs_proto.framing", "from sdrs_storaged import app"),
        ("sdrs_storaged.app", "def f():\n    import sdrs"),
        ("sdrs.transfer", "if TYPE_CHECKING:\n    from sdrs_storaged.app import App"),
        ("sdrs.transfer", "import sdrs_scheduler"),
        ("sdrs_scheduler.policy", "import sdrs_storaged"),
    ],
)
def test_an_import_against_the_arrows_is_seen(name: str, source: str) -> None:
    assert wrong_arrows(parse_module(name, Path("x.py"), source))


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("sdrs.transfer", "import boto3", {"boto3"}),
        ("sdrs.transfer", "try:\n    import torch\nexcept ImportError:\n    torch = None", {"torch"}),
        ("sdrs.transfer", "import click", {"click"}),
        ("sdrs.cli.tables", "import click, rich.table", set()),
        ("sdrs.cli.tables", "import structlog", {"structlog"}),
        ("sdrs.state", "def f():\n    import torch", set()),
        ("sdrs.state", "if typing.TYPE_CHECKING:\n    import torch", set()),
        ("sdrs.state", "import grpc, asyncio\nfrom sdrs_core.ids import JobName", set()),
    ],
)
def test_a_heavy_import_is_seen_where_loading_runs_it(name: str, source: str, expected: set[str]) -> None:
    assert heavy_imports(parse_module(name, Path("x.py"), source)) == expected


@pytest.mark.parametrize(
    ("name", "file", "source", "expected"),
    [
        ("sdrs.cli.main", "main.py", "from . import tables", "sdrs.cli.tables"),
        ("sdrs.cli.main", "main.py", "from ..errors import SdrsError", "sdrs.errors"),
        ("sdrs.cli", "__init__.py", "from .main import main", "sdrs.cli.main"),
        ("sdrs", "__init__.py", "from . import aio", "sdrs.aio"),
    ],
)
def test_relative_imports_are_resolved(name: str, file: str, source: str, expected: str) -> None:
    assert expected in parse_module(name, Path(file), source).imports
