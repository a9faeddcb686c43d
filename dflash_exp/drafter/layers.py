"""One drafter layer: Qwen3's attention and MLP, with the context entering keys and values only.

In: block hidden states and the fused context. Out: block hidden states. Module names give the state dict the keys that
z-lab's class, vLLM and SGLang load. RMSNorm, RoPE and the MLP have written-out backwards: the first two are an eighth
of a step at hidden 192, and RMSNorm both ways on 2840 rows takes 2.4 ms of one thread where F.rms_norm under autograd
takes 4.5. This of RMSNorm and the MLP's made steps 4 to 6 % shorter.
"""

# A anchors, K block slots, Q query slots (K, or K - 1 in the last layer), H hidden, N query heads, M key/value heads,
# R query heads of a key/value head, E head dim, B sequences, T context tokens

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from dflash_exp.drafter.layout import Attend
from dflash_exp.drafter.shape import DrafterShape


@dataclass(frozen=True)
class Rotation:
    """RoPE's cosines and sines, [..., E / 2], in a shape that broadcasts over what they turn; times a factor where
    `scaled`."""

    cos: Tensor
    sin: Tensor

    def view(self, *shape: int) -> Rotation:
        """The same angles in another shape."""
        return Rotation(self.cos.reshape(shape), self.sin.reshape(shape))

    def scaled(self, factor: float) -> Rotation:
        """The same angles, which also multiply what they turn by `factor`."""
        return Rotation(self.cos * factor, self.sin * factor)

    def last(self, n_slots: int) -> Rotation:
        """The angles [A, K, E / 2] of each block's last slots."""
        return Rotation(self.cos[:, -n_slots:], self.sin[:, -n_slots:])


def rotation(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> Rotation:
    """Angles position / theta^(2i/E), in float32 like transformers' Qwen3 (float64 when `dtype` is float64)."""
    wide = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, head_dim, 2, device=positions.device).to(wide) / head_dim
    angles = positions.to(wide)[..., None] * (1.0 / theta**exponents)
    return Rotation(angles.cos(), angles.sin())


class Linear(nn.Linear):
    """x W^T in x's dtype, whatever the weight is kept in; the weight's gradient arrives in the weight's own."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight.to(input.dtype))


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; computed in fp32 at least."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return _RmsNorm.apply(x, self.weight, self.eps)  # type: ignore[no-any-return]


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        # vector_norm reads x once; pow and mean would write a copy of it.
        rms = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        inverse = rms.square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (wide * inverse).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: FunctionCtx, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, inverse = ctx.saved_tensors  # type: ignore[attr-defined]
        needs_x, needs_weight, _ = ctx.needs_input_grad  # type: ignore[attr-defined]
        product = d_out.to(inverse.dtype) * x
        rows = product.flatten(0, -2)
        d_weight = torch.mv(rows.t(), inverse.flatten()).to(weight.dtype) if needs_weight else None
        if not needs_x:
            return None, d_weight, None
        along = torch.mv(rows, weight.to(rows.dtype)).view_as(inverse).mul_(inverse.pow(3)).mul_(1 / x.shape[-1])
        # the product is done with; a second buffer of its size would have to be fetched into the cache
        d_x = torch.mul(d_out, weight, out=product).mul_(inverse).addcmul_(x, along, value=-1)
        return d_x.to(x.dtype), d_weight, None


@dataclass(frozen=True)
class BlockTurns:
    """Of every slot of the blocks of a pass; that of queries scales them by 1 / sqrt(E), too, in the format that angles
    are in."""

    queries_AK: Rotation
    keys_AK: Rotation


def block_turns(position_A: Tensor, block_size: int, head_dim: int, theta: float, dtype: torch.dtype) -> BlockTurns:
    """Of blocks that begin at these positions."""
    slots_AK = position_A[:, None] + torch.arange(block_size, device=position_A.device)
    turn_AK = rotation(slots_AK, head_dim, theta, dtype)
    return BlockTurns(queries_AK=turn_AK.scaled(1 / math.sqrt(head_dim)), keys_AK=turn_AK)


def rotate(x: Tensor, turn: Rotation) -> Tensor:
    """RoPE with halves as pairs (x[i], x[i + E/2]), as Qwen3 does; the result is contiguous whatever x's strides."""
    return _Rotate.apply(x, turn.cos, turn.sin)  # type: ignore[no-any-return]


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, sign=1.0)

    @staticmethod
    def backward(ctx: FunctionCtx, d_out: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        cos, sin = ctx.saved_tensors  # type: ignore[attr-defined]
        return _turned(d_out, cos, sin, sign=-1.0), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, sign: float) -> Tensor:
    wide = x.to(cos.dtype)
    low, high = wide.chunk(2, dim=-1)
    out = torch.empty(x.shape, dtype=cos.dtype, device=x.device)
    half = x.shape[-1] // 2
    torch.mul(low, cos, out=out[..., :half]).addcmul_(high, sin, value=-sign)
    torch.mul(high, cos, out=out[..., half:]).addcmul_(low, sin, value=sign)
    return out.to(x.dtype)


