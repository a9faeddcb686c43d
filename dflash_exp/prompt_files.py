"""A JSONL file of prompts -> what the target reads, with its thinking switched off and on where it can be.

In: a line an object, as `evaluate --prompts` takes it. Out: `PromptSet`s of token ids. The rows of the benchmarks that
the paper decodes are asked in the words of z-lab/dflash, `benchmark.py`, so that figures can be held against its own:

    GSM8K, MATH-500   {"question": ...} or {"problem": ...}, and to reason step by step
    HumanEval         {"prompt": ..., "entry_point": ...}, and to write a solution
    MT-Bench          {"turns": [...]} or {"prompt": [...]}: the first turn alone, the others would need its answer
    anything          {"prompt": ...} or {"messages": [...]}, as it stands
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

STEPS = "\nPlease reason step by step, and put your final answer within \\boxed{}."
SOLUTION = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{}\n```"
Messages = list[dict[str, Any]]
SAMPLE: Messages = [{"role": "user", "content": "One?"}]


@dataclass(frozen=True)
class PromptSet:
    """Prompts under one setting of the chat template."""

    prompts: list[Tensor]
    """int64 [P] each."""
    thinking: bool | None = None
    """None: the template has no such switch, or the prompts did not go through it here."""


def file_prompts(path: Path, tokenizer: PreTrainedTokenizerBase, limit: int | None) -> list[PromptSet]:
    """The first `limit` prompts, once or, where the template can be told not to think, twice: off, then on.

    Raises ValueError that names a bad line.
    """
    if not path.is_file():
        raise ValueError(f"--prompts must be a JSONL file, got {path}; each line holds a `prompt` or `messages`")
    conversations = [
        _messages(line, f"{path} line {number}")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()[:limit], start=1)
    ]
    if not conversations:
        raise ValueError(f"--prompts must hold at least one prompt, got none in {path}; add a line")
    return [
        PromptSet([_tokens(_text(tokenizer, messages, thinking), tokenizer) for messages in conversations], thinking)
        for thinking in _settings(tokenizer)
    ]


def _messages(line: str, where: str) -> Messages:
    try:
        row = json.loads(line)
        if "messages" in row:
            return row["messages"]
        asked = _asked(row)
    except (json.JSONDecodeError, KeyError, TypeError, IndexError) as error:
        raise ValueError(
            f"--prompts: {where} must be an object with `prompt` or `messages`, or a row of GSM8K, HumanEval or "
            f"MT-Bench, got {line[:60]!r}"
        ) from error
    return [{"role": "user", "content": asked}]


def _asked(row: dict[str, Any]) -> str:
    """What the user says first."""
    if "turns" in row:
        return row["turns"][0]
    if "question" in row or "problem" in row:
        return (row["question"] if "question" in row else row["problem"]) + STEPS
    if "entry_point" in row:
        return SOLUTION.format(row["prompt"])
    return row["prompt"] if isinstance(row["prompt"], str) else row["prompt"][0]


def _settings(tokenizer: PreTrainedTokenizerBase) -> list[bool | None]:
    """The template's own way, or off and on where that makes a difference."""
    off, on = (_text(tokenizer, SAMPLE, thinking) for thinking in (False, True))
    return [None] if off == on else [False, True]


def _text(tokenizer: PreTrainedTokenizerBase, messages: Messages, thinking: bool | None) -> str:
    told: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
    return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **told))


def _tokens(text: str, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    return torch.tensor(tokenizer.encode(text, add_special_tokens=False))
