"""`dflash-exp evaluate --server` against vLLM's and SGLang's own words: right figures, other traffic noticed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from dflash_exp.cli import main
from dflash_exp.embedded.tokenizer import prompt_ids, train_tokenizer
from dflash_exp.export import drafter_state, layout_config, write_drafter
from dflash_exp.served import engines
from tests.served.fake_engines import Answer, Engine, serving
from tests.test_prompt_files import NO_THOUGHT
from tests.tiny_drafter import SHAPE, drafter_of

EMBEDDED = Path(__file__).parents[2] / "dflash_exp" / "embedded" / "files" / "target"
WARM_UP = Answer((0, 0))
FIRST, SECOND = Answer((3, 1, 0)), Answer((0, 3))
"""8 and 6 tokens, of which 7 in 3 verify steps and 5 in 2."""


@pytest.fixture(autouse=True)
def two_prompts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")
    Path("two.jsonl").write_text('{"prompt": "def f():"}\n{"prompt": "x = 0"}\n')


def vllm(*script: Answer, **more: Any) -> Engine:
    return Engine("vllm", (WARM_UP, *script), **more)


def evaluate(engine: Engine, *more: str) -> int:
    asked = ["--server", engine.address, "--target", "embedded", "--prompts", "two.jsonl", "--max-new-tokens", "12"]
    return main(["evaluate", *asked, *more])


def told(folder: str = ".") -> dict[str, Any]:
    return json.loads(Path(folder, "server-evaluation.json").read_text())


def refused(capsys: pytest.CaptureFixture[str], engine: Engine, *more: str) -> str:
    capsys.readouterr()
    assert evaluate(engine, *more) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and not Path("server-evaluation.json").exists()
    return line.removeprefix("dflash-exp: ").strip()


@pytest.mark.parametrize("owner", ["vllm", "sglang"])
def test_tau_and_slots_are_those_of_the_verify_steps_of_these_prompts_alone(
    owner: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(replace(vllm(FIRST, SECOND), owner=owner)) as engine:
        assert evaluate(engine) == 0
    found = told()
    assert found["tau_pooled"] == pytest.approx(12 / 5) and found["tau_macro"] == pytest.approx((7 / 3 + 5 / 2) / 2)
    assert found["accepted_at"] == pytest.approx([3 / 5, 2 / 5, 2 / 5])
    assert (found["prompts"], found["tokens"]) == (2, 14) and found["dflash_tokens_per_s"] > 0
    assert [(row["emitted"], row["verify_steps"]) for row in found["per_prompt"]] == [(7, 3), (5, 2)]
    assert (found["speedup"], found["plain_tokens_per_s"], found["lossless"]) == (None, None, None)
    assert found["other_traffic"] == {"tokens": 0, "prompts": 0}
    assert (found["engine"], found["model"], found["server"]) == (owner, "tiny", engine.address)
    said = capsys.readouterr().out
    assert f"{owner} serves tiny, 3 drafted tokens a step at most" in said and "other requests" not in said
    assert "accepted at slot: 1: 0.60  2: 0.40  3: 0.40" in said


def test_the_server_is_asked_for_the_ids_that_would_be_decoded_here_greedily_and_once_to_warm_up() -> None:
    with serving(vllm(FIRST, SECOND)) as engine:
        assert evaluate(engine) == 0
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    ids = [prompt_ids(tokenizer, text) for text in ("def f():", "x = 0")]
    assert [asked["prompt"] for asked in engine.asked] == [ids[0], *ids]
    assert [asked["max_tokens"] for asked in engine.asked] == [8, 12, 12]
    assert {asked["temperature"] for asked in engine.asked} == {0.0}


def test_what_a_text_s_last_step_accepted_beyond_its_end_is_not_in_tau() -> None:
    with serving(vllm(Answer((3, 3), n_cut=2), SECOND)) as engine:
        assert evaluate(engine) == 0
    assert told()["per_prompt"][0]["emitted"] == 6 and told()["tau_pooled"] == pytest.approx((6 + 5) / 4)


def test_counters_that_follow_the_answer_are_waited_for() -> None:
    with serving(vllm(replace(FIRST, lag=3), replace(SECOND, lag=2))) as engine:
        assert evaluate(engine) == 0
    assert [row["verify_steps"] for row in told()["per_prompt"]] == [3, 2] and told()["other_traffic"]["tokens"] == 0


def test_counters_that_never_follow_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "SETTLE_S", 0.1)
    with serving(vllm(replace(FIRST, lag=10**6), SECOND)) as engine:
        assert "its /metrics counts 272 tokens where it has answered with 280" in refused(capsys, engine)


def test_a_prompt_among_whose_steps_other_people_s_are_is_left_out_and_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(vllm(FIRST, replace(SECOND, others=5))) as engine:
        assert evaluate(engine) == 0
    found = told()
    assert found["other_traffic"] == {"tokens": 5, "prompts": 1} and (found["prompts"], found["tokens"]) == (2, 14)
    assert found["tau_pooled"] == found["tau_macro"] == pytest.approx(7 / 3)
    assert found["accepted_at"] == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    assert [row["verify_steps"] for row in found["per_prompt"]] == [3, None]
    said = (
        "other requests were served meanwhile: 5 tokens of theirs, in 1 of 2 prompts, which tau, slots and rates leave"
    )
    assert said in capsys.readouterr().out


def test_where_no_prompt_was_alone_there_is_no_tau(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(vllm(replace(FIRST, others=1), replace(SECOND, others=5))) as engine:
        assert evaluate(engine) == 0
    assert (told()["tau_pooled"], told()["accepted_at"], told()["dflash_tokens_per_s"]) == (None, None, None)
    assert "vllm serves tiny, 3 drafted tokens a step at most" in capsys.readouterr().out


def test_a_drafter_beside_the_server_holds_the_file_and_says_where_its_block_is_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("drafter").mkdir()
    write_drafter(Path("drafter"), drafter_state(drafter_of()), layout_config(SHAPE, 256))
    for n_slots, doubted in ((3, False), (7, True)):
        with serving(vllm(FIRST, SECOND, n_slots=n_slots)) as engine:
            assert evaluate(engine, "drafter") == 0
        assert ("the drafter has 3 slots to draft: is it the one" in capsys.readouterr().out) is doubted
    assert told("drafter")["checkpoint"] == "drafter" and Path("drafter/server-evaluation-2.json").is_file()


def test_prompts_with_thinking_off_and_on_are_two_rows(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = train_tokenizer(["def add(a, b): return a + b"], 270)
    tokenizer.chat_template = str(tokenizer.chat_template) + NO_THOUGHT
    tokenizer.save_pretrained("target")
    with serving(Engine("vllm", (WARM_UP, SECOND, SECOND, WARM_UP, FIRST, FIRST))) as engine:
        assert evaluate(engine, "--target", "target") == 0
    found = told()
    assert (found["thinking"], found["thinking_on"]["thinking"]) == (False, True)
    assert (found["tau_pooled"], found["thinking_on"]["tau_pooled"]) == (pytest.approx(7 / 3), pytest.approx(5 / 2))
    shown = capsys.readouterr().out
    assert "thinking off: all" in shown and "thinking on: all" in shown


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (Engine("openai", ()), "its model is owned by 'openai', not by vllm or sglang"),
        (vllm(FIRST, SECOND, speculates=False), "its /metrics has no vllm:spec_decode_num_drafts_total; start it with"),
        (Engine("sglang", (FIRST,), speculates=False), "its answers have no sglext.spec_tokens_details"),
        (vllm(counts_usage=False), "its answers have no choices[0].text with usage.completion_tokens"),
        (vllm(FIRST, SECOND, key="sk-2"), 'status 401: {"error": "no such key: Bearer ***"}'),
    ],
)
def test_a_server_that_does_not_tell_is_refused_in_one_line(
    engine: Engine, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SERVER_KEY", "sk-1")
    with serving(engine):
        line = refused(capsys, engine, "--api-key-env", "SERVER_KEY")
    assert line.startswith("--server must be vLLM or SGLang with a draft model, ") and why in line
    assert "sk-1" not in line


def test_what_is_wrong_about_the_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(vllm()) as engine:
        address = engine.address
    assert "ConnectError" in refused(capsys, engine)
    engine.address = "127.0.0.1:80"
    assert refused(capsys, engine).startswith("--server must be http://HOST:PORT or https://")
    engine.address = address
    assert "NOT_SET" not in refused(capsys, engine, "--api-key-env", "NOT_SET")
    assert refused(capsys, engine, "absent").startswith("PATH must be a run's directory or a drafter's, got absent")
    assert main(["evaluate"]) == 2 and "PATH must be a run's directory" in capsys.readouterr().err
    assert main(["evaluate", "--server", address]) == 2 and "--target must name the" in capsys.readouterr().err
