"""What `evaluate` refuses before it decodes anything."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from dflash_exp.architecture import TargetShape
from dflash_exp.config import EvaluateOptions
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.scoring import check_fits, evaluate, prompt_sets
from dflash_exp.suggest import ConfigError
from dflash_exp.target import TargetConfig, TargetDtype

TARGET = TargetShape(8, 4, 2, 1, 4, 12, 20, 1e-5, 500.0, True)
SHAPE = DrafterShape(8, 12, 2, 1, 4, 1, 4, 20, 1, (0,), 500.0, 1e-5, n_target_layers=4)
NOTHING_SAID = EvaluateOptions(None, None, None, None, None, None)


def test_a_drafter_fits_the_target_that_it_was_made_for() -> None:
    assert check_fits(SHAPE, TARGET, Path("x")) == SHAPE
    assert check_fits(replace(SHAPE, n_target_layers=None), TARGET, Path("x")) == SHAPE, "where it does not say"


@pytest.mark.parametrize("change", [{"hidden_size": 16}, {"vocab_size": 21}, {"n_layers": 5}])
def test_a_drafter_for_another_target_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"--target must have the hidden size, vocabulary and layers .*\(8, 20, 4\)"):
        check_fits(SHAPE, replace(TARGET, **change), Path("x"))


def test_a_folder_without_a_drafter_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"PATH must hold a drafter's config\.json"):
        evaluate(tmp_path, None, NOTHING_SAID)


def test_the_prompts_that_ship_are_for_the_embedded_target_alone() -> None:
    """They are ids of its vocabulary, which to any other are words at random."""
    no_tokenizer = cast(Any, None)
    named = {
        name: replace(NOTHING_SAID, target=TargetConfig(name, TargetDtype.FLOAT32)) for name in ("embedded", "a/b")
    }
    assert len(prompt_sets(None, replace(named["embedded"], limit=2), no_tokenizer)[0].prompts) == 2
    with pytest.raises(ValueError, match=r"^--prompts must name a file for a target other than .*, got none for a/b; "):
        prompt_sets(None, named["a/b"], no_tokenizer)
