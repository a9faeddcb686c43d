"""The ring: ranges that are taken never overlap, and all of the memory comes back."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_exp.pipeline.ring import Ring

SIZE = 60


@given(st.lists(st.tuples(st.integers(1, SIZE), st.integers(0, 5)), max_size=80))
def test_ranges_never_overlap_while_they_are_taken_and_lie_inside(moves: list[tuple[int, int]]) -> None:
    """Each move takes a range where there is room, then gives back one of those taken, any of them."""
    ring, taken = Ring(SIZE), list[tuple[int, int]]()
    for n_bytes, which in moves:
        if ring.place(n_bytes) is not None:
            begin = ring.take(n_bytes)
            assert begin >= 0 and begin + n_bytes <= SIZE
            assert all(begin + n_bytes <= low or high <= begin for low, high in taken)
            taken.append((begin, begin + n_bytes))
        if which < len(taken):
            ring.give_back(taken.pop(which)[0])
    for low, _ in taken:
        ring.give_back(low)
    assert ring.place(SIZE) == 0


@given(st.lists(st.integers(1, SIZE // 3), min_size=1, max_size=60))
def test_given_back_in_order_thirds_find_room_while_another_is_still_taken(sizes: list[int]) -> None:
    """No range of a third of it at most waits until the memory is empty: two stages can always be at work."""
    ring, taken = Ring(SIZE), list[int]()
    for n_bytes in sizes:
        while ring.place(n_bytes) is None:
            assert len(taken) > 1
            ring.give_back(taken.pop(0))
        taken.append(ring.take(n_bytes))


def test_it_goes_around_its_end_and_leaves_what_is_too_short_there() -> None:
    ring = Ring(10)
    assert [ring.take(4), ring.take(4)] == [0, 4]
    assert ring.place(4) is None and ring.place(2) == 8
    ring.give_back(0)
    assert ring.place(5) is None and ring.take(4) == 0
    assert ring.place(1) is None, "full: the newest ends where the oldest begins"
    ring.give_back(4)
    assert ring.take(6) == 4


def test_what_is_given_back_between_two_stays_unused_until_one_of_them_is() -> None:
    ring = Ring(10)
    old, middle, new = ring.take(3), ring.take(3), ring.take(4)
    ring.give_back(middle)
    assert ring.place(1) is None
    ring.give_back(old)
    assert ring.take(6) == 0
    ring.give_back(new)
    assert ring.place(4) == 6


@pytest.mark.parametrize("wrong", [lambda ring: ring.take(11), lambda ring: ring.give_back(3)])
def test_what_was_not_asked_for_is_a_fault_of_the_caller(wrong: Callable[[Ring], object]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        wrong(Ring(10))
