"""A small float64 drafter, sequences for it, and the dense oracle that the drafter must equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_exp.drafter.anchors import candidates, choose_anchors
from dflash_exp.drafter.loss import LossConfig, Reduction
from dflash_exp.drafter.model import Drafter, initialise
from dflash_exp.drafter.passes import GroupedPasses, Passes
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.drafter.step import DrafterStep
from dflash_exp.messages import BatchPlan, TargetFeatures, TokenBatch
from tests.golden_step import Golden, golden_step

SHAPE = DrafterShape(
    hidden_size=24,
    intermediate_size=40,
    n_heads=4,
    n_kv_heads=2,
    head_dim=6,
    n_layers=2,
    block_size=4,
    vocab_size=50,
    mask_token_id=49,
    target_layer_ids=(1, 3),
    rope_theta=100.0,
    rms_norm_eps=1e-6,
    n_target_layers=6,
)


@dataclass(frozen=True)
class Sequence:
    """One conversation with what the target says of it."""

    row: int
    tokens_L: Tensor
    supervised_L: Tensor
    features_LF: Tensor


class NoUpdate:
    """An optimizer that leaves the parameters as they are, and keeps the gradient that it was given."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.given: dict[str, Tensor] = {}

    def step(self) -> None:
        self.given = gradients_of(self._drafter)


