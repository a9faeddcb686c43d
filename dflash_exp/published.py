"""A drafter's folder, ours, z-lab's or speculators' -> its shape and weights, or one line on what does not fit.

In: `config.json` and `model.safetensors`. Out: a `DrafterShape`, a drafter that is filled. Nothing is unpickled. Ours
is z-lab's layout, which counts the target's layers from 0 (`target_layer_ids`). speculators has the same keys, perhaps
with the target's own tables beside them, and counts the entries of `hidden_states`, of which entry 0 is the embedding's
output (`aux_hidden_state_layer_ids`): its l + 1 is our l. It does not state the target's depth.

What a published drafter may do and ours does not (sliding windows, scaled RoPE, a smaller vocabulary, softcapped
logits) is refused by name: the weights would load, and draft nonsense.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dflash_exp.drafter.model import Drafter, parameter_names
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.export import SHAPE, WEIGHTS, find_drafter

SPECULATORS = "speculators_model_type"
"""A key that speculators' config.json alone has."""
OF_THE_TARGET = {"embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
"""Tables that speculators' file may hold beside the drafter's weights, copies of the target's."""
PLAIN = {
    "hidden_act": "silu", "attention_bias": False, "is_causal": False, "sample_from_anchor": False,
    "projector_type": "dflash", "shift_label": False, "final_logit_softcapping": None, "output_multiplier": 1.0,
    "input_embedding_scale": 1.0,
}  # fmt: skip
"""Settings that a drafter of ours has, wherever a configuration states them."""
NOT_IN_WEIGHTS = ("block_size", "n_target_layers")
"""Fields of a shape in which a run may differ from the drafter that it starts from."""


def read_shape(folder: Path) -> DrafterShape:
    """The shape that a drafter's config.json states; ValueError where there is none, or a drafter of another kind."""
    path = folder / SHAPE
    if not path.is_file():
        raise ValueError(
            f"PATH must hold a drafter's config.json, got {folder}; give a run, or a folder of its checkpoints"
        )
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
        shape = _of_speculators(stated, path) if SPECULATORS in stated else _of_z_lab(stated, path)
    except KeyError as error:
        raise ValueError(
            f"a drafter's config.json must state {error.args[0]}, got none in {path}; it is not a DFlash drafter"
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} must hold a drafter's shape as JSON, got what cannot be read ({error}); take another checkpoint"
        ) from error
    ids = shape.target_layer_ids
    if not ids or list(ids) != sorted(set(ids)) or ids[0] < 0:
        raise ValueError(f"{path} must tap ascending layers of the target, from 0, got {list(ids)}; take another")
    return shape


def _of_z_lab(stated: dict[str, Any], path: Path) -> DrafterShape:
    dflash = stated["dflash_config"]
    _check_plain(stated | dflash, path)
    block_size = stated["block_size"] if "block_size" in stated else dflash["block_size"]
    return _shape(stated, block_size, dflash["mask_token_id"], dflash["target_layer_ids"])


def _of_speculators(stated: dict[str, Any], path: Path) -> DrafterShape:
    from transformers import AutoConfig

    layers = stated["transformer_layer_config"]  # only what is not transformers' default
    layers = AutoConfig.for_model(**{"model_type": "qwen3"} | layers).to_dict()
    _check_plain(layers | stated, path)
    ids = [entry - 1 for entry in stated["aux_hidden_state_layer_ids"]]
    return _shape(layers, stated["block_size"], stated["mask_token_id"], ids)


def _shape(layers: Mapping[str, Any], block_size: int, mask_token_id: int, ids: list[int]) -> DrafterShape:
    theta = layers["rope_theta"] if "rope_theta" in layers else layers["rope_parameters"]["rope_theta"]
    return DrafterShape(
        hidden_size=layers["hidden_size"],
        intermediate_size=layers["intermediate_size"],
        n_heads=layers["num_attention_heads"],
        n_kv_heads=layers["num_key_value_heads"],
        head_dim=layers["head_dim"],
        n_layers=layers["num_hidden_layers"],
        block_size=block_size,
        vocab_size=layers["vocab_size"],
        mask_token_id=mask_token_id,
        target_layer_ids=tuple(ids),
        rope_theta=theta,
        rms_norm_eps=layers["rms_norm_eps"],
        n_target_layers=layers.get("num_target_layers"),
    )


