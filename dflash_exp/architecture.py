"""What the house must know of a transformers causal LM: its sizes, its layers, whether its RoPE may be trained on.

In: a configuration or a model. Out: plain numbers and modules found by structure, not by name, so that an architecture
nobody has heard of works as long as it keeps its decoder layers in one list. What does not fit is refused in one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class TargetShape:
    """The sizes of a target: what a drafter takes over, and what a plan counts with."""

    hidden_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    tied_embeddings: bool
    """The head is the embedding."""


def target_shape(config: PretrainedConfig) -> TargetShape:
    """Read the sizes from a transformers configuration; what an architecture does not state follows from the rest."""
    text = config.get_text_config(decoder=True)
    stated = text.to_dict()
    n_heads = text.num_attention_heads
    return TargetShape(
        hidden_size=text.hidden_size,
        n_layers=text.num_hidden_layers,
        n_heads=n_heads,
        n_kv_heads=stated.get("num_key_value_heads") or n_heads,
        head_dim=stated.get("head_dim") or text.hidden_size // n_heads,
        intermediate_size=stated.get("intermediate_size") or 4 * text.hidden_size,
        vocab_size=text.vocab_size,
        rms_norm_eps=stated.get("rms_norm_eps") or 1e-6,
        rope_theta=float(_rope_settings(text)[0].get("rope_theta", 10_000.0)),
        tied_embeddings=bool(stated.get("tie_word_embeddings", True)),
    )


def _rope_settings(text: PretrainedConfig) -> list[dict[str, Any]]:
    """The RoPE settings of a text model: one, or one per layer type, full attention first."""
    stated = text.to_dict().get("rope_parameters") or {}
    per_layer_type = {name: settings for name, settings in stated.items() if isinstance(settings, dict)}
    if not per_layer_type:
        return [stated]
    return [per_layer_type[name] for name in sorted(per_layer_type, key=lambda name: name != "full_attention")]


def check_rope(config: PretrainedConfig) -> None:
    """Refuse RoPE whose frequencies depend on the longest sequence of the batch (ValueError)."""
    for settings in _rope_settings(config.get_text_config(decoder=True)):
        kind = settings.get("rope_type") or "default"
        if "dynamic" in kind or kind == "longrope":
            raise ValueError(
                f"target.path must name a model whose RoPE frequencies are fixed, got rope_type {kind!r}, in which a "
                "token's features depend on the longest sequence of its batch; choose another target"
            )


def check_taps(taps: Sequence[int], n_layers: int) -> tuple[int, ...]:
    """The taps as a tuple; ValueError unless they ascend strictly within 0 .. n_layers - 1."""
    chosen = tuple(taps)
    if not chosen or list(chosen) != sorted(set(chosen)) or chosen[0] < 0 or chosen[-1] >= n_layers:
        raise ValueError(
            f"drafter.taps must be ascending layers within 0..{n_layers - 1}, got {list(chosen)}: the target has "
            f"{n_layers} layers; lower drafter.taps or choose a deeper target"
        )
    return chosen


def check_layer_split(layer_split: int, n_layers: int) -> None:
    """ValueError for more devices than layers."""
    if layer_split > n_layers:
        raise ValueError(
            f"target.layer_split must be at most the target's layers, got {layer_split} for {n_layers}; lower it"
        )


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers of any causal LM: the one outermost ModuleList as long as the configuration has layers.

    Raises ValueError when there is none, or when several could be meant.
    """
    n_layers = model.config.get_text_config(decoder=True).num_hidden_layers
    found: dict[str, nn.ModuleList] = {}
    for name, module in model.get_decoder().named_modules():
        is_inside = any(name.startswith(f"{outer}.") for outer in found)
        if isinstance(module, nn.ModuleList) and len(module) == n_layers and not is_inside:
            found[name] = module
    if len(found) != 1:
        raise ValueError(
            f"target.path must name a model with one list of {n_layers} decoder layers, {type(model).__name__} has "
            f"{sorted(found) or 'none'}; choose another target"
        )
    return next(iter(found.values()))


def final_norm(model: PreTrainedModel) -> nn.Module | None:
    """The last child of the decoder that is a norm: one parameter, `weight`, of the hidden size. None without one."""
    hidden_size = model.config.get_text_config(decoder=True).hidden_size
    norms = [
        child
        for child in model.get_decoder().children()
        if [(name, tuple(weight.shape)) for name, weight in child.named_parameters()] == [("weight", (hidden_size,))]
    ]
    return norms[-1] if norms else None
