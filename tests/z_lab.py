"""z-lab's drafter read and run by the letter of its description, without a line of ours.

`from_pretrained` builds what config.json states and takes exactly the weights of that; `forward` is the drafter of
arXiv:2602.06036 in plain tensors: fc and hidden_norm over tapped `hidden_states[l + 1]`, context in keys and values
only, through the same projections as the block, k_norm over both, RoPE at absolute positions, nothing causal inside a
block.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor


@dataclass(frozen=True)
class ZLabDrafter:
    config: dict[str, Any]
    weights: dict[str, Tensor]

    @property
    def target_layer_ids(self) -> list[int]:
        return self.config["dflash_config"]["target_layer_ids"]

    def context_feature(self, hidden_states: tuple[Tensor, ...]) -> Tensor:
        """Of what transformers returns for `output_hidden_states`: [T, taps x hidden]."""
        return torch.cat([hidden_states[layer + 1][0] for layer in self.target_layer_ids], dim=-1)

    def forward(self, features_TF: Tensor, noise_KH: Tensor) -> Tensor:
        """Hidden states of a block that follows T tokens, [K, H]."""
        config, n_context = self.config, len(features_TF)
        context = self.norm(features_TF @ self.weights["fc.weight"].T, "hidden_norm")
        positions = torch.arange(n_context + len(noise_KH))
        x = noise_KH
        for layer in (f"layers.{i}" for i in range(config["num_hidden_layers"])):
            x = x + self.attention(layer, self.norm(x, f"{layer}.input_layernorm"), context, positions)
            x = x + self.mlp(f"{layer}.mlp", self.norm(x, f"{layer}.post_attention_layernorm"))
        return self.norm(x, "norm")

    def attention(self, layer: str, x: Tensor, context: Tensor, positions: Tensor) -> Tensor:
        n_heads, n_kv = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        name, both = f"{layer}.self_attn", torch.cat([context, x])
        q = self.norm(self.heads(x, f"{name}.q_proj", n_heads), f"{name}.q_norm")
        k = self.norm(self.heads(both, f"{name}.k_proj", n_kv), f"{name}.k_norm")
        v = self.heads(both, f"{name}.v_proj", n_kv)
        q, k = self.turn(q, positions[-len(x) :]), self.turn(k, positions)
        k, v = (one.repeat_interleave(n_heads // n_kv, dim=1) for one in (k, v))
        scores = torch.einsum("qhe,khe->hqk", q, k) / self.config["head_dim"] ** 0.5
        mixed = torch.einsum("hqk,khe->qhe", scores.softmax(-1), v)
        return mixed.flatten(1) @ self.weights[f"{name}.o_proj.weight"].T

    def mlp(self, name: str, x: Tensor) -> Tensor:
        gate, up, down = (self.weights[f"{name}.{part}_proj.weight"].T for part in ("gate", "up", "down"))
        return (F.silu(x @ gate) * (x @ up)) @ down

    def heads(self, x: Tensor, name: str, n_heads: int) -> Tensor:
        return (x @ self.weights[f"{name}.weight"].T).unflatten(1, (n_heads, self.config["head_dim"]))

    def norm(self, x: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.weights[f"{name}.weight"]

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        half = self.config["head_dim"] // 2
        frequencies = self.config["rope_parameters"]["rope_theta"] ** (-torch.arange(half) / half)
        angles = (positions[:, None] * frequencies)[:, None]
        cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def from_pretrained(folder: Path) -> ZLabDrafter:
    """Raises KeyError for what config.json does not state, AssertionError unless the weights are exactly its own."""
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == (["DFlashDraftModel"], "qwen3")
    assert config["layer_types"] == ["full_attention"] * config["num_hidden_layers"] and config["is_causal"] is False
    weights = load_file(folder / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == shapes_of(config)
    return ZLabDrafter(config, weights)


def shapes_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every weight by name, as the description lists them: no prefix, no embedding, no head, no buffers."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    taps = len(config["dflash_config"]["target_layer_ids"])
    of_layer = {
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries), "self_attn.q_norm": (head,), "self_attn.k_norm": (head,),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    shapes = {"fc.weight": (hidden, taps * hidden), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        shapes |= {f"layers.{i}.{name}.weight": shape for name, shape in of_layer.items()}
    return shapes
