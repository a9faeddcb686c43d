"""`dflash-exp regenerate` against `transformers serve` on loopback: the words of the target in this process."""

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dflash_exp.cli import main
from dflash_exp.embedded.tokenizer import END_ID, train_tokenizer
from tests.loopback_server import serving
from tests.world import VOCAB_SIZE, WORDS

ABSENT = [name for name in ("fastapi", "uvicorn", "openai", "accelerate") if find_spec(name) is None]
needs_serving = pytest.mark.skipif(bool(ABSENT), reason=f"transformers serve needs {', '.join(ABSENT)}")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Not the tiny world's: of a Qwen, serve expects Qwen's own chat template, and takes the prompt for content."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=256, initializer_range=0.3, eos_token_id=END_ID, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "target")
    train_tokenizer(WORDS * 4, VOCAB_SIZE).save_pretrained(tmp_path / "target")
    return tmp_path / "target"


@pytest.fixture
def address(target: Path, tmp_path: Path) -> Iterator[str]:
    """Of a server that has loaded the target."""

    def command(port: str) -> list[str | Path]:
        where = ["--host", "127.0.0.1", "--port", port, "--device", "cpu", "--dtype", "float32"]
        return [Path(sys.executable).with_name("transformers"), "serve", target, *where]

    with serving(command, tmp_path / "server.log", start_s=120) as address:
        yield address


@pytest.mark.slow
@needs_serving
def test_a_real_server_says_what_the_target_says_in_this_process(
    target: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    turns = [("user", "x = 0"), ("assistant", "theirs"), ("user", "and then?"), ("assistant", "theirs")]
    rows = [[{"role": role, "content": f"{text} {i}"} for role, text in turns] for i in range(4)]
    Path("chats.jsonl").write_text("".join(f"{json.dumps({'messages': row})}\n" for row in rows))
    both = ["regenerate", "regenerate.source=chats.jsonl", "regenerate.max_tokens=12", "regenerate.concurrency=2"]
    here = ["target=hf", f"target.path={target}", "target.dtype=float32", "topology=cpu", "regenerate.batch=1"]
    assert main([*both, "regenerate.out=served", f"regenerate.server={address}", f"regenerate.model={target}"]) == 0
    assert main([*both, "regenerate.out=here", *here]) == 0
    served, own = (Path(out, "conversations.jsonl").read_text() for out in ("served", "here"))
    assert served == own and "theirs" not in served
