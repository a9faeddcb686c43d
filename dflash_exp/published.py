"""A drafter's folder -> its shape and weights.

In: `config.json` and `model.safetensors`. Out: a `DrafterShape`, a drafter that is filled. Nothing is unpickled.
"""

import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from dflash_exp.drafter.model import Drafter, parameter_names
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.export import SHAPE, WEIGHTS


def read_shape(folder: Path) -> DrafterShape:
    """The shape that a drafter's config.json states; ValueError where there is none."""
    path = folder / SHAPE
    if not path.is_file():
        raise ValueError(
            f"PATH must hold a drafter's config.json, got {folder}; give a run, or a folder of its checkpoints"
        )
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
        return DrafterShape(
            hidden_size=stated["hidden_size"],
            intermediate_size=stated["intermediate_size"],
            n_heads=stated["num_attention_heads"],
            n_kv_heads=stated["num_key_value_heads"],
            head_dim=stated["head_dim"],
            n_layers=stated["num_hidden_layers"],
            block_size=stated["block_size"],
            vocab_size=stated["vocab_size"],
            mask_token_id=stated["dflash_config"]["mask_token_id"],
            target_layer_ids=tuple(stated["dflash_config"]["target_layer_ids"]),
            rope_theta=stated["rope_theta"],
            rms_norm_eps=stated["rms_norm_eps"],
            n_target_layers=stated["num_target_layers"],
        )
    except KeyError as error:
        raise ValueError(
            f"a drafter's config.json must state {error.args[0]}, got none in {path}; it is not a DFlash drafter"
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError) as error:
        raise ValueError(
            f"{path} must hold a drafter's shape as JSON, got what cannot be read ({error}); take another checkpoint"
        ) from error


def load_weights(drafter: Drafter, folder: Path) -> None:
    """Fill the drafter; ValueError unless the file holds exactly its keys and shapes."""
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"PATH must hold a drafter's {WEIGHTS}, {folder} does not; it was not written to its end")
    try:
        state = load_file(folder / WEIGHTS)
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS} must be whole, it is not ({error}); take another checkpoint") from error
    expected = set(parameter_names(drafter.shape.n_layers))
    if set(state) != expected:
        odd = sorted(set(state) ^ expected)
        raise ValueError(f"{folder} must hold exactly the keys of a DFlash drafter, {len(odd)} differ, first {odd[0]}")
    for name, parameter in drafter.named_parameters():
        if state[name].shape != parameter.shape:
            raise ValueError(
                f"{folder}: {name} must have shape {tuple(parameter.shape)}, got {tuple(state[name].shape)}; "
                "is it this target's drafter?"
            )
    drafter.load_state_dict(state)
