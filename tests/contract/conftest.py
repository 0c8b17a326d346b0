from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.metastores import Stores


@pytest.fixture(params=["memory", "sqlite"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    return Stores(request.param, tmp_path)
