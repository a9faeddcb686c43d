"""Drafter weights on disk, in the layout that z-lab's class, vLLM and SGLang load.

In: a drafter. Out: a folder with `config.json` and `model.safetensors`, which `published.py` reads.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from dflash_exp.drafter.model import Drafter
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
