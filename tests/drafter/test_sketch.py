"""A gradient's direction in 4,096 numbers: inner products hold, and a step is compared with the one before."""

import math

import pytest
import torch
from torch import Tensor

from dflash_exp.drafter.sketch import COLUMNS, SIZE, Direction, GradientSketch


def low_rank(seed: int, n: int) -> Tensor:
    """Rows that are multiples of one another, a tenth of them large, as gradients of matrices are."""
    draw = torch.Generator().manual_seed(seed)
    rows = n // 512 + 1
    scale = torch.randn(rows, 1, generator=draw) * (1 + 9 * (torch.rand(rows, 1, generator=draw) < 0.1))
    return (scale * torch.randn(1, 512, generator=draw)).flatten()[:n]


@pytest.mark.parametrize("n", [5000, COLUMNS, 3 * COLUMNS + 77])
def test_cosines_of_sketches_are_those_of_the_gradients_within_the_stated_error(n: int) -> None:
    one = low_rank(0, n)
    for wanted in (0.0, 0.3, 0.9):
        errors = []
        for seed in range(20):
            other = low_rank(1, n)
            other -= one * (one @ other) / (one @ one)
            other = wanted * one / one.norm() + math.sqrt(1 - wanted**2) * other / other.norm()
            sketch = GradientSketch(one, seed)
            a, b = sketch(one), sketch(other)
            errors.append(float(a @ b / a.norm() / b.norm()) - wanted)
        stated = math.sqrt((1 + wanted**2) / SIZE)
        rms = math.sqrt(sum(error**2 for error in errors) / len(errors))
        assert rms < 2 * stated, (wanted, rms, stated)


def test_a_sketch_is_worked_out_as_its_signs_say() -> None:
    n = COLUMNS + 5
    gradient = low_rank(0, n).double()
    sketch = GradientSketch(gradient, 3)
    row, column = sketch._row_sign_R, sketch._column_sign_M
    expected = torch.zeros(SIZE, dtype=torch.float64)
    for i in [*range(0, n, 4001), n - 1]:
        alone = torch.zeros(n, dtype=torch.float64)
        alone[i] = 2.5
        expected.zero_()
        expected[i % SIZE] = 2.5 * row[i // COLUMNS] * column[i % COLUMNS]
        assert torch.equal(sketch(alone), expected)
    assert torch.allclose(sketch(gradient) + sketch(3 * gradient), sketch(4 * gradient), rtol=1e-12)


def test_a_turn_is_the_cosine_with_the_last_gradient_that_was_one() -> None:
    one, other = low_rank(0, 5000), low_rank(1, 5000)
    direction = Direction(GradientSketch(one, 0))
    assert direction.turn(one) is None
    assert direction.turn(2 * one) == pytest.approx(1) and direction.turn(-one) == pytest.approx(-1)
    assert direction.turn(one * 0) is None and direction.turn(one * math.nan) is None
    again = Direction(GradientSketch(one, 0))
    again.load_state(direction.state())
    assert again.turn(other) == direction.turn(other) is not None
    assert Direction(GradientSketch(one, 0)).state() == []