class Attention(nn.Module):
    """Projections and head norms; keys and values of context and blocks come from the same weights."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.n_kv_heads, self.head_dim = shape.n_kv_heads, shape.head_dim
        self.q_proj = Linear(shape.hidden_size, shape.n_heads * shape.head_dim)
        self.k_proj = Linear(shape.hidden_size, shape.n_kv_heads * shape.head_dim)
        self.v_proj = Linear(shape.hidden_size, shape.n_kv_heads * shape.head_dim)
        self.o_proj = Linear(shape.n_heads * shape.head_dim, shape.hidden_size)
        self.q_norm = RmsNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = RmsNorm(shape.head_dim, shape.rms_norm_eps)

    def keys_values(self, x_xH: Tensor) -> tuple[Tensor, Tensor]:
        """[..., H] -> normalised keys not yet rotated, and values, each [..., M, E]."""
        heads = (*x_xH.shape[:-1], self.n_kv_heads, self.head_dim)
        return self.k_norm(self.k_proj(x_xH).view(heads)), self.v_proj(x_xH).view(heads)

    def queries(self, x_xH: Tensor) -> Tensor:
        """[..., H] -> normalised queries not yet rotated, [..., M, R, E]."""
        return self.q_norm(self.q_proj(x_xH).view(*x_xH.shape[:-1], self.n_kv_heads, -1, self.head_dim))

    def context(self, context_BTH: Tensor, turn_T: Rotation) -> tuple[Tensor, Tensor]:
        """Keys, rotated, and values of the context, each [B, M, T, E]."""
        k_BTME, v_BTME = self.keys_values(context_BTH)
        return rotate(k_BTME.transpose(1, 2), turn_T), v_BTME.transpose(1, 2).contiguous()

    def forward(
        self,
        q_AQMRE: Tensor,
        k_AKME: Tensor,
        v_AKME: Tensor,
        context: tuple[Tensor, Tensor],
        turns: BlockTurns,
        attend: Attend,
    ) -> Tensor:
        """Blocks' attention output after o_proj, [A, Q, H]; queries are the last Q slots of their blocks."""
        n_anchors, n_queries = q_AQMRE.shape[:2]
        size, width = k_AKME.shape[1], self.head_dim // 2
        turn_AQ = turns.queries_AK.last(n_queries)
        q_AMQRE = rotate(q_AQMRE.permute(0, 2, 1, 3, 4), turn_AQ.view(n_anchors, 1, n_queries, 1, width))
        k_AMKE = rotate(k_AKME.transpose(1, 2), turns.keys_AK.view(n_anchors, 1, size, width))
        v_AMKE = v_AKME.transpose(1, 2).contiguous()
        heads_AQMRE = attend(q_AMQRE, k_AMKE, v_AMKE, *context).permute(0, 2, 1, 3, 4)
        return self.o_proj(heads_AQMRE.reshape(n_anchors, n_queries, -1))


class Mlp(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.gate_proj = Linear(shape.hidden_size, shape.intermediate_size)
        self.up_proj = Linear(shape.hidden_size, shape.intermediate_size)
        self.down_proj = Linear(shape.intermediate_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        out = _Mlp.apply(rows, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)
        return out.view_as(x)  # type: ignore[union-attr]


class _Mlp(torch.autograd.Function):
    """Keeps three buffers of the intermediate size where autograd keeps four, and adds the two paths' gradients up in
    the product."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, gate_weight: Tensor, up_weight: Tensor, down_weight: Tensor) -> Tensor:
        gate, up = F.linear(x, gate_weight.to(x.dtype)), F.linear(x, up_weight.to(x.dtype))
        act = F.silu(gate).mul_(up)
        ctx.save_for_backward(x, gate, up, act, gate_weight, up_weight, down_weight)
        return F.linear(act, down_weight.to(x.dtype))

    @staticmethod
    def backward(ctx: FunctionCtx, d_out: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        x, gate, up, act, *weights = ctx.saved_tensors  # type: ignore[attr-defined]
        gate_weight, up_weight, down_weight = (weight.to(x.dtype) for weight in weights)
        d_down = d_out.t() @ act
        d_act = d_out @ down_weight
        d_up = F.silu(gate).mul_(d_act)
        d_gate = torch.ops.aten.silu_backward(d_act.mul_(up), gate)
        d_x = (d_gate @ gate_weight).addmm_(d_up, up_weight)
        d_weights = (d_gate.t() @ x, d_up.t() @ x, d_down)
        return d_x, *(d.to(weight.dtype) for d, weight in zip(d_weights, weights, strict=True))


class Layer(nn.Module):
    """Pre-norm attention over context and block, then pre-norm MLP."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = Mlp(shape)

    def project(self, x_xH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [..., M, R, E], keys and values [..., M, E] of block tokens, before RoPE."""
        normed = self.input_layernorm(x_xH)
        return self.self_attn.queries(normed), *self.self_attn.keys_values(normed)

    def mix(self, x_AQH: Tensor, attended_AQH: Tensor) -> Tensor:
        """The two residual sums: attention's output, then the MLP's."""
        x_AQH = x_AQH + attended_AQH
        return x_AQH + self.mlp(self.post_attention_layernorm(x_AQH))
