"""How far a step moved the parameters."""

import pytest
import torch

from dflash_exp.drafter.movement import DRAWN, Movement


def test_small_tensors_count_whole() -> None:
    parameters = [torch.zeros(3), torch.zeros(2, 2)]
    moved = Movement(parameters)
    moved.begin()
    parameters[0][1] = 3.0
    parameters[1][0, 1] = 4.0
    assert float(moved.norm()) == 5.0
    moved.begin()
    assert float(moved.norm()) == 0.0


@pytest.mark.parametrize("spread", [torch.ones_like, torch.randn_like])
def test_a_large_matrix_is_told_to_a_few_per_cent_by_the_numbers_drawn(spread: object) -> None:
    torch.manual_seed(0)
    parameter, small = torch.randn(300, 400), torch.zeros(10)
    moved = Movement([parameter, small])
    step = 1e-3 * spread(parameter)  # type: ignore[operator]
    moved.begin()
    parameter += step
    small += 0.01
    wanted = float((step.double().square().sum() + 10 * 1e-4).sqrt())
    assert float(moved.norm()) == pytest.approx(wanted, rel=3 / DRAWN**0.5)
