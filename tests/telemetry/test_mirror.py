"""What mirrors are told, and which options they refuse."""

import pytest

from dflash_exp.messages import StepRecord
from dflash_exp.telemetry.mirror import Wandb, WandbArtifacts, WandbMode, plotted


def options(project: str = "dflash", tags: tuple[str, ...] = ()) -> Wandb:
    return Wandb(WandbMode.auto, None, project, None, None, list(tags), None, WandbArtifacts.none, False)


def test_a_chart_shows_numbers_flags_as_0_and_1_and_the_only_element_of_a_list() -> None:
    shown = plotted(StepRecord(7, 1.5, {"loss": 0.5, "clipped": True, "one": [3], "several": [3, 0], "none": None}))  # pyright: ignore[reportArgumentType]
    assert shown == {"time_s": 1.5, "loss": 0.5, "clipped": 1, "one": 3}
    assert type(shown["clipped"]) is int


@pytest.mark.parametrize("project", ["", "me/dflash", "what?"])
def test_a_project_that_wandb_would_refuse_is_refused_at_the_door(project: str) -> None:
    with pytest.raises(ValueError, match=r"telemetry\.wandb\.project must .*, got .*; .*entity"):
        options(project)


@pytest.mark.parametrize("tag", ["", "t" * 65])
def test_a_tag_that_wandb_would_refuse_is_refused_at_the_door(tag: str) -> None:
    assert options(tags=("t", "t" * 64)).tags
    with pytest.raises(ValueError, match=r"telemetry\.wandb\.tags must each have 1 to 64 characters, got .*; .*notes"):
        options(tags=("fine", tag))
