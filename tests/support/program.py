"""The program ``sdrs`` run in this process: its verbs without the half second that a process of its own costs."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from sdrs.cli.root import root


class Program:
    """``sdrs`` with its cluster given."""

    def __init__(self, url: str) -> None:
        self._url = url

    def result(self, *arguments: str) -> Result:
        return CliRunner().invoke(root, ["--url", self._url, *arguments])

    def _run(self, expect: int, *arguments: str) -> Result:
        result = self.result(*arguments)
        assert result.exit_code == expect, f"sdrs {' '.join(arguments)} exited with {result.exit_code}: {result.output}"
        return result

    def run(self, *arguments: str, expect: int = 0) -> str:
        """What it printed; its errors if any are expected."""
        result = self._run(expect, *arguments)
        return result.stdout if expect == 0 else result.output

    def json(self, *arguments: str, expect: int = 0) -> Any:
        result = self._run(expect, *arguments, "-o", "json")
        return json.loads(result.stdout or result.stderr)
