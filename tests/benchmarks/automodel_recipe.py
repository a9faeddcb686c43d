"""NeMo AutoModel's recipe on the conversations of `end_to_end.py`; run by the peers' Python.

Its own setup and its own training loop. Three parts are replaced: the target is read by transformers, for its own
loader wants CUDA; the loader hands out the stored tokens, for text would be cut into other ones, and pads a batch to
its longest, where its own pads to `seq_length`; nothing is saved.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

ANCHORS, BLOCK, GAMMA, SEQUENCES = 64, 8, 4.0, 8


def main(target: str, folder: Path) -> None:
    """Prints a line of JSON: seconds of the loop, and the supervised tokens of what went in."""
    torch.set_num_threads(2)
    stored = np.load(folder / "conversations.npz")
    module: Any = import_module("nemo_automodel.recipes.llm.train_dflash")
    module.build_eagle3_dataloader = lambda **_: loader(stored)
    recipe = recipe_of(module)(settings(target, folder, stored["tokens"].shape[1]))
    recipe.setup()
    began_s = time.perf_counter()
    recipe.run_train_validation_loop()
    seconds = time.perf_counter() - began_s
    told = {"seconds": seconds, "steps": recipe.runtime.global_step}
    print(json.dumps(told | {"supervised_tokens": int(stored["supervised"].sum())}))


def recipe_of(module: Any) -> Any:
    """The recipe with a target that a CPU can load."""

    class OnCpu(module.TrainDFlashRecipe):
        def _build_target_model(self, recipe_cfg: Any, target_path: str, draft_spec: Any) -> Any:
            self.dist_setup = self.device_mesh = self.dp_mesh = self.cp_mesh = None
            causal = import_module("transformers").AutoModelForCausalLM
            return causal.from_pretrained(target_path, dtype=torch.float32).eval().requires_grad_(False)

        def _maybe_save_final_checkpoint(self, completed_epochs: int) -> bool:
            return False

    return OnCpu


def loader(stored: Any) -> DataLoader[Any]:
    """Batches of eight, in an order of its own."""
    tokens, supervised = torch.from_numpy(stored["tokens"]), torch.from_numpy(stored["supervised"])
    real = (torch.arange(tokens.shape[1]) < torch.from_numpy(stored["lengths"])[:, None]).long()
    rows = [{"input_ids": tokens[i], "attention_mask": real[i], "loss_mask": supervised[i]} for i in range(len(tokens))]
    return DataLoader(rows, SEQUENCES, shuffle=True, collate_fn=stacked)  # type: ignore[arg-type]


def stacked(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A batch, without the columns in which nothing is real."""
    longest = max(int(row["attention_mask"].sum()) for row in rows)
    return {name: torch.stack([row[name][:longest] for row in rows]) for name in rows[0]}


def settings(target: str, folder: Path, longest: int) -> Any:
    """What the recipe is told."""
    return import_module("nemo_automodel.components.config.loader").ConfigNode({
        "dist_env": {"backend": "gloo"},
        "recipe_args": {
            "target_model_name_or_path": target, "train_data_path": str(folder), "output_dir": str(folder / "theirs"),
            "seq_length": longest, "micro_batch_size": SEQUENCES, "num_epochs": 1, "draft_num_hidden_layers": 2,
            "target_layer_ids": [1, 5], "block_size": BLOCK, "mask_token_id": 1, "num_anchors": ANCHORS,
            "loss_decay_gamma": GAMMA, "attention_backend": "sdpa",
        },
        "optimizer": {"lr": 6e-4},
    })  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
