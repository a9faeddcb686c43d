"""A run's drafter -> a folder that z-lab's class, vLLM and SGLang load, with its model card: the verb export.

In: a run's directory. Out: `config.json`, `model.safetensors`, `README.md`, there once they have been read back and the
drafter in them is the trained one, bit for bit; before that nothing is there.
"""

import json
from pathlib import Path

import torch
from torch import Tensor

from dflash_exp.checkpoint import damage_of, read_progress
from dflash_exp.config import Config
from dflash_exp.console import LastingConsole
from dflash_exp.drafter.attention import GroupedAttention, group_anchors
from dflash_exp.drafter.layout import BlockLayout
from dflash_exp.drafter.model import Drafter
from dflash_exp.durable import write_folder
from dflash_exp.export import SHAPE, drafter_state, find_drafter, layout_config, write_drafter
from dflash_exp.launch.children import DONE
from dflash_exp.model_card import Subject, model_card
from dflash_exp.published import load_weights, read_shape
from dflash_exp.suggest import ConfigError

CARD = "README.md"
TRIED_TOKENS = 5
"""Of the text that a drafter is tried on."""


def export(run_dir: Path, config: Config, out: Path, checkpoint: str | None) -> int:
    """The verb. Raises ConfigError where there is nothing to export or something in its place."""
    console = LastingConsole()
    if out.exists():
        raise ConfigError(f"OUT must not be there yet, got {out}; name another folder")
    try:
        folder = find_drafter(run_dir, checkpoint)
        damage = damage_of(folder)
        if damage is not None:
            raise ValueError(f"a checkpoint must be whole, {folder} is not: {damage}; take another by --checkpoint")
        drafter = _drafter_of(folder)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    n_parameters = sum(parameter.numel() for parameter in drafter.parameters())
    step = read_progress(folder)["counters"]["step"]
    subject = Subject(config, run_dir, drafter.shape, folder.name, step, n_parameters)
    positions = json.loads((folder / SHAPE).read_text(encoding="utf-8"))["max_position_embeddings"]
    out.parent.mkdir(parents=True, exist_ok=True)

    def fill(unfinished: Path) -> None:
        write_drafter(unfinished, drafter_state(drafter), layout_config(drafter.shape, positions))
        (unfinished / CARD).write_text(model_card(subject), encoding="utf-8")
        check_read_back(drafter, unfinished)

    write_folder(out, fill)
    console.say(f"{out}: {n_parameters:,} parameters of {folder}, read back and equal bit for bit")
    return DONE


def check_read_back(drafter: Drafter, folder: Path) -> None:
    """RuntimeError unless the folder holds exactly this drafter: shape, keys, weights, and what comes of them."""
    again = _drafter_of(folder)
    read, own = drafter_state(again), drafter_state(drafter)
    same = again.shape == drafter.shape and all(torch.equal(read[name], own[name]) for name in own)
    if not (same and torch.equal(_tried(again), _tried(drafter))):
        raise RuntimeError(f"{folder} was read back as another drafter than the one that was written")


def _drafter_of(folder: Path) -> Drafter:
    """The drafter in a folder, with one row for every token in place of the target's tables, which are not in it."""
    shape = read_shape(folder)
    row_1H = torch.randn(1, shape.hidden_size, generator=torch.Generator().manual_seed(0))
    table_VH = row_1H.expand(shape.vocab_size, -1)
    drafter = Drafter(shape, table_VH, table_VH)
    load_weights(drafter, folder)
    return drafter


@torch.no_grad()
def _tried(drafter: Drafter) -> Tensor:
    """What the head would be handed for a block behind a few tokens with made-up features, [K - 1, H]."""
    shape, at = drafter.shape, torch.tensor([TRIED_TOKENS])
    width = len(shape.target_layer_ids) * shape.hidden_size
    features_TF = torch.randn(TRIED_TOKENS, width, generator=torch.Generator().manual_seed(1))
    groups = group_anchors(torch.tensor([1]), at, shape.n_kv_heads, torch.device("cpu"))
    block = BlockLayout(torch.tensor([0]), at, GroupedAttention(groups))
    return drafter(drafter.context(features_TF[None]), block)[0]
