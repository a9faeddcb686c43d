"""The comparison errs as often as it says: fewer draws of what `python -m tests.compare.simulation` prints."""

import pytest

from tests.compare.simulation import errors


@pytest.mark.parametrize("n_seeds", [3, 10])
def test_intervals_cover_and_verdicts_err_as_often_as_they_say(n_seeds: int) -> None:
    found = errors("normal", n_seeds, n_sweeps=1000, seed=1)
    assert 0.93 <= found.covered <= 0.97
    assert 0.035 <= found.family_wise <= 0.065
    assert found.falsely_equal <= 0.05 and found.falsely_equal_family <= 0.05


def test_one_run_that_diverged_makes_no_verdict_of_the_other_arms_more_likely() -> None:
    assert errors("one diverging seed", 10, n_sweeps=300, seed=1).family_wise <= 0.065
