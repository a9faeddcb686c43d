"""The drafter's shape, parameters and forward: context into keys and values, blocks through the layers.

In: the target's tapped hidden states and the anchors' tokens. Out: hidden states of slots 1..K-1, ready for the
target's head. Two things are not computed because nobody reads them: in the first layer all mask slots are one token,
so A + 1 tokens are projected, not A * K; in the last layer slot 0 needs only its key and value.
"""

# B sequences, T context tokens, F features (taps x hidden), H hidden, V vocabulary, A anchors, K block slots, S = K - 1

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dflash_exp.drafter.flex import LEAST_HEAD_DIM
from dflash_exp.drafter.layers import Layer, Linear, RmsNorm, block_turns, rotation
from dflash_exp.drafter.layout import BlockLayout
from dflash_exp.drafter.shape import DrafterShape, TargetDims, target_layer_ids

Context = list[tuple[Tensor, Tensor]]
"""Rotated keys and values of the context, each [B, M, T, E], one pair a layer."""


class ComputeDtype(str, Enum):
    """The number format of activations and matrix products; weights, their gradients and the optimizer stay fp32."""

    auto = "auto"
    """bfloat16 for a target in bfloat16, float32 for any other."""
    float32 = "float32"
    bfloat16 = "bfloat16"

    def beside(self, target: torch.dtype) -> torch.dtype:
        """The format for a target in that one: never the device's choice, since a run's identity has no device."""
        narrow = self is ComputeDtype.bfloat16 or (self is ComputeDtype.auto and target is torch.bfloat16)
        return torch.bfloat16 if narrow else torch.float32


class AttentionKind(str, Enum):
    """How blocks attend: the same scores, another order of their sums."""

    auto = "auto"
    """flex where it can be, else grouped."""
    grouped = "grouped"
    """Matrix products over groups of anchors (`attention.py`): everywhere."""
    flex = "flex"
    """One compiled kernel over a packed row (`flex.py`): on CUDA, for heads of 16 numbers or more."""

    def on(self, device_type: str, head_dim: int) -> AttentionKind:
        """`grouped` or `flex`. Raises ValueError where `flex` cannot be."""
        can = device_type == "cuda" and head_dim >= LEAST_HEAD_DIM
        if self is AttentionKind.flex and not can:
            raise ValueError(
                f"drafter.attention=flex must have a CUDA device and heads of >= {LEAST_HEAD_DIM} numbers, got "
                f"{device_type} and {head_dim}: torch has no backward of it elsewhere; say drafter.attention=auto"
            )
        return AttentionKind.flex if can and self is not AttentionKind.grouped else AttentionKind.grouped


@dataclass(frozen=True)
class DrafterConfig:
    """What an experiment chooses; every other dimension is the target's."""

    n_layers: int
    block_size: int
    anchors: int
    """Anchors a sequence, at most."""
    slots_per_pass: int
    """Slots that go forward and backward at once: bounds memory, changes nothing else."""
    taps: list[int] | None
    """Tapped layers of the target, 0-based; null: as many as draft layers, spaced by the paper's formula."""
    compute_dtype: ComputeDtype = ComputeDtype.float32
    """Stated in YAML; the default is for runs begun before there was a choice, which computed in float32."""
    attention: AttentionKind = AttentionKind.grouped
    """Stated in YAML; the default is for runs begun before there was a choice."""
    init_from: str | None = None
    """A folder with a drafter, or a run, to start from; None: random."""

    def __post_init__(self) -> None:
        _at_least("drafter.n_layers", self.n_layers, 1)
        _at_least("drafter.block_size", self.block_size, 2)
        _at_least("drafter.anchors", self.anchors, 1)
        _at_least("drafter.slots_per_pass", self.slots_per_pass, self.block_size)


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{key} must be >= {least}, got {value}; raise {key}")


def tapped_layers(config: DrafterConfig, n_target_layers: int) -> tuple[int, ...]:
    """The target's layers that are tapped, ascending. Raises ValueError for taps that the target does not have."""
    formula = config.taps is None
    ids = target_layer_ids(n_target_layers, config.n_layers) if formula else tuple(config.taps or ())
    if not ids or list(ids) != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= n_target_layers:
        raise ValueError(
            f"drafter.taps must be ascending layers in 0..{n_target_layers - 1}, got {list(ids)};"
            f" the target has {n_target_layers} layers"
        )
    return ids


