"""Drafter weights on disk, in the layout that z-lab's class, vLLM and SGLang load.

In: a drafter. Out: a folder with `config.json` and `model.safetensors`, and back. Nothing is unpickled.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash_exp.drafter.model import Drafter, parameter_names
from dflash_exp.drafter.shape import DrafterShape

LATEST = "latest"
WEIGHTS, SHAPE = "model.safetensors", "config.json"


def layout_config(shape: DrafterShape, max_position_embeddings: int) -> dict[str, object]:
    """config.json of a published drafter; layer ids are 0-based, engines add the 1 themselves."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": shape.block_size,
        "num_target_layers": shape.n_target_layers,
        "dflash_config": {"mask_token_id": shape.mask_token_id, "target_layer_ids": list(shape.target_layer_ids)},
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "layer_types": ["full_attention"] * shape.n_layers,
        "hidden_act": "silu",
        "rope_theta": shape.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "rms_norm_eps": shape.rms_norm_eps,
        "max_position_embeddings": max_position_embeddings,
        "is_causal": False,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }


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


def write_drafter(folder: Path, state: dict[str, Tensor], config: dict[str, object]) -> None:
    """Write weights and `layout_config` into a folder that is there."""
    save_file(state, folder / WEIGHTS)
    (folder / SHAPE).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def drafter_state(drafter: Drafter) -> dict[str, Tensor]:
    """A copy on the CPU, in fp32 and contiguous, by the layout's names."""
    return {
        name: parameter.detach().to("cpu", torch.float32, copy=True).contiguous()
        for name, parameter in drafter.named_parameters()
    }


def find_drafter(path: Path, checkpoint: str | None) -> Path:
    """The drafter's folder in a run (its newest checkpoint, or the one named), or `path` itself where it is one."""
    parent = path / "checkpoints"
    if not parent.is_dir():
        return path
    if checkpoint is None and not (parent / LATEST).is_file():
        raise ValueError(f"a run must have a checkpoint to be evaluated, got none in {parent}; let it train to its end")
    folder = parent / (checkpoint or (parent / LATEST).read_text(encoding="utf-8").strip())
    if not folder.is_dir():
        there = ", ".join(sorted(p.name for p in parent.glob("step-*"))) or "none"
        raise ValueError(f"--checkpoint must be one of the run's, {there}; got {folder.name}")
    return folder


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
