from __future__ import annotations

import subprocess
import sys

import sdrs


def test_importing_sdrs_loads_no_heavy_package() -> None:
    script = "import sys, sdrs; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"grpc", "google", "numpy", "torch", "xxhash", "safetensors", "boto3", "asyncio", "sdrs_storaged"} & set(
        loaded
    )


def test_connecting_and_saving_load_no_server_code() -> None:
    script = "import sys, sdrs.aio, sdrs.state; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "grpc" in loaded
    assert not {"torch", "boto3", "click", "rich", "pydantic", "sdrs_storaged"} & set(loaded)


def test_every_public_name_can_be_had() -> None:
    for name in sdrs.__all__:
        assert getattr(sdrs, name) is not None
    assert set(sdrs.__all__) <= set(dir(sdrs))
