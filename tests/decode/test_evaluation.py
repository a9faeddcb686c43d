"""The figures of evaluation.json, worked out by hand."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from dflash_exp.decode import DecodeConfig, Decoded, Drafting
from dflash_exp.evaluation import DecodedPair, Hosts, decode_pairs, evaluation, figures, repeats_itself
from dflash_exp.ranks import Alone, share_out
from dflash_exp.stop import Stopped
from dflash_exp.target import FrozenTarget

VARIED = tuple(range(9))
LOOPED = (1, 2, 1, 2, 1, 2, 1, 2)


def pair(tokens: tuple[int, ...], accepted: tuple[int, ...], plain_s: float, dflash_s: float) -> DecodedPair:
    plain = Decoded(tokens, (1,) * (len(tokens) - 1), (0,) * (len(tokens) - 1), plain_s)
    return DecodedPair(plain, Decoded(tokens, tuple(n + 1 for n in accepted), accepted, dflash_s))


# 9 tokens: 1 + (4 + 1 + 3) in 3 steps of 2 s; 8 tokens: 1 + (4 + 3) in 2 steps of 1.5 s
PAIRS = [pair(VARIED, (3, 0, 2), plain_s=10.0, dflash_s=6.0), pair(LOOPED, (3, 2), plain_s=7.0, dflash_s=2.5)]


def test_tau_and_speedup_are_as_worked_out_by_hand() -> None:
    found = figures(PAIRS, block_size=4)
    assert found.tau_pooled == pytest.approx((8 + 7) / 5)
    assert found.tau_macro == pytest.approx((8 / 3 + 7 / 2) / 2)
    assert found.accepted_at == pytest.approx([4 / 5, 4 / 5, 2 / 5])
    assert found.plain_tokens_per_s == pytest.approx(17 / 17)
    assert found.dflash_tokens_per_s == pytest.approx(17 / 8.5)
    assert found.speedup == pytest.approx(2.0)
    assert (found.lossless, found.prompts, found.tokens) == ("2/2", 2, 17)


def test_tau_is_one_more_than_the_accepted_shares_add_up_to() -> None:
    found = figures(PAIRS, block_size=4)
    assert found.tau_pooled is not None and found.accepted_at is not None
    assert found.tau_pooled == pytest.approx(1 + sum(found.accepted_at))


def test_a_text_that_differs_in_one_token_is_not_lossless() -> None:
    changed = Decoded((*VARIED[:-1], 63), (4, 1, 3), (3, 0, 2), 6.0)
    assert figures([DecodedPair(PAIRS[0].plain, changed), PAIRS[1]], block_size=4).lossless == "1/2"


def test_a_text_without_verify_steps_counts_in_the_rates_only() -> None:
    found = figures([*PAIRS, pair((5,), (), plain_s=1.0, dflash_s=1.0)], block_size=4)
    assert found.tau_pooled == pytest.approx(15 / 5) and found.tau_macro == pytest.approx((8 / 3 + 7 / 2) / 2)
    assert found.tokens == 18 and found.plain_tokens_per_s == pytest.approx(18 / 18)


def test_each_prompt_has_a_row_of_its_own() -> None:
    rows = evaluation(PAIRS, 4, 0.0, "step-1")["per_prompt"]
    assert rows == [
        {"loops": False, "equal": True, "tokens": 9, "emitted": 8, "verify_steps": 3, "plain_s": 10.0, "dflash_s": 6.0},
        {"loops": True, "equal": True, "tokens": 8, "emitted": 7, "verify_steps": 2, "plain_s": 7.0, "dflash_s": 2.5},
    ]


def test_nothing_decoded_gives_no_figures() -> None:
    found = figures([], block_size=4)
    assert (found.tau_pooled, found.tau_macro, found.accepted_at, found.speedup) == (None, None, None, None)
    assert (found.lossless, found.prompts, found.tokens) == ("0/0", 0, 0)


# aaaaa: 1 of 3 distinct; 4 of 8 is half, not under it; 3 of 7 is under it
@pytest.mark.parametrize(
    ("tokens", "loops"),
    [
        ((1, 1, 1, 1, 1), True),
        ((1, 2, 3, 4, 1, 2, 3, 4, 1, 2), False),
        ((1, 2, 3, 1, 2, 3, 1, 2, 3), True),
        (VARIED, False),
        ((1, 1), False),
        ((), False),
    ],
)
def test_a_text_loops_when_fewer_than_half_of_its_3_grams_are_distinct(tokens: tuple[int, ...], loops: bool) -> None:
    assert repeats_itself(tokens) == loops


def test_prompts_are_split_by_whether_the_plain_text_loops() -> None:
    found = evaluation(PAIRS, block_size=4, temperature=0.0, checkpoint="step-00000500")
    keys = "tau_pooled tau_macro accepted_at speedup plain_tokens_per_s dflash_tokens_per_s lossless prompts tokens"
    assert set(found) == {*keys.split(), "looping", "not_looping", "per_prompt", "temperature", "checkpoint"}
    assert found["temperature"] == 0.0 and found["checkpoint"] == "step-00000500"
    looping, not_looping = found["looping"], found["not_looping"]
    assert isinstance(looping, dict) and isinstance(not_looping, dict)
    assert set(looping) == set(not_looping) == set(keys.split())
    assert looping["tau_pooled"] == pytest.approx(7 / 2) and not_looping["tau_pooled"] == pytest.approx(8 / 3)
    assert looping["speedup"] == pytest.approx(2.8) and not_looping["speedup"] == pytest.approx(10 / 6)


def hosts(
    clock: Callable[[], float],
    progress: Callable[[int, int], None] = lambda done, n: None,
    asked_to_stop: Callable[[], bool] = lambda: False,
) -> Hosts:
    return Hosts(clock, progress, asked_to_stop, partial(share_out, Alone()))


def test_decoding_stops_where_it_is_asked_to(
    target: FrozenTarget, guesser: Callable[..., Drafting], clock: Callable[[], float]
) -> None:
    config = DecodeConfig(max_new_tokens=9, temperature=0.0, seed=0, eos_ids=())
    done: list[int] = []
    asked = hosts(clock, lambda n, _: done.append(n), lambda: len(done) == 2)
    with pytest.raises(Stopped):
        decode_pairs(target, lambda: guesser(4), [torch.tensor([4])] * 5, config, asked)
    assert done == [1, 2]


def test_every_prompt_is_decoded_both_ways_and_progress_is_told(
    target: FrozenTarget, guesser: Callable[..., Drafting], clock: Callable[[], float]
) -> None:
    prompts: list[Tensor] = [torch.tensor([3, 1]), torch.tensor([8]), torch.tensor([60, 2, 2])]
    config = DecodeConfig(max_new_tokens=9, temperature=0.0, seed=0, eos_ids=())
    told: list[tuple[int, int]] = []
    pairs = decode_pairs(target, lambda: guesser(4), prompts, config, hosts(clock, lambda *n: told.append(n)))
    found = evaluation(pairs, 4, 0.0, "latest")
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert (found["lossless"], found["prompts"], found["tokens"]) == ("3/3", 3, 27)
    # the clock gives every text one second
    assert found["plain_tokens_per_s"] == found["dflash_tokens_per_s"] == 9 and found["speedup"] == 1


def test_sampled_texts_equal_plain_sampling_for_every_prompt(
    target: FrozenTarget, guesser: Callable[..., Drafting], clock: Callable[[], float]
) -> None:
    prompts = [torch.tensor([4, 4])] * 4
    config = DecodeConfig(max_new_tokens=9, temperature=1.0, seed=5, eos_ids=())
    found = evaluation(decode_pairs(target, lambda: guesser(4), prompts, config, hosts(clock)), 4, 1.0, "latest")
    assert found["lossless"] == "4/4" and found["temperature"] == 1.0


def test_no_prompts_give_an_empty_evaluation(
    target: FrozenTarget, guesser: Callable[..., Drafting], clock: Callable[[], float]
) -> None:
    config = DecodeConfig(max_new_tokens=9, temperature=0.0, seed=0, eos_ids=())
    found = evaluation(decode_pairs(target, lambda: guesser(4), [], config, hosts(clock)), 4, 0.0, "latest")
    assert found["prompts"] == 0 and found["tau_pooled"] is None
