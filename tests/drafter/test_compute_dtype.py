"""The drafter computing in bf16 over fp32 weights: how far from fp32 it is, and what stays in fp32."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dflash_exp.compose import compose
from dflash_exp.config import identity
from dflash_exp.drafter.attention import block_attention, group_anchors
from dflash_exp.drafter.layers import block_turns, rotate
from dflash_exp.drafter.layout import locate_anchors
from dflash_exp.drafter.loss import head_loss
from dflash_exp.drafter.model import ComputeDtype, Drafter, DrafterConfig, resolve_shape
from dflash_exp.drafter.session import DraftSession, drafts_at
from dflash_exp.models import load
from dflash_exp.optim import build_optimizer
from dflash_exp.target import TargetConfig, TargetDtype

CPU = torch.device("cpu")
BF16 = torch.bfloat16


def computing_in(dtype: torch.dtype, drafter: Drafter) -> Drafter:
    """A drafter with the same weights in fp32, which computes in `dtype`."""
    same = Drafter(drafter.shape, drafter.embed_VH.to(dtype), drafter.head_VH.to(dtype))
    same.load_state_dict(drafter.state_dict())
    return same


def gradient_of(kit, drafter, features, slots_per_pass=10_000):
    step = kit.step_of(drafter, slots_per_pass=slots_per_pass)
    return step.accumulate(features), step.sums.gradient.clone()


@pytest.mark.parametrize("slots_per_pass", [10_000, 16])
def test_the_golden_step_in_bf16_is_near_that_in_fp32(golden, kit, slots_per_pass):
    """Measured: loss 3.1e-4 relative; cosine .99998 of all, .99994 of the worst tensor; norm .3 %."""
    wide_sums, wide = gradient_of(kit, golden.drafter, golden.features)
    narrow = computing_in(BF16, golden.drafter)
    sums, gradient = gradient_of(kit, narrow, golden.features, slots_per_pass)
    assert sums.loss.dtype is gradient.dtype is torch.float32
    assert 1e-6 < abs(float(sums.loss / wide_sums.loss) - 1) < 1e-3
    assert float(F.cosine_similarity(wide, gradient, dim=0)) > 0.9999
    assert float(gradient.norm() / wide.norm()) == pytest.approx(1, abs=0.01)
    for wide_parameter, parameter in zip(golden.drafter.parameters(), narrow.parameters(), strict=True):
        assert wide_parameter.grad is not None and parameter.grad is not None
        assert float(F.cosine_similarity(wide_parameter.grad.flatten(), parameter.grad.flatten(), dim=0)) > 0.999


def test_the_gradient_of_the_context_adds_up_over_many_passes_without_loss(kit):
    """Measured: 1.7e-3 apart; 4.2e-3 where the sum over the passes is in bf16."""
    features = kit.batch_of([kit.sequence(1, 450)], n_anchors=400)
    narrow = computing_in(BF16, kit.drafter().float())
    _, at_once = gradient_of(kit, narrow, features, slots_per_pass=100_000)
    _, one_by_one = gradient_of(kit, narrow, features, slots_per_pass=8)
    assert float((at_once - one_by_one).norm() / at_once.norm()) < 2.8e-3


def test_queries_in_bf16_are_scaled_before_they_are_rounded():
    """Measured: all equal; 74 % where the rounded ones are scaled."""
    turns, draw = block_turns(torch.arange(64), 1, 24, 10000.0, BF16), torch.Generator().manual_seed(0)
    q_A1E, scale = torch.randn(64, 1, 24, generator=draw).to(BF16), 1 / 24**0.5
    wanted = (rotate(q_A1E.float(), turns.keys_AK) * scale).to(BF16)
    assert float((rotate(q_A1E, turns.keys_AK) * scale == wanted).float().mean()) < 0.8
    assert float((rotate(q_A1E, turns.queries_AK) == wanted).float().mean()) > 0.99


def test_attention_in_bf16_sums_in_fp32():
    """Of sequences with 25, 1 and 13 anchors. Measured, relative: 2.4e-3 to 3.8e-3 apart; 4.1e-3 of the blocks' keys
    and 4.4e-3 of the contexts' where the softmax's backward and the contexts' sums are in bf16."""
    counts_B, draw = torch.tensor([25, 1, 13]), torch.Generator().manual_seed(0)
    positions_A = torch.cat([torch.randperm(400, generator=draw)[:n].sort().values for n in counts_B.tolist()])
    groups = group_anchors(counts_B, positions_A, 2, CPU)
    shapes = ((39, 2, 8, 24), (39, 2, 4, 24), (39, 2, 4, 24), (3, 2, 400, 24), (3, 2, 400, 24))
    q_AMYE, *rest = (torch.randn(*shape, generator=draw) for shape in shapes)
    narrow = [x.to(BF16).requires_grad_() for x in (0.05 * q_AMYE, *rest)]
    wide = [x.detach().float().requires_grad_() for x in narrow]
    d_out = torch.randn(shapes[0], generator=draw).to(BF16)
    for inputs in (narrow, wide):
        q, k, v, k_ctx, v_ctx = inputs
        out = block_attention(q, k, v, k_ctx, v_ctx, groups)
        out.backward(d_out.to(out.dtype))
    for one, wanted in zip(narrow, wide, strict=True):
        assert one.grad is not None and wanted.grad is not None
        assert float((one.grad - wanted.grad).norm() / wanted.grad.norm()) < 4e-3


