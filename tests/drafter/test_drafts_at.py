"""Drafts at many places of a known text are those of a session that has come so far."""

import pytest
import torch

from dflash_exp.drafter.session import DraftSession, drafts_at


@pytest.mark.parametrize("slots_per_pass", [1, 12, 10_000])
def test_drafts_at_many_positions_are_those_of_a_session_that_has_come_so_far(kit, monkeypatch, slots_per_pass):
    monkeypatch.setattr("dflash_exp.drafter.session.HEAD_LOGITS", 5 * kit.shape.vocab_size)
    drafter, text = kit.drafter(), kit.sequence(3, 30)
    session, expected = DraftSession(drafter), []
    for at in range(4, 30):
        session.extend(text.features_LF[:4] if at == 4 else text.features_LF[at - 1 : at])
        expected.append(session.propose(int(text.tokens_L[at])).tolist())
    assert len({tuple(draft) for draft in expected}) > 5, "the test says little of a drafter that repeats itself"
    drafts_AS = drafts_at(drafter, text.features_LF[:29], text.tokens_L, torch.arange(4, 30), slots_per_pass)
    assert drafts_AS.dtype == torch.int64 and drafts_AS.tolist() == expected
    some_AS = drafts_at(drafter, text.features_LF, text.tokens_L, torch.tensor([5, 11, 29]), slots_per_pass)
    assert some_AS.tolist() == [expected[1], expected[7], expected[25]]
    assert not drafts_AS.requires_grad and all(p.grad is None for p in drafter.parameters())


def test_a_draft_without_the_features_before_it_is_refused_in_one_line(kit):
    drafter, text = kit.drafter(), kit.sequence(3, 30)
    assert len(drafts_at(drafter, text.features_LF[:7], text.tokens_L, torch.tensor([3, 7]), 64)) == 2
    with pytest.raises(ValueError, match=r"^a draft at position 8 needs the features of .* before it, got 7; hand in"):
        drafts_at(drafter, text.features_LF[:7], text.tokens_L, torch.tensor([3, 8]), 64)
