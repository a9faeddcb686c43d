"""`dflash-exp regenerate` with the target in this process: what it says, greedily and drawn, batch by batch."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dflash_exp.cli import main
from dflash_exp.embedded.tokenizer import END_ID, train_tokenizer
from dflash_exp.regenerate.in_process import InProcess
from tests.world import VOCAB_SIZE, WORDS, save_tiny_target

QUESTIONS = ("def add(a, b):", "x = 0", "for x in range(n):", "class Point:", "print(x)")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    save_tiny_target(folder, train_tokenizer(WORDS * 4, VOCAB_SIZE))
    return folder


@pytest.fixture(autouse=True)
def chats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Five conversations of two assistant turns each, in an empty current directory."""
    monkeypatch.chdir(tmp_path)
    rows = [
        [("user", question), ("assistant", "theirs"), ("user", "and then?"), ("assistant", "theirs")]
        for question in QUESTIONS
    ]
    messages = [[{"role": role, "content": text} for role, text in row] for row in rows]
    Path("chats.jsonl").write_text("".join(f"{json.dumps({'messages': row})}\n" for row in messages))


def regenerate(target: Path, out: str, *more: str) -> int:
    return main(
        ["regenerate", "target=hf", f"target.path={target}", "target.dtype=float64", "topology=cpu",
         "regenerate.source=chats.jsonl", f"regenerate.out={out}", "regenerate.max_tokens=12", "regenerate.batch=2",
         *more]
    )  # fmt: skip


def written(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(out, "conversations.jsonl").read_text().splitlines()]


def greedy(model: Any, tokenizer: Any, messages: list[dict[str, str]]) -> tuple[str, str, int]:
    """The most probable token again and again, each from a forward over all before it, alone and unpadded."""
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    tokens, said = tokenizer(text, add_special_tokens=False)["input_ids"], []
    while len(said) < 12 and said[-1:] != [END_ID]:
        with torch.no_grad():
            said.append(int(model(torch.tensor([tokens + said])).logits[0, -1].argmax()))
    reason = "stop" if said[-1] == END_ID else "length"
    return tokenizer.decode(said, skip_special_tokens=True), reason, len(said)


def test_every_turn_is_what_plain_greedy_decoding_of_the_rewritten_turns_before_it_gives(target: Path) -> None:
    assert regenerate(target, "own") == 0
    tokenizer = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float64)
    for record, question in zip(written("own"), QUESTIONS, strict=True):
        messages, reasons, n_tokens = [{"role": "user", "content": question}], [], 0
        for asked_next in ("and then?", None):
            content, reason, n = greedy(model, tokenizer, messages)
            messages.append({"role": "assistant", "content": content})
            reasons, n_tokens = [*reasons, reason], n_tokens + n
            if asked_next is not None:
                messages.append({"role": "user", "content": asked_next})
        assert (record["messages"], record["finish_reasons"], record["tokens"]) == (messages, reasons, n_tokens)
    assert {reason for record in written("own") for reason in record["finish_reasons"]} <= {"stop", "length"}


def test_what_is_drawn_depends_on_the_seed_and_not_on_stops(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = ("regenerate.temperature=1", "regenerate.last_turn_only=true")
    assert regenerate(target, "never_stopped", *drawn) == 0 == regenerate(target, "other", *drawn, "seed=1")
    generated, n_batches = InProcess._generated, 0

    def stopped_in_the_second(*arguments: Any) -> torch.Tensor:
        nonlocal n_batches
        n_batches += 1
        if n_batches == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return generated(*arguments)

    monkeypatch.setattr(InProcess, "_generated", stopped_in_the_second)
    assert regenerate(target, "own", *drawn) == 75
    journal = Path("own/rows.journal").read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["row"] for line in journal] == [0, 1]
    Path("own/rows.journal").write_bytes(journal[0])
    assert regenerate(target, "own", *drawn) == 0 and n_batches == 2 + 3
    assert written("own") == written("never_stopped") != written("other")


def test_a_conversation_without_room_for_an_answer_fails_and_is_named(target: Path) -> None:
    long = [{"role": "user", "content": "x = 0 " * 300}, {"role": "assistant", "content": "theirs"}]
    with Path("chats.jsonl").open("a") as file:
        file.write(json.dumps({"messages": long}) + "\n")
    assert regenerate(target, "own") == 1
    report = json.loads(Path("own/report.json").read_text())
    assert len(written("own")) == 5 and [one["where"] for one in report["failed"]] == ["chats.jsonl:6"]
    assert "regenerate.max_tokens=12 are more than the target's 256 positions" in report["failed"][0]["why"]


def test_another_target_in_the_same_folder_is_refused(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert regenerate(target, "own", "regenerate.max_tokens=250") == 1
    assert regenerate(target, "own", "regenerate.max_tokens=250", "target.dtype=float32") == 2
    assert 'was not: by.dtype was "float64" and is "float32"' in capsys.readouterr().err