def sequence(row: int, length: int) -> Sequence:
    """Random tokens and features, a prompt that is not supervised, and a hole of two."""
    draw = torch.Generator().manual_seed(row)
    supervised_L = torch.arange(length) >= min(3, length // 3)
    supervised_L[length // 2 : length // 2 + 2] = False
    features_LF = torch.randn(length, 2 * SHAPE.hidden_size, dtype=torch.float64, generator=draw)
    return Sequence(row, torch.randint(0, 49, (length,), generator=draw), supervised_L, features_LF)


def batch_of(sequences: list[Sequence], n_anchors: int = 20, padding: int = 0) -> TargetFeatures:
    """The sequences as one batch, with `padding` columns more than needed; padding holds rubbish."""
    chosen = [choose_anchors(7, 0, s.row, candidates(s.supervised_L.numpy()), n_anchors) for s in sequences]
    width = max(len(s.tokens_L) for s in sequences) + padding
    batch = TokenBatch(
        plan=BatchPlan(0, 0, 0, 0, 0, np.array([s.row for s in sequences])),
        tokens_BT=torch.stack([F.pad(s.tokens_L, (0, width - len(s.tokens_L)), value=13) for s in sequences]),
        supervised_BT=torch.stack([F.pad(s.supervised_L, (0, width - len(s.tokens_L))) for s in sequences]),
        lengths_B=torch.tensor([len(s.tokens_L) for s in sequences]),
        anchor_row_A=torch.cat([torch.full((len(a),), row) for row, a in enumerate(chosen)]),
        anchor_position_A=torch.from_numpy(np.concatenate(chosen)),
    )
    return TargetFeatures(batch, torch.cat([s.features_LF for s in sequences]))


def dense_hidden(drafter: Drafter, features: TargetFeatures) -> Tensor:
    """The drafter as the paper writes it: one dense mask over all slots and all context, autograd, no shortcuts."""
    shape, weights, batch = drafter.shape, dict(drafter.named_parameters()), features.batch
    size = shape.block_size
    lengths = batch.lengths_B.tolist()
    document_P = torch.repeat_interleave(torch.arange(len(lengths)), batch.lengths_B)
    position_P = torch.cat([torch.arange(n) for n in lengths])
    n_blocks = len(batch.anchor_row_A)
    block_S = torch.arange(n_blocks).repeat_interleave(size)
    position_S = (batch.anchor_position_A[:, None] + torch.arange(size)).flatten()
    sees_context = (document_P == batch.anchor_row_A[block_S, None]) & (
        position_P < batch.anchor_position_A[block_S, None]
    )
    sees = torch.cat([sees_context, block_S[:, None] == block_S], dim=1)
    tokens_AK = torch.full((n_blocks, size), shape.mask_token_id)
    tokens_AK[:, 0] = batch.tokens_BT[batch.anchor_row_A, batch.anchor_position_A]

    def norm(x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + shape.rms_norm_eps) * weights[name]

    def turned(x: Tensor, positions: Tensor) -> Tensor:
        inverse = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).to(x) / shape.head_dim)
        angle = torch.cat([positions[:, None] * inverse] * 2, dim=-1)[:, None]
        low, high = x.chunk(2, dim=-1)
        return x * angle.cos() + torch.cat([-high, low], dim=-1) * angle.sin()

    context = norm(features.features_PF @ weights["fc.weight"].T, "hidden_norm.weight")
    x = drafter.embed_VH[tokens_AK.flatten()]
    for i in range(shape.n_layers):
        at = f"layers.{i}."
        h = norm(x, at + "input_layernorm.weight")
        both = torch.cat([context, h])
        q = (h @ weights[at + "self_attn.q_proj.weight"].T).view(-1, shape.n_heads, shape.head_dim)
        k = (both @ weights[at + "self_attn.k_proj.weight"].T).view(-1, shape.n_kv_heads, shape.head_dim)
        v = (both @ weights[at + "self_attn.v_proj.weight"].T).view(-1, shape.n_kv_heads, shape.head_dim)
        q = turned(norm(q, at + "self_attn.q_norm.weight"), position_S)
        k = turned(norm(k, at + "self_attn.k_norm.weight"), torch.cat([position_P, position_S]))
        k, v = (y.repeat_interleave(shape.n_heads // shape.n_kv_heads, dim=1) for y in (k, v))
        scores = torch.einsum("qhe,khe->hqk", q, k) / shape.head_dim**0.5
        p = scores.masked_fill(~sees, -torch.inf).softmax(-1)
        attended = torch.einsum("hqk,khe->qhe", p, v).flatten(1)
        x = x + attended @ weights[at + "self_attn.o_proj.weight"].T
        h = norm(x, at + "post_attention_layernorm.weight")
        gated = F.silu(h @ weights[at + "mlp.gate_proj.weight"].T) * (h @ weights[at + "mlp.up_proj.weight"].T)
        x = x + gated @ weights[at + "mlp.down_proj.weight"].T
    return norm(x, "norm.weight").view(n_blocks, size, -1)[:, 1:]


def random_drafter(shape: DrafterShape = SHAPE) -> Drafter:
    """float64, with weights large enough for attention to matter."""
    draw = torch.Generator().manual_seed(1)
    embed, head = torch.randn(2, shape.vocab_size, shape.hidden_size, dtype=torch.float64, generator=draw)
    drafter = Drafter(shape, embed, head).double()
    initialise(drafter, seed=3)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.mul_(1 + 0.2 * torch.randn(parameter.shape, dtype=torch.float64, generator=draw))
            parameter.mul_(10 if parameter.ndim == 2 else 1)
    return drafter


def step_of(
    drafter: Drafter,
    reduction: Reduction = Reduction.epoch,
    slots_per_pass: int = 10_000,
    passes: Passes | None = None,
) -> DrafterStep:
    passes = passes or GroupedPasses(slots_per_pass)
    return DrafterStep(drafter, LossConfig(reduction, gamma=4.0), NoUpdate(drafter), passes, max_grad_norm=float("inf"))


def gradients_of(drafter: Drafter) -> dict[str, Tensor]:
    """Copies of the gradients, which are cleared."""
    gradients = {name: p.grad for name, p in drafter.named_parameters() if p.grad is not None}
    taken = {name: gradient.clone() for name, gradient in gradients.items()}
    for gradient in gradients.values():
        gradient.zero_()
    return taken


def relative_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Largest relative L2 difference of any tensor."""
    assert a.keys() == b.keys() and a
    return max(float((a[name] - b[name]).norm() / b[name].norm()) for name in a)


@dataclass(frozen=True)
class Kit:
    """The functions above for tests, which cannot import each other under pytest's importlib mode."""

    sequence: Callable[..., Sequence] = sequence
    batch_of: Callable[..., TargetFeatures] = batch_of
    dense_hidden: Callable[[Drafter, TargetFeatures], Tensor] = dense_hidden
    drafter: Callable[..., Drafter] = random_drafter
    step_of: Callable[..., DrafterStep] = step_of
    gradients_of: Callable[[Drafter], dict[str, Tensor]] = gradients_of
    relative_difference: Callable[..., float] = relative_difference
    shape: DrafterShape = SHAPE


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()


@pytest.fixture
def golden() -> Golden:
    return golden_step()
