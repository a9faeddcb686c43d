"""What both runs are given is the same, and the bare layers compute what the target's features are."""

from pathlib import Path

import numpy as np
import torch

from dflash_exp.data.store import TooLong, read_split
from dflash_exp.models import EMBEDDED_FILES
from dflash_exp.target import FrozenTarget, TargetConfig, TargetDtype
from dflash_exp.target_loading import load_model
from tests.benchmarks.automodel_recipe import loader
from tests.benchmarks.end_to_end import write_conversations
from tests.benchmarks.target_forward import bare_layers, rounds_of


def test_the_store_and_the_recipe_s_batches_hold_the_same_tokens_and_supervision(tmp_path: Path) -> None:
    write_conversations(tmp_path, 5)
    split = read_split(tmp_path / "store", "train", None, TooLong.error)
    ours = {(tuple(split.tokens(i)), tuple(split.supervised(i).astype(int))) for i in range(5)}
    theirs = set()
    for batch in loader(np.load(tmp_path / "conversations.npz")):
        lengths = batch["attention_mask"].sum(1).tolist()
        assert batch["input_ids"].shape[1] == max(lengths)
        for tokens, mask, n in zip(batch["input_ids"], batch["loss_mask"], lengths, strict=True):
            theirs.add((tuple(tokens[:n].tolist()), tuple(mask[:n].tolist())))
    assert ours == theirs and len(ours) == 5


def test_the_bare_layers_end_with_the_deepest_tap_s_features_bit_for_bit() -> None:
    model = load_model(TargetConfig(str(EMBEDDED_FILES / "target"), TargetDtype.FLOAT32), [torch.device("cpu")])
    target = FrozenTarget(model, (0, 2))
    tokens_BT = torch.arange(24).view(2, 12)
    features_PF = target.features(tokens_BT, torch.tensor([12, 12]))
    assert torch.equal(features_PF[:, target.shape.hidden_size :], bare_layers(target, tokens_BT).flatten(0, 1))
    ours_s, bare_s = rounds_of(target, 2, 12, 3)
    assert len(ours_s) == len(bare_s) == 3 and min(ours_s + bare_s) > 0