def test_the_loss_is_scaled_in_fp32_not_by_a_scale_in_8_bits():
    scale, draw = 1 / 37.3, torch.Generator().manual_seed(0)
    assert abs(float(torch.tensor(scale).to(BF16)) / scale - 1) > 1e-3
    hidden_NH, head_VH = torch.randn(400, 16, generator=draw).to(BF16), torch.randn(50, 16, generator=draw).to(BF16)
    gradients = []
    for factor in (1.0, scale):
        leaf_NH = hidden_NH.clone().requires_grad_()
        (head_loss(leaf_NH, head_VH, torch.arange(400) % 50, torch.ones(400)).loss * factor).backward()
        assert leaf_NH.grad is not None
        gradients.append(leaf_NH.grad.double().flatten())
    whole, scaled = gradients
    assert float(torch.dot(scaled, whole) / torch.dot(whole, whole)) == pytest.approx(scale, rel=2e-4)


@pytest.mark.parametrize("optim", ["adamw", "muon"])
def test_weights_gradient_and_optimizer_state_stay_in_fp32(golden, kit, optim):
    drafter = computing_in(BF16, golden.drafter)
    before = drafter.fc.weight.detach().clone()
    step = kit.step_of(drafter)
    step.optimizer = optimizer = build_optimizer(compose([f"optim={optim}"]).optim, drafter.named_parameters())
    optimizer.set_share(0.5)
    sums = step.accumulate(golden.features)
    step.finish(sums.weight)
    parts: Any = optimizer.state_dict().values()
    kept = [value for part in parts for state in part["state"].values() for value in state.values()]
    tensors = [*drafter.parameters(), step.sums.buffer, *(value for value in kept if isinstance(value, torch.Tensor))]
    assert len(kept) > len(list(drafter.parameters())) and {tensor.dtype for tensor in tensors} == {torch.float32}
    changed = drafter.fc.weight - before
    assert bool((changed != 0).all()) and bool((changed.abs() < before.abs() * 2**-9).any())  # bf16 would lose these


def test_what_drafts_is_what_was_trained_in_bf16_too(kit):
    drafter, one = computing_in(BF16, kit.drafter().float()), kit.sequence(3, 30)
    features = kit.batch_of([one], n_anchors=40)
    anchors = locate_anchors(features.batch, kit.shape.block_size)
    context = drafter.context(features.features_PF[anchors.context_rows_BT])
    assert {tensor.dtype for pair in context for tensor in pair} == {BF16}
    hidden_ASH = drafter(context, anchors.slice(0, 40, kit.shape.n_kv_heads, CPU))
    assert hidden_ASH.dtype is BF16
    trained_AS = F.linear(hidden_ASH, drafter.head_VH).argmax(-1)
    at_A = features.batch.anchor_position_A
    assert drafts_at(drafter, one.features_LF, one.tokens_L, at_A, 12).tolist() == trained_AS.tolist()
    session = DraftSession(drafter)
    session.extend(one.features_LF[: int(at_A[-1])])
    assert session.propose(int(one.tokens_L[at_A[-1]])).tolist() == trained_AS[-1].tolist()


def test_of_equal_logits_only_the_first_counts_as_right_in_bf16(kit):
    head_VH = torch.tensor([[1.0], [3.0], [3.0], [2.0]], dtype=BF16)
    rows = head_loss(torch.ones(3, 1, dtype=BF16), head_VH, torch.tensor([1, 2, 3]), torch.ones(3))
    assert rows.correct_N.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("compute", "target", "expected"),
    [
        (ComputeDtype.auto, BF16, BF16),
        (ComputeDtype.auto, torch.float32, torch.float32),
        (ComputeDtype.auto, torch.float16, torch.float32),
        (ComputeDtype.auto, torch.float64, torch.float32),
        (ComputeDtype.float32, BF16, torch.float32),
        (ComputeDtype.bfloat16, torch.float32, BF16),
    ],
)
def test_auto_computes_in_bf16_beside_a_target_in_bf16_only(compute, target, expected):
    assert compute.beside(target) is expected


@pytest.mark.parametrize("dtype", [TargetDtype.BFLOAT16, TargetDtype.FLOAT32])
def test_embedding_and_head_are_the_targets_own_where_the_format_agrees_else_one_copy(dtype):
    config = DrafterConfig(n_layers=1, block_size=4, anchors=4, slots_per_pass=64, taps=[1])
    target = load(TargetConfig("embedded", dtype), [CPU], lambda shape, mask_id: resolve_shape(config, shape, mask_id))
    own = target.model.embedding_weight_VH
    shared, copied = (
        target.new_drafter(ComputeDtype.auto),
        target.new_drafter(ComputeDtype.float32 if dtype is TargetDtype.BFLOAT16 else ComputeDtype.bfloat16),
    )
    assert shared.embed_VH.data_ptr() == shared.head_VH.data_ptr() == own.data_ptr()
    assert copied.embed_VH.data_ptr() == copied.head_VH.data_ptr() != own.data_ptr()
    assert shared.compute_dtype is dtype.torch is not copied.compute_dtype
    assert {p.dtype for drafter in (shared, copied) for p in drafter.parameters()} == {torch.float32}


def test_the_format_is_part_of_a_runs_identity():
    names = {identity(compose([f"drafter.compute_dtype={dtype.value}"])) for dtype in ComputeDtype}
    assert len(names) == 3
