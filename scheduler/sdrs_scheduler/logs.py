"""Structured logs: an event and its facts, one line each, on stderr."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

Log = structlog.typing.FilteringBoundLogger


def configure_logs(level: str, form: Literal["json", "console"]) -> None:
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def get_log(component: str) -> Log:
    log: Log = structlog.get_logger(component=component)
    return log
