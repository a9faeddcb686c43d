"""A compilation is announced once, and a kernel that is there already is not."""

from numba import njit

from dflash_exp.plan.compiling import LINE, announced


def test_the_first_compilation_is_announced_once_and_before_it_is_done() -> None:
    doubled = njit(lambda number: 2 * number)
    said = []
    with announced(lambda line: said.append((line, len(doubled.signatures)))):
        assert (doubled(2), doubled(2.5)) == (4, 5.0)
    assert said == [(LINE, 0)]


def test_a_kernel_that_is_compiled_already_is_not_announced() -> None:
    doubled = njit(lambda number: 2 * number)
    doubled(2)
    said: list[str] = []
    with announced(said.append):
        doubled(3)
    assert said == []


def test_nothing_is_announced_after_the_end() -> None:
    said: list[str] = []
    with announced(said.append):
        pass
    njit(lambda number: 3 * number)(2)
    assert said == []
