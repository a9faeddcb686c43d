"""A tiny world for whole runs: a random target, a store of a few conversations, and overrides that take a second."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash_exp.compose import compose
from dflash_exp.data.prepare import Row, write_store
from dflash_exp.embedded.tokenizer import END_ID, prompt_ids, train_tokenizer
from dflash_exp.experiment import run
from dflash_exp.stop import StopSignals
from dflash_exp.telemetry.metrics import is_timing
from dflash_exp.telemetry.sinks import read_records

VOCAB_SIZE = 288
WORDS = ("def add(a, b):", "return a + b", "for x in range(n):", "print(x)", "class Point:", "x = 0")


@dataclass(frozen=True)
class World:
    """A target, a store and a folder for runs."""

    root: Path

    def overrides(self, run_dir: str, *more: str) -> list[str]:
        """One epoch of about ten batches on the CPU, decoded at the end."""
        return [
            "data=store", f"data.path={self.root / 'store'}", "target=hf", f"target.path={self.root / 'target'}",
            "target.dtype=float64", "topology=cpu", "steps=null", "epochs=1", "batches_per_step=2",
            "batches.budget_tokens=96", "buckets.n_buckets=3", "drafter.n_layers=1", "drafter.taps=[0,2]",
            "drafter.block_size=4", "drafter.anchors=4", "drafter.slots_per_pass=32", "probe.every_steps=2",
            "probe.sequences=4", "probe.prompts=2", "prompts.limit=3", "prompts.max_new_tokens=10",
            "pipeline.threads.target=1", "pipeline.threads.drafter=1",
            "telemetry.wandb.mode='off'", f"run_dir={self.root / run_dir}", *more,
        ]  # fmt: skip

    def train(self, run_dir: str, *more: str) -> Path:
        overrides = self.overrides(run_dir, *more)
        assert run(compose(overrides), overrides, StopSignals()) == 0
        return self.root / run_dir


def result_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "result.json").read_text())


def results_only(run_dir: Path) -> list[dict[str, Any]]:
    """The records without what may differ between two runs that are the same."""
    records = read_records(run_dir / "metrics.jsonl")
    return [{name: value for name, value in record.items() if not is_timing(name)} for record in records]


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def save_tiny_target(folder: Path, tokenizer: Any) -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, initializer_range=0.3, eos_token_id=END_ID,
        bos_token_id=None, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    nn.Module.to(model, torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_world(root: Path) -> World:
    """A target and a store in `root`."""
    tokenizer = train_tokenizer(WORDS * 4, VOCAB_SIZE)
    save_tiny_target(root / "target", tokenizer)

    def row(i: int) -> Row:
        prompt = prompt_ids(tokenizer, WORDS[i % len(WORDS)])
        response = [5 + (7 * i + 3 * k) % (VOCAB_SIZE - 5) for k in range(6 + 5 * (i % 7))] + [END_ID]
        return Row([*prompt, *response], [False] * len(prompt) + [True] * len(response), "words", "eos")

    splits = {"train": 24, "probe": 6, "prompts": 4}
    write_store(root / "store", {name: [row(i) for i in range(n)] for name, n in splits.items()}, VOCAB_SIZE)
    return World(root)