def _check_plain(stated: Mapping[str, Any], path: Path) -> None:
    """ValueError for a setting under which the same weights would mean another drafter."""
    rope = stated.get("rope_parameters") or stated.get("rope_scaling") or {}
    found = {name: stated.get(name) for name in PLAIN} | {
        "rope_type": rope.get("rope_type") or rope.get("type"),
        "layer_types": next((kind for kind in stated.get("layer_types") or () if kind != "full_attention"), None),
        "draft_vocab_size": stated.get("draft_vocab_size"),
    }
    plain = PLAIN | {"rope_type": "default", "layer_types": None, "draft_vocab_size": stated["vocab_size"]}
    for name, value in found.items():
        if value is not None and value != plain[name]:
            raise ValueError(
                f"{path} must be a DFlash drafter's with {name} {plain[name] or 'full_attention'}, got {value}: "
                "that kind is not known here; take another drafter"
            )


def load_weights(drafter: Drafter, folder: Path) -> None:
    """Fill the drafter; ValueError unless the file holds exactly its keys and shapes."""
    state, n_layers = _tensors(folder), drafter.shape.n_layers
    expected = set(parameter_names(n_layers))
    lacks, odd = sorted(expected - set(state)), sorted(set(state) - expected)
    if lacks or odd:
        parts = [f"lacks {len(lacks)}, first {lacks[0]}"] if lacks else []
        parts += [f"has {len(odd)} that are none, first {odd[0]}"] if odd else []
        raise ValueError(
            f"{folder} must hold exactly the keys of a DFlash drafter of {n_layers} layers, it {' and '.join(parts)}; "
            "take another drafter"
        )
    for name, parameter in drafter.named_parameters():
        if state[name].shape != parameter.shape:
            raise ValueError(
                f"{folder}: {name} must have shape {tuple(parameter.shape)}, got {tuple(state[name].shape)}; "
                "is it this target's drafter?"
            )
    drafter.load_state_dict(state)


def _tensors(folder: Path) -> dict[str, Tensor]:
    """What the file of weights holds, the target's tables left out in speculators' layout."""
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"PATH must hold a drafter's {WEIGHTS}, {folder} does not; it was not written to its end")
    try:
        state = load_file(folder / WEIGHTS)
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS} must be whole, it is not ({error}); take another checkpoint") from error
    if SPECULATORS not in json.loads((folder / SHAPE).read_text(encoding="utf-8")):
        return state
    return {name: tensor for name, tensor in state.items() if name not in OF_THE_TARGET}


def start_from(drafter: Drafter, path: Path) -> None:
    """Give a drafter the weights of the one in `path`: a run (its newest checkpoint), an export, a published drafter.

    ValueError, one line, unless it has this drafter's sizes, taps and mask token. The size of a block may be another:
    no weight depends on it.
    """
    folder, shape = drafter_there(path)
    try:
        _check_same(shape, drafter.shape, folder)
        load_weights(drafter, folder)
    except ValueError as error:
        raise ValueError(f"drafter.init_from={path}: {error}") from error


def drafter_there(path: Path) -> tuple[Path, DrafterShape]:
    """Folder and shape of the drafter that a run may start from. Raises ValueError, one line, where there is none."""
    try:
        folder = find_drafter(path, None)
        return folder, read_shape(folder)
    except ValueError as error:
        raise ValueError(f"drafter.init_from={path}: {error}") from error


def _check_same(there: DrafterShape, here: DrafterShape, folder: Path) -> None:
    for field in fields(DrafterShape):
        theirs, ours = vars(there)[field.name], vars(here)[field.name]
        if field.name not in NOT_IN_WEIGHTS and theirs != ours:
            counted = ", layers of the target counted from 0" if field.name == "target_layer_ids" else ""
            raise ValueError(
                f"{field.name} must be what the drafter was trained with, {theirs} in {folder}, got {ours}{counted}; "
                "set drafter and target to match it"
            )
