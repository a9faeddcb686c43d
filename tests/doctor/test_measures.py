"""What findings rest on, counted by hand."""

import pytest
import torch

from dflash_exp.doctor.measures import Drafted, following, seam, share_at, share_with, surplus, teacher_forced

TEXT_L = torch.tensor([5, 6, 7, 8, 9])


def drafted(*drafts: list[int], supervised_L: torch.Tensor | None = None) -> Drafted:
    """Behind the tokens 0, 1, ..."""
    return Drafted(torch.tensor(drafts), TEXT_L, torch.arange(len(drafts)), supervised_L)


def test_teacher_forced_counts_the_leading_right_tokens_of_each_draft_and_the_bonus() -> None:
    told = teacher_forced([drafted([6, 7, 0], [7, 0, 9], [0, 9, 9])])
    assert told == (1 + (2 + 1 + 0) / 3, [2 / 3, 1 / 3, 0.0])
    assert teacher_forced([]) is None


def test_what_is_not_supervised_or_beyond_the_end_is_not_right() -> None:
    supervised_L = torch.tensor([False, True, False, True, True])
    assert teacher_forced([drafted([6, 7, 8], supervised_L=supervised_L)]) == (2.0, [1.0, 0.0, 0.0])
    end = Drafted(torch.tensor([[9, 9, 9]]), TEXT_L, torch.tensor([3]))
    assert teacher_forced([end]) == (2.0, [1.0, 0.0, 0.0])


def test_a_moved_draft_is_found_where_it_stands_and_slot_1_is_left_out() -> None:
    earlier = [drafted([5, 6, 7], [6, 7, 8])]  # each the token before the one asked for
    assert [share_at(earlier, shift) for shift in (-1, 0, 1)] == [1.0, 0.0, 0.0]
    assert following(earlier[0], 1)[1].tolist() == [[True, True, True], [True, True, False]]
    assert share_at([drafted([6, 0, 0])], 0) == 0.0 and share_at([], 0) == 0.0


def test_surplus_is_nll_less_entropy_of_the_supervised_tokens() -> None:
    even = torch.zeros(1, 4)  # entropy log 4, every token costs log 4
    sure = torch.tensor([[100.0, 0.0, 0.0, 0.0]])  # entropy 0; token 1 costs 100
    logits_LV = torch.cat([even, sure, sure])
    nats, n_tokens = surplus(logits_LV, torch.tensor([0, 3, 1]), torch.tensor([True, True, True]))
    assert n_tokens == 2 and nats == pytest.approx(100.0, abs=1e-4)
    assert surplus(logits_LV, torch.tensor([0, 3, 1]), torch.tensor([True, True, False])) == pytest.approx((0.0, 1))


def test_a_seam_is_what_all_prompts_end_with_and_the_markup_that_all_responses_begin_with() -> None:
    never, from_50_on = (lambda _: False), (lambda token: token >= 50)
    assert seam([[1, 2, 3], [4, 2, 3]], [[7, 8, 1], [7, 8, 2]], never) == [2, 3]
    assert seam([[1, 2, 3], [4, 2, 3]], [[7, 50, 8, 1], [7, 50, 8, 2]], from_50_on) == [2, 3, 7, 50]
    assert seam([[1], [2]], [[3], [4]], never) == [] and seam([[1, 2, 3]], [[7]], never) == [], (
        "one prompt says nothing of a template"
    )
    assert len(seam([[50] * 40] * 2, [[50] * 40] * 2, from_50_on)) == 16 + 4


def test_what_a_benchmark_asks_of_every_prompt_is_no_template() -> None:
    assert seam([[1, 9, 8, 51, 2, 52, 3], [4, 9, 8, 51, 2, 52, 3]], [[7], [7]], lambda token: token > 50) == [
        51,
        2,
        52,
        3,
    ]


def test_the_share_of_texts_with_a_seam() -> None:
    texts = [[1, 2, 3, 4], [2, 3], [3, 2], [1]]
    assert share_with(texts, [2, 3]) == 0.5 and share_with(texts, []) == 1.0 and share_with([], [1]) == 1.0