def resolve_shape(config: DrafterConfig, target: TargetDims, mask_token_id: int) -> DrafterShape:
    """The configuration with the target's dimensions. Raises ValueError for taps that the target does not have."""
    ids = tapped_layers(config, target.n_layers)
    if not 0 <= mask_token_id < target.vocab_size:
        raise ValueError(
            f"mask_token_id must be in 0..{target.vocab_size - 1}, got {mask_token_id}; name an unused id of the"
            " target's vocabulary"
        )
    return DrafterShape(
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        n_heads=target.n_heads,
        n_kv_heads=target.n_kv_heads,
        head_dim=target.head_dim,
        n_layers=config.n_layers,
        block_size=config.block_size,
        vocab_size=target.vocab_size,
        mask_token_id=mask_token_id,
        target_layer_ids=ids,
        rope_theta=target.rope_theta,
        rms_norm_eps=target.rms_norm_eps,
        n_target_layers=target.n_layers,
    )


class Drafter(nn.Module):
    """The trained part: fc, hidden_norm, layers, norm. Embedding and head are the target's, frozen and not saved.

    It computes in the dtype of the two, whatever its parameters are in: matrices are cast where they are used, norms,
    rotations and softmax are done in fp32 at least.
    """

    embed_VH: Tensor
    head_VH: Tensor

    def __init__(self, shape: DrafterShape, embed_VH: Tensor, head_VH: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.n_layers))
        self.fc = Linear(len(shape.target_layer_ids) * shape.hidden_size, shape.hidden_size)
        self.hidden_norm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        self.norm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        # Buffers follow .to(device); not persistent keeps them out of the state dict.
        self.register_buffer("embed_VH", embed_VH.detach(), persistent=False)
        self.register_buffer("head_VH", head_VH.detach(), persistent=False)

    @property
    def compute_dtype(self) -> torch.dtype:
        """What activations and matrix products are in."""
        return self.head_VH.dtype

    def context(self, features_BTF: Tensor, positions_T: Tensor | None = None) -> Context:
        """Every layer's keys and values of tapped hidden states, at those positions (None: 0, 1, ...); they may be of
        any dtype and on another device."""
        features_BTF = features_BTF.to(self.head_VH)  # a target in bf16 may feed a drafter in fp32
        context_BTH = self.hidden_norm(self.fc(features_BTF))
        if positions_T is None:
            positions_T = torch.arange(features_BTF.shape[1], device=features_BTF.device)
        turn_T = rotation(positions_T, self.shape.head_dim, self.shape.rope_theta, features_BTF.dtype)
        return [self._layer(i).self_attn.context(context_BTH, turn_T) for i in range(self.shape.n_layers)]

    def forward(self, context: Context, blocks: BlockLayout) -> Tensor:
        """Hidden states of slots 1..K-1 after the final norm, [A, S, H]."""
        size, last = self.shape.block_size, self.shape.n_layers - 1
        turns = block_turns(blocks.position_A, size, self.shape.head_dim, self.shape.rope_theta, self.compute_dtype)
        mask = blocks.token_A.new_full((1,), self.shape.mask_token_id)
        tokens_nH = F.embedding(torch.cat([blocks.token_A, mask]), self.embed_VH)
        x_AQH = _spread(tokens_nH, size)
        for i, layer_context in enumerate(context):
            layer = self._layer(i)
            q, k, v = layer.project(tokens_nH if i == 0 else x_AQH)
            if i == 0:
                q, k, v = _spread(q, size), _spread(k, size), _spread(v, size)
            if i == last:
                q, x_AQH = q[:, 1:], x_AQH[:, 1:]
            x_AQH = layer.mix(x_AQH, layer.self_attn(q, k, v, layer_context, turns, blocks.attend))
        return self.norm(x_AQH)

    def _layer(self, i: int) -> Layer:
        layer = self.layers[i]
        assert isinstance(layer, Layer)
        return layer


def _spread(rows_nx: Tensor, block_size: int) -> Tensor:
    """A anchors and one mask token -> blocks: [A + 1, ...] -> [A, K, ...]."""
    anchors, mask = rows_nx[:-1, None], rows_nx[-1:, None]
    return torch.cat([anchors, mask.expand(len(anchors), block_size - 1, *mask.shape[2:])], dim=1)


def initialise(drafter: Drafter, seed: int, final_norm_H: Tensor | None = None) -> None:
    """Matrices N(0, 0.02), norms 1, `norm` the target's final norm where given; the same on every device.

    Drawn in fp32 on the CPU in the order of the state dict's sorted names.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in sorted(drafter.named_parameters()):
            if parameter.ndim == 2:
                parameter.copy_(torch.empty(parameter.shape, dtype=torch.float32).normal_(0, 0.02, generator=generator))
            else:
                parameter.fill_(1.0)
        if final_norm_H is not None:
            drafter.norm.weight.copy_(final_norm_H)


def parameter_names(n_layers: int) -> list[str]:
    """The exact keys of a drafter's state dict, sorted: what z-lab's class, vLLM and SGLang load."""
    norms = ["input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"]
    matrices = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    matrices += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    inner = [f"layers.{i}.{name}" for i in range(n_layers) for name in norms + matrices]
    return sorted(f"{name}.weight" for name in ["fc", "hidden_norm", "norm", *inner])
