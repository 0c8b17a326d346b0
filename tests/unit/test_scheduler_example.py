"""The example configuration of the scheduler tells the truth."""

from __future__ import annotations

from pathlib import Path

from sdrs_scheduler.app import settings_from
from sdrs_scheduler.config import Config, LocalConfig, SlurmConfig, StrikesConfig, load_config

EXAMPLE = Path(__file__).parents[2] / "deploy" / "scheduler.example.toml"


def test_the_example_is_valid_and_has_the_defaults() -> None:
    example = load_config(EXAMPLE)
    defaults = Config(url=example.url, data_dir=example.data_dir)
    assert example.model_copy(update={"policy": {}}) == defaults
    assert settings_from(example) == settings_from(defaults)


def test_the_example_names_every_setting_but_those_of_the_policy() -> None:
    text = EXAMPLE.read_text()
    for kind in (Config, LocalConfig, SlurmConfig, StrikesConfig):
        for name in kind.model_fields:
            assert f"\n{name} = " in text or f"\n# {name} = " in text or f"\n[{name}]" in text, name
