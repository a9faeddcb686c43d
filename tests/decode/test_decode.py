"""Speculation changes the speed of decoding, and no token."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from dflash_exp.decode import DecodeConfig, Decoded, Drafting, choose, decode
from dflash_exp.target import FrozenTarget, TargetSession

Clock = Callable[[], float]
Make = Callable[..., Any]
GREEDY = DecodeConfig(max_new_tokens=24, temperature=0.0, seed=0, eos_ids=())
SAMPLED = replace(GREEDY, temperature=1.3)
ERRORS = [7, 0, 3, 1, 5, 2]
"""The first wrong slot of each block in turn; 7 of a block of 8 is none."""


@pytest.fixture(params=[GREEDY, SAMPLED], ids=["greedy", "sampled"])
def config(request: pytest.FixtureRequest) -> DecodeConfig:
    return request.param


@pytest.fixture
def plain(any_target: FrozenTarget, prompt_P: Tensor, config: DecodeConfig, clock: Clock) -> Decoded:
    return decode(any_target, prompt_P, None, config, 0, clock)


def recomputed(target: FrozenTarget, prompt_P: Tensor, n_tokens: int) -> tuple[int, ...]:
    """Greedy decoding without cache or loop of ours."""
    tokens = prompt_P.tolist()
    for _ in range(n_tokens):
        with torch.no_grad():
            logits_1TV = target.model(input_ids=torch.tensor([tokens]), use_cache=False).logits
        tokens.append(int(logits_1TV[0, -1].argmax()))
    return tuple(tokens[len(prompt_P) :])


def test_plain_decoding_equals_recomputing_the_whole_text_for_every_token(
    any_target: FrozenTarget, prompt_P: Tensor, clock: Clock
) -> None:
    decoded = decode(any_target, prompt_P, None, GREEDY, 0, clock)
    assert decoded.tokens == recomputed(any_target, prompt_P, 24)
    assert decoded.emitted == (1,) * 23 and decoded.accepted == (0,) * 23
    assert len(set(decoded.tokens)) > 5, "the test says little of a constant text"


def test_a_drafter_that_is_right_sometimes_changes_no_token(
    any_target: FrozenTarget, prompt_P: Tensor, config: DecodeConfig, plain: Decoded, oracle: Make, clock: Clock
) -> None:
    decoded = decode(any_target, prompt_P, oracle(plain.tokens, 5, 8, ERRORS), config, 0, clock)
    assert decoded.tokens == plain.tokens
    assert decoded.accepted[:5] == (7, 0, 3, 1, 5) and decoded.emitted[:5] == (8, 1, 4, 2, 6)


def test_a_drafter_that_guesses_changes_no_token(
    any_target: FrozenTarget, prompt_P: Tensor, config: DecodeConfig, plain: Decoded, guesser: Make, clock: Clock
) -> None:
    assert decode(any_target, prompt_P, guesser(6), config, 0, clock).tokens == plain.tokens


def test_the_cache_holds_exactly_the_committed_tokens_at_every_step(
    any_target: FrozenTarget, prompt_P: Tensor, oracle: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = decode(any_target, prompt_P, None, GREEDY, 0, clock)
    read, sizes = TargetSession.read, []

    def noting(session: TargetSession, tokens_N: Tensor, n_logits: int) -> tuple[Tensor, Tensor | None]:
        sizes.append(session._cache.get_seq_length())
        return read(session, tokens_N, n_logits)

    monkeypatch.setattr(TargetSession, "read", noting)
    decoded = decode(any_target, prompt_P, oracle(plain.tokens, 5, 8, ERRORS), GREEDY, 0, clock)
    committed = [5 + sum(decoded.emitted[:step]) for step in range(len(decoded.emitted))]
    assert sizes == [0, *committed]


@pytest.mark.parametrize("n_off", [-1, 1])
def test_a_wrong_crop_would_be_seen(
    prompt_P: Tensor, any_target: FrozenTarget, oracle: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch, n_off: int
) -> None:
    plain = decode(any_target, prompt_P, None, GREEDY, 0, clock)
    drop = TargetSession.drop
    monkeypatch.setattr(TargetSession, "drop", lambda session, n: drop(session, max(0, n + n_off)))
    decoded = decode(any_target, prompt_P, OracleWithoutCheck(oracle(plain.tokens, 5, 8, ERRORS)), GREEDY, 0, clock)
    assert decoded.tokens != plain.tokens


class OracleWithoutCheck:
    """An oracle that keeps drafting after the text has left its path."""

    def __init__(self, oracle: Drafting) -> None:
        self.block_size, self._oracle = oracle.block_size, oracle

    def extend(self, features_TF: Tensor) -> None:
        self._oracle.extend(features_TF)

    def propose(self, bonus: int) -> Tensor:
        try:
            return self._oracle.propose(bonus)
        except (AssertionError, IndexError):
            return torch.zeros(self.block_size - 1, dtype=torch.int64)


def test_the_drafter_gets_each_committed_tokens_features_once_and_in_order(
    any_target: FrozenTarget, prompt_P: Tensor, oracle: Make, clock: Clock
) -> None:
    plain = decode(any_target, prompt_P, None, GREEDY, 0, clock)
    drafter = oracle(plain.tokens, 5, 8, ERRORS)
    decode(any_target, prompt_P, drafter, GREEDY, 0, clock)
    given_TF = torch.cat(drafter.features)
    text_T = torch.cat([prompt_P, torch.tensor(plain.tokens)])[: len(given_TF)]
    expected_TF = any_target.features(text_T[None], torch.tensor([len(text_T)]))
    assert len(given_TF) > 20
    torch.testing.assert_close(given_TF, expected_TF, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n_tokens", [1, 2, 3, 9, 10])
def test_exactly_max_new_tokens_come_out_both_ways(
    target: FrozenTarget, prompt_P: Tensor, oracle: Make, clock: Clock, n_tokens: int
) -> None:
    plain = decode(target, prompt_P, None, GREEDY, 0, clock)
    config = replace(GREEDY, max_new_tokens=n_tokens)
    assert decode(target, prompt_P, None, config, 0, clock).tokens == plain.tokens[:n_tokens]
    decoded = decode(target, prompt_P, oracle(plain.tokens, 5, 8, [7]), config, 0, clock)
    assert decoded.tokens == plain.tokens[:n_tokens]
    assert 1 + sum(decoded.emitted) == n_tokens


def test_an_eos_inside_an_accepted_block_ends_the_text_there(
    any_target: FrozenTarget, prompt_P: Tensor, config: DecodeConfig, plain: Decoded, oracle: Make, clock: Clock
) -> None:
    first_seen = {token: plain.tokens.index(token) for token in plain.tokens}
    eos, at = next((token, i) for token, i in first_seen.items() if 2 <= i <= 6)
    stopping = replace(config, eos_ids=(63, eos) if eos != 63 else (63,))
    expected = plain.tokens[: at + 1]
    assert decode(any_target, prompt_P, None, stopping, 0, clock).tokens == expected
    decoded = decode(any_target, prompt_P, oracle(plain.tokens, 5, 8, [7]), stopping, 0, clock)
    assert decoded.tokens == expected
    assert decoded.emitted == (at,) and decoded.accepted == (at,)


def test_an_eos_as_the_first_token_needs_no_verify_step(target: FrozenTarget, prompt_P: Tensor, clock: Clock) -> None:
    first = decode(target, prompt_P, None, GREEDY, 0, clock).tokens[0]
    decoded = decode(target, prompt_P, None, replace(GREEDY, eos_ids=(first,)), 0, clock)
    assert decoded.tokens == (first,) and decoded.emitted == ()


def test_samples_depend_on_seed_prompt_number_and_output_index_alone(
    target: FrozenTarget, prompt_P: Tensor, clock: Clock
) -> None:
    text = decode(target, prompt_P, None, SAMPLED, 0, clock).tokens
    assert decode(target, prompt_P, None, SAMPLED, 0, clock).tokens == text
    assert decode(target, prompt_P, None, replace(SAMPLED, max_new_tokens=12), 0, clock).tokens == text[:12]
    assert decode(target, prompt_P, None, SAMPLED, 1, clock).tokens != text
    assert decode(target, prompt_P, None, replace(SAMPLED, seed=1), 0, clock).tokens != text


def test_samples_follow_the_distribution_at_its_temperature() -> None:
    logits_V = torch.tensor([2.0, 0.0, -1.0, 1.0])
    uniforms = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    chosen = choose(logits_V.expand(10_000, 4), 2.0, uniforms)
    shares = chosen.bincount(minlength=4) / 10_000
    torch.testing.assert_close(shares, torch.softmax(logits_V / 2.0, dim=-1), rtol=0, atol=2e-4)


@pytest.mark.parametrize("n_tokens", [10, 49, 1000])
def test_the_largest_random_number_still_names_a_token(n_tokens: int) -> None:
    almost_one = torch.tensor([1.0 - 2**-53], dtype=torch.float64)
    assert choose(torch.zeros(1, n_tokens), 1.0, almost_one).item() == n_tokens - 1


def test_an_impossible_token_is_not_drawn_by_the_smallest_random_number() -> None:
    logits_1V = torch.tensor([[-torch.inf, 0.0, 0.0]])
    assert choose(logits_1V, 1.0, torch.zeros(1, dtype=torch.float64)).item() == 1


def test_a_target_whose_cache_cannot_go_back_is_refused_in_one_line(
    target: FrozenTarget, prompt_P: Tensor, guesser: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DynamicCache, "is_croppable", False)
    with pytest.raises(
        ValueError, match=r"^target\.path must name a model whose cache can drop rejected tokens, Qwen3"
    ):
        decode(target, prompt_P, guesser(4), GREEDY, 0, clock)
    assert len(decode(target, prompt_P, None, GREEDY, 0, clock).tokens) == 24


def test_plain_decoding_never_captures_or_crops(
    target: FrozenTarget, prompt_P: Tensor, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("plain decoding paid for speculation")

    monkeypatch.setattr(TargetSession, "drop", refuse)
    monkeypatch.setattr("dflash_exp.target._captured_by", refuse)
    assert len(decode(target, prompt_P, None, GREEDY, 0, clock).tokens) == 24


def test_each_step_is_one_forward_of_the_target(
    target: FrozenTarget, prompt_P: Tensor, oracle: Make, clock: Clock
) -> None:
    plain = decode(target, prompt_P, None, GREEDY, 0, clock)
    widths: list[int] = []
    head = target.model.get_output_embeddings()
    assert isinstance(head, nn.Module)
    head.register_forward_hook(lambda module, inputs, output: widths.append(output.shape[1]))
    decoded = decode(target, prompt_P, oracle(plain.tokens, 5, 8, ERRORS), GREEDY, 0, clock)
    assert len(widths) == 1 + len(decoded.emitted)
    assert widths[:2] == [1, 8], "the head reads one position of the prompt and every one of a block"


def test_settings_out_of_range_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^prompts\.max_new_tokens must be >= 1, got 0; "):
        replace(GREEDY, max_new_tokens=0)
    with pytest.raises(ValueError, match=r"^temperature must be >= 0, got -1\.0; "):
        replace(GREEDY, temperature=-1.0)
