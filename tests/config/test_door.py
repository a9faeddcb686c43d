"""Types, ranges and targets are checked at one door."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dflash_exp.compose import compose, compose_jobs
from dflash_exp.config import plain
from dflash_exp.door import checked, load, to_yaml
from dflash_exp.suggest import ConfigError

STRATEGY = """
import dataclasses
import numpy as np

@dataclasses.dataclass(frozen=True)
class Backwards:
    step: int

    def order(self, counts, rng):
        return np.repeat(np.arange(len(counts)), counts)[::-1]
"""


@pytest.fixture
def extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own package with a strategy, and a folder with its option."""
    (tmp_path / "my_strategies.py").write_text(STRATEGY)
    option = tmp_path / "my_conf" / "interleave" / "backwards.yaml"
    option.parent.mkdir(parents=True)
    option.write_text("_target_: my_strategies.Backwards\nstep: 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_strategies", raising=False)
    return option.parent.parent


def settled() -> dict[str, Any]:
    return plain(compose([]))


def test_a_configuration_passes_the_door_again_unchanged(tmp_path: Path) -> None:
    config = compose(["interleave=diversity_first", "pipeline.threads.target=2", "seed=5"])
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert load(tmp_path / "config.yaml") == config
    assert checked(plain(config)) == config


def test_a_run_begun_before_there_was_the_key_partial_can_be_read() -> None:
    values = settled()
    assert values.pop("partial") == "refuse"
    assert checked(values) == compose([])


def test_values_have_the_types_of_their_fields() -> None:
    config = compose(["interleave.jitter_strides=1", "pipeline.threads.target=2", "optim.schedule=wsd"])
    values = plain(config)
    assert isinstance(values["interleave"]["jitter_strides"], float)
    assert config.pipeline.threads.target == 2
    assert values["optim"]["schedule"] == "wsd"


def test_an_enum_is_given_by_its_value_however_its_members_are_called() -> None:
    assert compose(["target.dtype=bfloat16"]).target.dtype.value == "bfloat16"


@pytest.mark.parametrize("target", ["os.system", "subprocess.Popen", "dflash_exp_other.Thing", "Thing"])
def test_a_target_outside_of_the_package_is_refused(target: str) -> None:
    with pytest.raises(ConfigError, match=r"interleave\._target_ must lie in dflash_exp or in a module of extensions"):
        compose([f"interleave._target_={target}"])


@pytest.mark.parametrize("target", ["dflash_exp.cli.main", "dflash_exp.nowhere.Thing", "dflash_exp.cli.Nothing"])
def test_a_target_must_be_a_dataclass(target: str) -> None:
    with pytest.raises(ConfigError, match="must name a dataclass"):
        compose([f"interleave._target_={target}"])


def test_a_refused_module_is_not_even_imported(extension: Path) -> None:
    with pytest.raises(ConfigError, match=r"say extensions=\[my_strategies\]"):
        compose_jobs(["--config-dir", str(extension), "interleave=backwards"])
    assert "my_strategies" not in sys.modules


def test_a_module_named_in_extensions_brings_its_own_strategy(extension: Path) -> None:
    overrides = ["interleave=backwards", "extensions=[my_strategies]", "interleave.step=2"]
    (job,) = compose_jobs(["--config-dir", str(extension), *overrides])
    assert vars(job.config.interleave) == {"step": 2}


def test_an_extension_is_checked_like_our_own(extension: Path) -> None:
    with pytest.raises(ConfigError, match=r"interleave\.step must be a whole number, got 'two'"):
        compose_jobs(
            [
                "--config-dir",
                str(extension),
                "interleave=backwards",
                "extensions=[my_strategies]",
                "interleave.step=two",
            ]
        )


def test_an_import_that_fails_inside_an_extension_keeps_its_traceback(extension: Path) -> None:
    (extension.parent / "my_strategies.py").write_text("import no_such_package\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        compose_jobs(["--config-dir", str(extension), "interleave=backwards", "extensions=[my_strategies]"])


def test_a_directory_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must hold config\.yaml"):
        load(tmp_path / "config.yaml")


def test_a_missing_group_is_named() -> None:
    values = settled()
    del values["interleave"]
    with pytest.raises(ConfigError, match="interleave must be one of its options, got null"):
        checked(values)
