"""The paper's figures stand beside a published drafter's and beside no other's.

No published drafter is here to be decoded: its config.json is read at its real sizes, and the way from its folder to
the table is walked by a tiny fake of the same layout.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from dflash_exp import paper
from dflash_exp.cli import main
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.embedded.tokenizer import train_tokenizer
from dflash_exp.export import drafter_state
from dflash_exp.paper import PUBLISHED, Reported, reported
from dflash_exp.published import read_shape
from tests.test_prompt_files import NO_THOUGHT
from tests.tiny_drafter import drafter_of
from tests.world import VOCAB_SIZE, WORDS, save_tiny_target

GSM8K = Reported("GSM8K", 5.15, 6.53)
NAME = "Qwen3-4B-DFlash-b16"
LAYERS: dict[str, Any] = {
    "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "num_hidden_layers": 5, "vocab_size": 151_936, "num_target_layers": 36, "block_size": 16,
    "dflash_config": {"mask_token_id": 151_669, "target_layer_ids": [1, 9, 17, 25, 33]},
}  # fmt: skip
TINY_LAYERS = LAYERS | {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "num_hidden_layers": 2, "vocab_size": VOCAB_SIZE, "num_target_layers": 4, "block_size": 4,
    "dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 2]},
}  # fmt: skip


def published(folder: Path, layers: dict[str, Any]) -> DrafterShape:
    """A config.json with the keys that z-lab's has; the shape that it states."""
    folder.mkdir(parents=True)
    told = {
        "architectures": ["DFlashDraftModel"], "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "model_type": "qwen3", "dtype": "bfloat16", "hidden_act": "silu", "attention_bias": False,
        "attention_dropout": 0.0, "layer_types": ["full_attention"] * layers["num_hidden_layers"],
        "max_position_embeddings": 40_960, "max_window_layers": 5, "rms_norm_eps": 1e-6, "rope_scaling": None,
        "rope_theta": 1_000_000, "sliding_window": None, "use_sliding_window": False, "tie_word_embeddings": True,
        "bos_token_id": 151_643, "eos_token_id": 151_645, "use_cache": True, **layers,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(told))
    return read_shape(folder)


def test_every_cell_is_found_by_drafter_target_and_the_name_of_the_prompts(tmp_path: Path) -> None:
    table = {"4B": (2560, [6.53, 7.84, 6.64, 6.09, 4.35]), "8B": (4096, [6.54, 7.87, 6.50, 5.95, 4.24])}
    for size, (hidden, taus) in table.items():
        folder = tmp_path / f"Qwen3-{size}-DFlash-b16"
        shape = published(folder, LAYERS | {"hidden_size": hidden})
        files = ("gsm8k.jsonl", "MATH-500.jsonl", "data/HumanEval.jsonl", "mbpp.jsonl", "mt_bench.jsonl")
        found = [reported(folder, shape, f"Qwen/Qwen3-{size}", file) for file in files]
        assert [cell and cell.tau_macro for cell in found] == taus
    assert sum(len(one.row) for one in PUBLISHED) == 10


def test_the_hub_s_cache_and_a_folder_of_the_target_s_name_are_the_same_drafter_and_target(tmp_path: Path) -> None:
    folder = tmp_path / "models--z-lab--Qwen3-4B-DFlash-b16" / "snapshots" / "0af1"
    shape = published(folder, LAYERS)
    for target in ("Qwen/Qwen3-4B", "/models/Qwen3-4B", "/hub/models--Qwen--Qwen3-4B/snapshots/1c"):
        assert reported(folder, shape, target, "gsm8k.jsonl") == GSM8K


@pytest.mark.parametrize(
    ("name", "target", "prompts", "change"),
    [
        ("my-drafter", "Qwen/Qwen3-4B", "gsm8k.jsonl", {}),
        (NAME, "Qwen/Qwen3-4B-Base", "gsm8k.jsonl", {}),
        (NAME, "Qwen/Qwen3-8B", "gsm8k.jsonl", {}),
        (NAME, "Qwen/Qwen3-4B", "gsm8k_train.jsonl", {}),
        (NAME, "Qwen/Qwen3-4B", None, {}),
        (NAME, "Qwen/Qwen3-4B", "gsm8k.jsonl", {"block_size": 8}),
        (NAME, "Qwen/Qwen3-4B", "gsm8k.jsonl", {"n_layers": 8}),
        (NAME, "Qwen/Qwen3-4B", "gsm8k.jsonl", {"hidden_size": 4096}),
    ],
)
def test_beside_anything_else_there_is_nothing(
    tmp_path: Path, name: str, target: str, prompts: str | None, change: dict[str, int]
) -> None:
    shape = published(tmp_path / name, LAYERS)
    assert reported(tmp_path / name, replace(shape, **change), target, prompts) is None


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What evaluating a tiny fake of the published drafter prints, weights in bf16, with a target that can think."""
    monkeypatch.setenv("COLUMNS", "140")
    shape = published(tmp_path / NAME, TINY_LAYERS)
    state = {name: weight.bfloat16() for name, weight in drafter_state(drafter_of(shape)).items()}
    save_file(state, tmp_path / NAME / "model.safetensors")
    tokenizer = train_tokenizer(WORDS * 4, VOCAB_SIZE)
    tokenizer.chat_template = str(tokenizer.chat_template) + NO_THOUGHT
    save_tiny_target(tmp_path / "Qwen3-4B", tokenizer)
    tiny = replace(PUBLISHED[0], hidden_size=32, n_target_layers=4, n_layers=2, block_size=4)
    monkeypatch.setattr(paper, "PUBLISHED", (tiny,))
    for name in ("gsm8k", "mine"):
        (tmp_path / f"{name}.jsonl").write_text('{"question": "return a + b", "answer": "#### 4"}\n' * 2)

    def show(prompts: str, *more: str) -> str:
        asked = ["--target", str(tmp_path / "Qwen3-4B"), "--prompts", str(tmp_path / prompts), "--max-new-tokens", "6"]
        assert main(["evaluate", str(tmp_path / NAME), *asked, *more]) == 0
        return capsys.readouterr().out

    return show


def test_a_published_drafter_is_decoded_from_its_folder_and_stands_beside_the_paper_s_row(
    shown: Callable[..., str], tmp_path: Path
) -> None:
    said = shown("gsm8k.jsonl")
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines() if line.startswith("│")]
    assert [line[0] for line in lines][::3] == ["thinking off: all", "thinking on: all", "the paper's GSM8K"]
    assert lines[-1][:5] == ["the paper's GSM8K", "-", "-", "6.53", "5.15"] and lines[0][3] != "6.53"
    assert "the paper's: arXiv:2602.06036 v2, table 1: T = 0, thinking off" in said
    written = json.loads((tmp_path / NAME / "evaluation.json").read_text())
    assert written["prompts"] == written["thinking_on"]["prompts"] == 2 and "6.53" not in json.dumps(written)


def test_other_prompts_and_sampled_texts_have_no_row_of_the_paper_s(shown: Callable[..., str]) -> None:
    assert "paper" not in shown("mine.jsonl") and "paper" not in shown("gsm8k.jsonl", "--temperature", "1")
