"""Which cluster a command talks to: --url, else SDRS_URL, else the one that ``sdrs up`` left running."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from sdrs.cli.pointer import read_pointer
from sdrs.cli.settings import Settings
from sdrs_core.errors import UnavailableError

if TYPE_CHECKING:
    from sdrs import Cluster


def find_url(settings: Settings) -> tuple[str, str]:
    """The URL, and the words that say where it comes from."""
    if settings.url:
        return settings.url, "--url"
    from_environment = os.environ.get("SDRS_URL", "")
    if from_environment:
        return from_environment, "SDRS_URL"
    pointer = read_pointer()
    if pointer is not None:
        return pointer.url, f"`sdrs up` in {pointer.dir}"
    raise UnavailableError("no cluster is known: start one here with `sdrs up`, or name one with --url or SDRS_URL")


@contextmanager
def open_cluster(settings: Settings) -> Iterator[Cluster]:
    import sdrs

    url, origin = find_url(settings)
    if settings.verbosity:
        click.echo(f"sdrs: using {url}, from {origin}", err=True)
    with _sdk_log(settings), sdrs.connect(url, timeout_seconds=settings.timeout_seconds) as cluster:
        yield cluster


@contextmanager
def _sdk_log(settings: Settings) -> Iterator[None]:
    """What the SDK logs is told in our own words, as an error or a warning; -v shows it as it comes."""
    handler = logging.StreamHandler(sys.stderr) if settings.verbosity else logging.NullHandler()
    handler.setFormatter(logging.Formatter("sdrs: %(message)s"))
    logger = logging.getLogger("sdrs")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
