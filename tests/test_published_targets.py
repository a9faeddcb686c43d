"""The targets that have an option, at their published sizes: what is counted, tapped and predicted, without weights.

`published/` holds each one's config.json as the hub has it. A target's parameters are as many as the hub states; a
drafter's are worked out by hand: 5 (H (2 Q + 2 M + 3 I) + 2 H + 2 E) + 5 H^2 + 2 H, for Qwen3-4B
5 (2560 x 39,424 + 5,376) + 5 x 2560^2 + 5,120.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from dflash_exp.compose import compose
from dflash_exp.config import Config
from dflash_exp.data.prepare import Row, write_store
from dflash_exp.drafter.model import Drafter, parameter_names, resolve_shape
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.models import known_shape, mask_token_id
from dflash_exp.planning import plan_document, plan_run

PUBLISHED = Path(__file__).parent / "published"
GPU_BYTES = 80e9


@dataclass(frozen=True)
class Expected:
    """What is published of a target, and what follows for its five-layer drafter."""

    target_parameters: int
    drafter_parameters: int
    taps: tuple[int, ...]
    """0-based, as in z-lab's config.json."""
    n_tokens: int
    """Of the tokenizer."""
    mask_token_id: int


EXPECTED = {
    "qwen3_4b": Expected(4_022_468_096, 537_427_200, (1, 9, 17, 25, 33), 151_669, 151_669),
    "qwen3_8b": Expected(8_190_735_360, 1_048_626_432, (1, 9, 17, 25, 33), 151_669, 151_669),
    "qwen3_14b": Expected(14_768_307_200, 1_782_641_920, (1, 10, 19, 28, 37), 151_669, 151_669),
    "llama3_1_8b": Expected(8_030_261_248, 1_174_455_552, (1, 8, 15, 22, 29), 128_256, 128_002),
    "smollm2_135m": Expected(134_515_008, 19_361_152, (1, 8, 14, 20, 27), 49_152, 16),
}


class Tokenizer:
    """One without a mask token."""

    mask_token_id = None

    def __init__(self, n_tokens: int) -> None:
        self.n_tokens = n_tokens

    def __len__(self) -> int:
        return self.n_tokens


def composed(option: str, *more: str) -> Config:
    """The option as it stands, its config.json read from `published/`."""
    return compose([f"target={option}", f"target.path={PUBLISHED / option}", *more])


def drafter_shape(option: str, drafter: str) -> DrafterShape:
    config, expected = composed(option, f"drafter={drafter}"), EXPECTED[option]
    tokenizer = cast(PreTrainedTokenizerBase, Tokenizer(expected.n_tokens))
    shape = known_shape(config.target)
    assert shape is not None
    mask = mask_token_id(config.target.mask_token_id, tokenizer, shape.vocab_size)
    return resolve_shape(config.drafter, shape, mask)


def meta_drafter(shape: DrafterShape) -> Drafter:
    with torch.device("meta"):
        return Drafter(shape, *torch.empty(2, shape.vocab_size, shape.hidden_size))


@pytest.mark.parametrize("option", EXPECTED)
def test_target_and_drafter_have_the_published_numbers_of_parameters(option: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(PUBLISHED / option))
    assert sum(p.numel() for p in model.parameters()) == EXPECTED[option].target_parameters
    drafter = meta_drafter(drafter_shape(option, "paper"))
    assert sorted(name for name, _ in drafter.named_parameters()) == parameter_names(5)
    assert sum(p.numel() for p in drafter.parameters()) == EXPECTED[option].drafter_parameters


@pytest.mark.parametrize("option", EXPECTED)
def test_taps_are_0_based_layers_whose_outputs_are_the_next_entries_of_hidden_states(option: str) -> None:
    shape, expected = drafter_shape(option, "paper"), EXPECTED[option]
    assert shape.target_layer_ids == expected.taps
    entries = [tap + 1 for tap in shape.target_layer_ids]  # 1-based: entry 0 is the embedding's output
    assert shape.n_target_layers is not None
    assert entries[0] == 2 and entries[-1] == shape.n_target_layers - 2
    assert (shape.block_size, shape.mask_token_id) == (16, expected.mask_token_id)


def test_eight_layers_tap_eight_of_36() -> None:
    shape = drafter_shape("qwen3_8b", "eight")
    assert (shape.n_layers, shape.target_layer_ids) == (8, (1, 6, 10, 15, 19, 24, 28, 33))
    assert sum(p.numel() for p in meta_drafter(shape).parameters()) == 8 * 192_946_432 + 8 * 4096**2 + 2 * 4096


def test_a_target_without_a_free_id_must_be_told_its_mask_token() -> None:
    tokenizer = cast(PreTrainedTokenizerBase, Tokenizer(49_152))
    with pytest.raises(ValueError, match=r"mask token or an unused id, got 49152 tokens .* target\.mask_token_id$"):
        mask_token_id(None, tokenizer, 49_152)


@pytest.fixture(scope="module")
def full_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen sequences of 8192 tokens and sixteen of 512, all supervised: what an epoch could hold at worst."""
    folder = tmp_path_factory.mktemp("full") / "store"
    rows = [Row([1] * n, [False] + [True] * (n - 1), "full", "eos") for n in (8192, 512) for _ in range(16)]
    write_store(folder, {"train": rows}, 151_936)
    return folder


EXPERIMENTS = [("story", "qwen3_4b"), ("paper_qwen3_4b", "qwen3_4b"), ("paper_qwen3_8b", "qwen3_8b")]


@pytest.mark.parametrize("experiment, option", EXPERIMENTS)
def test_an_experiment_for_eight_gpus_is_predicted_to_fit_on_them(
    full_store: Path, experiment: str, option: str
) -> None:
    config = compose([f"experiment={experiment}", f"data.path={full_store}", f"target.path={PUBLISHED / option}"])
    memory: dict[str, Any] = plan_document(config, plan_run(config))["memory_bytes"]
    expected = EXPECTED[option]
    assert memory["target_weights"] == 2 * expected.target_parameters  # bf16
    assert memory["drafter_weights"] == memory["gradients"] == 4 * expected.drafter_parameters
    assert memory["optimizer"] == 8 * expected.drafter_parameters  # AdamW's two moments
    assert memory["largest_device"] == memory["total"] < GPU_BYTES
    assert (config.topology.n_ranks, config.batches_per_step) == (8, 8)
