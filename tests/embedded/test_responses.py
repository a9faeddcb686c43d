"""Where a loop begins, and how a sampled response ends."""

import pytest

from dflash_exp.embedded.responses import Ending, Response, cut, loop_start
from dflash_exp.embedded.tokenizer import END_ID

VARIED = list(range(100, 140))


@pytest.mark.parametrize(
    ("tokens", "begin"),
    [
        ([*VARIED, *[7] * 24], 41),  # the first 7 is text, its 23 copies are the loop
        ([*VARIED, *[7, 8] * 12], 42),
        ([7] * 24, 1),
        ([*VARIED, *range(10, 40), *range(10, 40), *range(10, 40)], 70),  # a phrase of 30, three times
        ([*range(10, 40)] * 3 + VARIED, 30),  # also when the text goes on
        ([*VARIED, *[7] * 24, *VARIED, *[8] * 30], 41),  # the first of two
    ],
)
def test_a_loop_begins_at_its_first_repetition(tokens: list[int], begin: int) -> None:
    assert loop_start(tokens) == begin


@pytest.mark.parametrize(
    "tokens",
    [
        [],
        [7],
        VARIED,
        [*VARIED, *[7] * 23],  # one short of 24
        [*VARIED, *range(10, 40), *range(10, 40), *VARIED],  # a phrase twice is no loop
        [*range(10, 40), *range(10, 40), *range(10, 39)],  # one short of three copies
        [*range(100)] * 3,  # a period over 64
        [7, 8, 9, 1, 7, 8, 9, 2] * 2,
    ],
)
def test_what_repeats_less_is_no_loop(tokens: list[int]) -> None:
    assert loop_start(tokens) is None


def test_a_response_ends_with_its_eos_and_what_was_sampled_behind_it_is_dropped() -> None:
    assert cut([20, 21, END_ID, 0, 0, END_ID], cap=6) == Response([20, 21, END_ID], Ending.eos)


def test_a_response_without_eos_ends_at_the_cap() -> None:
    assert cut(VARIED, cap=16) == Response(VARIED[:16], Ending.cap)


def test_a_response_that_loops_ends_before_the_first_repetition_whatever_comes_behind() -> None:
    assert cut([*VARIED, *[7] * 30, END_ID], cap=100) == Response([*VARIED, 7], Ending.loop)
    assert cut([*VARIED, *[7] * 60], cap=100) == Response([*VARIED, 7], Ending.loop)


def test_a_loop_behind_the_eos_is_not_the_response_s() -> None:
    assert cut([20, END_ID, *[0] * 50], cap=52) == Response([20, END_ID], Ending.eos)
