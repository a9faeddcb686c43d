"""The drafter equals its dense definition, and a block sees its own past and itself only."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from dflash_exp.drafter.layout import locate_anchors
from dflash_exp.drafter.model import DrafterConfig, initialise, resolve_shape
from dflash_exp.drafter.session import DraftSession
from dflash_exp.drafter.shape import target_layer_ids

CPU = torch.device("cpu")


def forward(drafter, features):
    anchors = locate_anchors(features.batch, drafter.shape.block_size)
    context = drafter.context(features.features_PF[anchors.context_rows_BT])
    return drafter(context, anchors.slice(0, len(anchors.position_A), drafter.shape.n_kv_heads, CPU))


@pytest.mark.parametrize("lengths", [[40], [9, 23, 40, 17, 31, 5], [12] * 7, [4, 70, 6]])
@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_hidden_states_and_gradients_equal_the_dense_oracle(kit, lengths, n_layers):
    drafter = kit.drafter(replace(kit.shape, n_layers=n_layers))
    features = kit.batch_of([kit.sequence(row, n) for row, n in enumerate(lengths)], n_anchors=37)
    ours, oracle = forward(drafter, features), kit.dense_hidden(drafter, features)
    torch.testing.assert_close(ours, oracle, atol=1e-11, rtol=0)
    direction = torch.randn(ours.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (ours * direction).sum().backward()
    gradients = kit.gradients_of(drafter)
    (oracle * direction).sum().backward()
    assert kit.relative_difference(gradients, kit.gradients_of(drafter)) < 1e-11
    assert len(gradients) == len(list(drafter.parameters()))


def test_an_anchor_at_the_first_token_needs_no_context(kit):
    drafter, features = kit.drafter(), kit.batch_of([kit.sequence(1, 9)])
    only_first = replace(features.batch, anchor_row_A=torch.tensor([0]), anchor_position_A=torch.tensor([0]))
    features = replace(features, batch=only_first)
    ours = forward(drafter, features)
    torch.testing.assert_close(ours, kit.dense_hidden(drafter, features), atol=1e-12, rtol=0)
    kit.step_of(drafter).accumulate(features)
    assert all(bool(gradient.isfinite().all()) for gradient in kit.gradients_of(drafter).values())


def test_changing_one_anchors_token_leaves_every_other_block_bitwise_equal(kit):
    drafter, features = kit.drafter(), kit.batch_of([kit.sequence(1, 30), kit.sequence(2, 21)])
    before = forward(drafter, features)
    anchors = locate_anchors(features.batch, 4)
    token_A = anchors.token_A.clone()
    token_A[5] = (token_A[5] + 1) % 40
    changed = replace(anchors, token_A=token_A)
    context = drafter.context(features.features_PF[anchors.context_rows_BT])
    after = drafter(context, changed.slice(0, len(token_A), drafter.shape.n_kv_heads, CPU))
    same_A = (before == after).flatten(1).all(1)
    assert not same_A[5] and same_A.sum() == len(same_A) - 1


@pytest.mark.parametrize("perturbed", [0, 7, 20, 29])
def test_a_block_sees_the_context_strictly_before_its_anchor_and_none_after(kit, perturbed):
    drafter, features = kit.drafter(), kit.batch_of([kit.sequence(1, 30), kit.sequence(2, 21)], n_anchors=40)
    before = forward(drafter, features)
    features.features_PF[perturbed] += 1.0
    changed_A = (before != forward(drafter, features)).flatten(1).any(1)
    batch = features.batch
    expected_A = (batch.anchor_row_A == 0) & (batch.anchor_position_A > perturbed)
    assert changed_A.tolist() == expected_A.tolist()


def test_slot_zero_has_no_hidden_state_to_predict_from(kit):
    drafter, features = kit.drafter(), kit.batch_of([kit.sequence(1, 30)])
    n_anchors = len(features.batch.anchor_row_A)
    assert forward(drafter, features).shape == (n_anchors, kit.shape.block_size - 1, kit.shape.hidden_size)


def test_a_session_proposes_what_training_predicts_at_the_same_anchor(kit):
    drafter, one = kit.drafter(), kit.sequence(3, 30)
    features = kit.batch_of([one], n_anchors=40)
    predicted = F.linear(forward(drafter, features), drafter.head_VH).argmax(-1)
    session, committed = DraftSession(drafter), 0
    for row, anchor in enumerate(features.batch.anchor_position_A.tolist()):
        session.extend(one.features_LF[committed:anchor])
        committed = anchor
        proposed = session.propose(int(one.tokens_L[anchor]))
        assert proposed.dtype == torch.int64 and proposed.tolist() == predicted[row].tolist()


def test_a_session_asked_before_any_context_says_what_to_call(kit):
    with pytest.raises(ValueError, match="call extend before propose"):
        DraftSession(kit.drafter()).propose(3)


def test_taps_follow_the_papers_formula():
    assert target_layer_ids(36, 5) == (1, 9, 17, 25, 33)
    assert target_layer_ids(36, 1) == (18,)
    assert target_layer_ids(8, 3) == (1, 3, 5)


def test_a_target_too_shallow_for_the_taps_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^drafter.taps must be 5 different layers, got .* for a target of 6 layers"):
        target_layer_ids(6, 5)


def config(**changes):
    return replace(DrafterConfig(n_layers=2, block_size=8, anchors=64, slots_per_pass=4096, taps=None), **changes)


@pytest.mark.parametrize("key", ["n_layers", "block_size", "anchors", "slots_per_pass"])
def test_a_value_out_of_range_names_its_key(key):
    with pytest.raises(ValueError, match=rf"^drafter\.{key} must be >= \d+, got 0"):
        config(**{key: 0})


def test_the_shape_is_the_targets_with_the_chosen_taps(kit):
    target = replace(kit.shape, n_layers=8)
    assert resolve_shape(config(taps=[1, 3, 5]), target, 49).target_layer_ids == (1, 3, 5)
    assert resolve_shape(config(), target, 49).target_layer_ids == (1, 5)
    assert resolve_shape(config(), target, 49).n_target_layers == 8
    with pytest.raises(ValueError, match=r"^drafter.taps must be ascending layers in 0..7, got \[5, 8\]"):
        resolve_shape(config(taps=[5, 8]), target, 49)
    with pytest.raises(ValueError, match=r"^mask_token_id must be in 0..49, got 50"):
        resolve_shape(config(), target, 50)


def test_parameters_follow_the_seed_alone_and_norms_start_at_one(kit):
    first, second, other = kit.drafter(), kit.drafter(), kit.drafter()
    final_norm_H = torch.linspace(0.5, 1.5, kit.shape.hidden_size).double()
    initialise(first, seed=5, final_norm_H=final_norm_H)
    initialise(second, seed=5, final_norm_H=final_norm_H)
    initialise(other, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.fc.weight, other.fc.weight)
    assert torch.equal(first.norm.weight, final_norm_H) and torch.equal(
        other.norm.weight, torch.ones_like(final_norm_H)
    )
    assert 0.018 < float(first.fc.weight.detach().std()) < 0.022


def test_embedding_and_head_are_neither_trained_nor_saved(kit):
    drafter = kit.drafter()
    assert not {"embed_VH", "head_VH"} & (drafter.state_dict().keys() | dict(drafter.named_parameters()).keys())
    assert drafter.to(torch.float32).head_VH.dtype is torch.float32
