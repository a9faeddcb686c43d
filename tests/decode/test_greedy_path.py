"""A greedy path is plain decoding's text, and a guess changes what it costs alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dflash_exp import replay
from dflash_exp.decode import DecodeConfig, decode
from dflash_exp.replay import greedy_path, looked_up
from dflash_exp.target import FrozenTarget, TargetSession

Clock = Callable[[], float]
GREEDY = DecodeConfig(max_new_tokens=24, temperature=0.0, seed=0, eos_ids=())


def changed(text: Sequence[int], *positions: int) -> list[int]:
    return [(token + 1) % 64 if i in positions else token for i, token in enumerate(text)]


GUESSES: dict[str, Callable[[list[int]], list[int]]] = {
    "right": lambda text: text,
    "empty": lambda text: [],
    "too short": lambda text: text[:9],
    "too long": lambda text: [*text, 1, 2, 3],
    "wrong at once": lambda text: changed(text, 0),
    "wrong later": lambda text: changed(text, 1, 8, 9),
    "wrong at the end": lambda text: changed(text, len(text) - 1),
    "another text": lambda text: [5] * 40,
}


@pytest.mark.parametrize("stops", [False, True], ids=["cut", "eos"])
@pytest.mark.parametrize("guess", GUESSES)
@pytest.mark.parametrize("n_at_once", [3, 128])
def test_a_path_is_what_plain_decoding_gives_whatever_was_guessed(
    any_target: FrozenTarget, prompt_P: Tensor, monkeypatch: pytest.MonkeyPatch, guess: str, n_at_once: int, stops: bool
) -> None:
    monkeypatch.setattr(replay, "READ_AT_ONCE", n_at_once)
    whole = decode(any_target, prompt_P, None, GREEDY, 0, lambda: 0.0).tokens
    assert len(set(whole)) > 5, "the test says little of a constant text"
    eos = next(token for i, token in enumerate(whole) if whole.index(token) == i >= 6)
    config = replace(GREEDY, eos_ids=(eos,)) if stops else GREEDY
    text = whole[: whole.index(eos) + 1] if stops else whole
    assert greedy_path(any_target, prompt_P, GUESSES[guess](list(text)), config) == text


@pytest.mark.parametrize("max_new_tokens", [1, 2, 9])
def test_a_path_holds_no_more_tokens_than_it_may(
    target: FrozenTarget, prompt_P: Tensor, clock: Clock, max_new_tokens: int
) -> None:
    whole = decode(target, prompt_P, None, GREEDY, 0, clock).tokens
    config = replace(GREEDY, max_new_tokens=max_new_tokens)
    assert greedy_path(target, prompt_P, whole, config) == whole[:max_new_tokens]


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every read of a target's session."""
    noted: list[int] = []
    read = TargetSession.read

    def noting(session: TargetSession, tokens_N: Tensor, n_logits: int) -> tuple[Tensor, Tensor | None]:
        noted.append(len(tokens_N))
        return read(session, tokens_N, n_logits)

    monkeypatch.setattr(TargetSession, "read", noting)
    return noted


@pytest.mark.parametrize(
    ("n_guessed", "n_at_once", "expected"),
    [(24, 128, [5, 23]), (24, 10, [5, 11, 11, 1]), (9, 128, [5, 9] + [1] * 14), (0, 128, [5] + [1] * 23)],
    ids=["right", "bounded", "cut", "none"],
)
def test_a_guess_is_read_at_once_and_the_text_goes_on_behind_it(
    target: FrozenTarget, prompt_P: Tensor, clock: Clock, monkeypatch: pytest.MonkeyPatch, widths: list[int],
    n_guessed: int, n_at_once: int, expected: list[int],
) -> None:  # fmt: skip
    whole = decode(target, prompt_P, None, GREEDY, 0, clock).tokens
    monkeypatch.setattr(replay, "LOOKED_UP", 0)
    monkeypatch.setattr(replay, "READ_AT_ONCE", n_at_once)
    widths.clear()
    greedy_path(target, prompt_P, whole[:n_guessed], GREEDY)
    assert widths == expected


def test_a_text_that_loops_costs_few_forwards(target: FrozenTarget, clock: Clock, widths: list[int]) -> None:
    config, prompt_P = replace(GREEDY, max_new_tokens=120), torch.tensor([3, 1])
    whole = decode(target, prompt_P, None, config, 0, clock).tokens
    assert looked_up(list(whole[:60]), 60) == list(whole[60:]), "the text must loop"
    widths.clear()
    assert greedy_path(target, prompt_P, [], config) == whole
    assert len(widths) < 40


def test_what_followed_the_last_two_tokens_before_is_guessed_again() -> None:
    assert looked_up([9, 4, 5, 6, 4, 5], 7) == [6, 4, 5, 6, 4, 5, 6]
    assert looked_up([1, 3, 3, 3], 4) == [3, 3, 3, 3]
    assert looked_up([1, 2, 8, 1, 2, 9, 7, 1, 2], 3) == [9, 7, 1]
    assert looked_up([1, 2, 3], 3) == looked_up([1], 3) == []
