"""Decode held-out prompts with a target and a drafter, and print what came of it.

In: a loaded target, a drafter, prompts from the store or from a JSONL file. Out: the content of evaluation.json.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dflash_exp.config import Config
from dflash_exp.data.store import EmbeddedData, StoreData, TooLong, read_split
from dflash_exp.decode import DecodeConfig
from dflash_exp.drafter.model import Drafter
from dflash_exp.drafter.session import DraftSession
from dflash_exp.evaluation import evaluate
from dflash_exp.models import LoadedTarget


def decode_held_out(config: Config, target: LoadedTarget, drafter: Drafter, checkpoint: str, console: Console) -> dict[str, object]:
    """Greedy, on the store's prompts, as the end of training does it."""
    decoding = DecodeConfig(config.prompts.max_new_tokens, 0.0, config.seed, target.eos_ids)
    return score(target, drafter, store_prompts(config.data, config.prompts.limit), decoding, checkpoint, console)


def score(
    target: LoadedTarget, drafter: Drafter, prompts: Sequence[Tensor], decoding: DecodeConfig, checkpoint: str, console: Console
) -> dict[str, object]:
    """Decode every prompt plainly and speculatively."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("decode", total=len(prompts))
        return evaluate(
            target.model, lambda: DraftSession(drafter), prompts, decoding, checkpoint, time.perf_counter,
            lambda done, _: bar.update(task, completed=done),
        )  # fmt: skip


def store_prompts(data: EmbeddedData | StoreData, limit: int | None) -> list[Tensor]:
    """The first `limit` prompts of a store."""
    conversations = read_split(data.folder, "prompts", None, TooLong.error)
    return [torch.from_numpy(conversations.prompt(row).astype("int64")) for row in conversations.rows[:limit]]


def file_prompts(path: Path, tokenizer: PreTrainedTokenizerBase, limit: int | None) -> list[Tensor]:
    """Prompts of a JSONL file, one object a line with `prompt` (text) or `messages`; ValueError names a bad line."""
    if not path.is_file():
        raise ValueError(f"--prompts must be a JSONL file, got {path}; each line holds a `prompt` or `messages`")
    prompts: list[Tensor] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()[:limit], start=1):
        try:
            row = json.loads(line)
            messages = row["messages"] if "messages" in row else [{"role": "user", "content": row["prompt"]}]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"--prompts: {path} line {number} must be an object with `prompt` or `messages`, got {line[:60]!r}") from error
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompts.append(torch.tensor(tokenizer.encode(str(text), add_special_tokens=False)))
    if not prompts:
        raise ValueError(f"--prompts must hold at least one prompt, got none in {path}")
    return prompts
