"""`dflash-exp regenerate` against a scripted server: order, retries, failures, stops, what is written."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dflash_exp.cli import main
from dflash_exp.compose import compose
from dflash_exp.config import identity
from tests.regenerate.fake_server import Answer, Asked, echo, said, serving


@pytest.fixture(autouse=True)
def empty_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def write(*rows: object) -> None:
    Path("chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def pairs(n: int) -> list[dict[str, str]]:
    return [{"prompt": f"q{i}", "response": "theirs"} for i in range(n)]


def regenerate(server: Asked, *more: str) -> int:
    return main(
        ["regenerate", "regenerate.source=chats.jsonl", "regenerate.out=own", f"regenerate.server={server.address}",
         "regenerate.first_wait_s=0.01", "regenerate.concurrency=4", *more]
    )  # fmt: skip


def written() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("own/conversations.jsonl").read_text().splitlines()]


def answers() -> list[str]:
    return [record["messages"][-1]["content"] for record in written()]


def report() -> dict[str, Any]:
    return json.loads(Path("own/report.json").read_text())


def files() -> set[str]:
    return {path.name for path in Path("own").iterdir()}


def refused(capsys: pytest.CaptureFixture[str], server: Asked, *more: str) -> str:
    capsys.readouterr()
    assert regenerate(server, *more) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line.removeprefix("dflash-exp: ").strip()


def last_asked(body: dict[str, Any]) -> str:
    return body["messages"][-1]["content"]


def test_each_assistant_turn_is_rewritten_in_order_and_sees_the_rewritten_ones_before_it() -> None:
    turns = [("system", "s"), ("human", "a"), ("gpt", "theirs 1"), ("human", "b"), ("gpt", "theirs 2"), ("human", "c")]
    write({"conversations": [{"from": role, "value": text} for role, text in turns]})
    with serving(echo) as server:
        assert regenerate(server, "regenerate.temperature=0.5", "regenerate.max_tokens=7") == 0
    said_so = [("system", "s"), ("user", "a"), ("assistant", "a!2"), ("user", "b"), ("assistant", "b!4"), ("user", "c")]
    messages = [{"role": role, "content": text} for role, text in said_so]
    assert [body["messages"] for body in server.bodies] == [messages[:2], messages[:4]]
    assert {(body["model"], body["temperature"], body["max_tokens"]) for body in server.bodies} == {("tiny", 0.5, 7)}
    assert len({body["seed"] for body in server.bodies}) == 2
    assert written() == [
        {"messages": messages, "source": "chats.jsonl:1", "row": 0, "tokens": 6, "finish_reasons": ["stop", "stop"]}
    ]


def test_with_last_turn_only_the_earlier_turns_stay_as_they_are() -> None:
    write({"messages": [{"role": role, "content": role} for role in ("user", "assistant", "user", "assistant")]})
    with serving(echo) as server:
        assert regenerate(server, "regenerate.last_turn_only=true") == 0
    assert [turn["content"] for turn in written()[0]["messages"]] == ["user", "assistant", "user", "user!3"]


def test_rows_are_asked_side_by_side_and_written_in_the_order_of_the_input() -> None:
    write(*pairs(12))

    def later_first(body: dict[str, Any], _: int) -> Answer:
        answer = echo(body, 0)
        return Answer(body=answer.body, hangs_s=0.12 - 0.01 * int(last_asked(body)[1:]))

    with serving(later_first) as server:
        assert regenerate(server) == 0
    assert answers() == [f"q{i}!1" for i in range(12)] and 1 < server.most_at_once <= 4
    assert files() == {"conversations.jsonl", "report.json", "regenerate.json"}


TRANSIENT = {
    "q0": Answer(500, b"out of memory"),
    "q1": Answer(429, b"slow down", {"Retry-After": "1"}),
    "q2": Answer(hangs_s=60),
    "q3": Answer(body=b'{"choices": [{"mess'),
    "q4": Answer(body=b'{"choices": []}'),
}


def test_what_fails_once_is_asked_again_and_a_retry_after_is_waited_for() -> None:
    write(*pairs(6))
    with serving(
        lambda body, before: echo(body, 0) if before else TRANSIENT.get(last_asked(body), echo(body, 0))
    ) as server:
        assert regenerate(server, "regenerate.timeout_s=2") == 0
    assert answers() == [f"q{i}!1" for i in range(6)]
    at_s: dict[str, list[float]] = {}
    for body, when_s in zip(server.bodies, server.at_s, strict=True):
        at_s.setdefault(last_asked(body), []).append(when_s)
    assert [len(at_s[f"q{i}"]) for i in range(6)] == [2, 2, 2, 2, 2, 1]
    assert at_s["q1"][1] - at_s["q1"][0] >= 1


def broken(body: dict[str, Any], _: int) -> Answer:
    """The second question fails for the server's sake, the third for its own."""
    return {"q1": Answer(503, b"busy\nstill"), "q2": Answer(400, b"too long")}.get(last_asked(body), echo(body, 0))


def test_every_row_is_kept_or_named_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    write(*pairs(2), {"prompt": "alone"}, {"text": "raw"}, *pairs(4)[2:])
    with serving(broken) as server:
        assert regenerate(server, "regenerate.retries=2") == 1
    asked = [last_asked(body) for body in server.bodies]
    assert (asked.count("q1"), asked.count("q2")) == (3, 1) and answers() == ["q0!1", "q3!1"]
    failed = [(1, 2, "status 503: busy still, the last of 3 attempts"), (4, 5, "status 400: too long")]
    skipped = [
        (3, "a row must have messages, conversations, a prompt and a response, or text, got prompt"),
        (4, "a row must have an assistant turn to rewrite, got a text"),
    ]
    assert report() == {
        "complete": True, "rows": 6, "kept": 2,
        "failed": [{"row": row, "where": f"chats.jsonl:{line}", "why": why} for row, line, why in failed],
        "skipped": [{"where": f"chats.jsonl:{line}", "why": why} for line, why in skipped],
        "tokens": 6, "rows_of_unknown_tokens": 0, "finish_reasons": {"stop": 2}, "left_out_files": [],
    }  # fmt: skip
    out = capsys.readouterr().out
    assert "6 rows: 2 kept, 2 failed, 2 skipped" in out and "failed: chats.jsonl:2: status 503: busy still" in out


def test_the_same_command_tries_failed_rows_again_and_puts_them_in_their_places() -> None:
    write(*pairs(4))
    with serving(broken) as server:
        assert regenerate(server, "regenerate.retries=0") == 1
    assert answers() == ["q0!1", "q3!1"]
    with serving(echo) as server:
        assert regenerate(server) == 0
    assert sorted(last_asked(body) for body in server.bodies) == ["q1", "q2"]
    assert answers() == [f"q{i}!1" for i in range(4)] and report()["failed"] == [] and report()["tokens"] == 12


def test_what_a_server_cuts_or_thinks_is_kept_and_counted() -> None:
    write(*pairs(3))
    scripted = {
        "q0": said("cut", "length"),
        "q1": said("four", reasoning_content="two and two"),
        "q2": Answer(body=b'{"choices": [{"message": {"content": null}}]}'),
    }
    with serving(lambda body, _: scripted[last_asked(body)]) as server:
        assert regenerate(server) == 0
    assert report()["finish_reasons"] == {"length": 1, "stop": 1, "unknown": 1}
    assert (report()["tokens"], report()["rows_of_unknown_tokens"]) == (6, 1)
    assert [record["messages"][1] for record in written()] == [
        {"role": "assistant", "content": "cut"},
        {"role": "assistant", "content": "four", "reasoning_content": "two and two"},
        {"role": "assistant", "content": ""},
    ]


def test_after_a_stop_the_same_command_makes_what_is_missing_and_a_cut_line_anew(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(*pairs(30))

    def stops_at_ten(body: dict[str, Any], _: int) -> Answer:
        if last_asked(body) == "q10":
            os.kill(os.getpid(), signal.SIGTERM)
            return Answer(hangs_s=30)
        return echo(body, 0)

    with serving(stops_at_ten) as server:
        assert regenerate(server) == 75
    assert "stopped (SIGTERM); the same command goes on" in capsys.readouterr().out
    assert files() == {"rows.journal", "report.json", "regenerate.json"} and report()["complete"] is False
    journal = Path("own/rows.journal")
    whole = journal.read_bytes().splitlines(keepends=True)
    assert 7 <= len(whole) < 30
    journal.write_bytes(b"".join(whole)[:-5])
    kept = {json.loads(line)["row"] for line in whole[:-1]}
    with serving(echo) as server:
        assert regenerate(server) == 0
    assert {last_asked(body) for body in server.bodies} == {f"q{i}" for i in range(30) if i not in kept}
    assert answers() == [f"q{i}!1" for i in range(30)] and "are no whole row" in capsys.readouterr().out


def test_a_finished_folder_is_left_as_it_is_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    write(*pairs(2))
    with serving(echo) as server:
        assert regenerate(server) == 0
    before = Path("own/conversations.jsonl").stat()
    assert regenerate(server, "regenerate.concurrency=1") == 0
    assert "own is finished" in capsys.readouterr().out
    assert Path("own/conversations.jsonl").stat().st_mtime_ns == before.st_mtime_ns


CHANGES = {
    "regenerate.temperature=1": "regenerate.temperature was 0.0 and is 1.0",
    "regenerate.max_tokens=9": "regenerate.max_tokens was 2048 and is 9",
    "regenerate.model=other": 'by.model was "tiny" and is "other"',
    "regenerate.server=null": "regenerate.batch was null and is 16",
    "regenerate.source=more.jsonl": "sources was ",
}


def test_other_settings_in_the_same_folder_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    write(*pairs(2))
    Path("more.jsonl").write_bytes(Path("chats.jsonl").read_bytes())
    with serving(echo) as server:
        assert regenerate(server) == 0
        for change, what in CHANGES.items():
            line = refused(capsys, server, change)
            assert line.startswith(
                "regenerate.out must have been begun with the same settings and input, own was not: "
            )
            assert what in line and answers() == ["q0!1", "q1!1"]


def test_a_key_is_sent_from_its_variable_and_written_nowhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OF_THE_TEST", "s3cret")
    write(*pairs(2))
    with serving(lambda body, _: Answer(400, b"you sent Bearer s3cret")) as server:
        assert regenerate(server, "regenerate.api_key_env=OF_THE_TEST") == 1
    with serving(lambda body, _: Answer(401, b"bad key s3cret")) as server:
        assert "bad key ***" in refused(capsys, server, "regenerate.api_key_env=OF_THE_TEST")
    assert server.keys == {"Bearer s3cret"}
    texts = [path.read_text() for path in Path("own").iterdir()]
    assert not any("s3cret" in text or "OF_THE_TEST" in text for text in texts)
    assert "you sent Bearer ***" in report()["failed"][0]["why"]
    assert "s3cret" not in "".join(capsys.readouterr())


def test_a_server_that_is_lost_ends_the_command_and_not_every_row_for_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(*pairs(200))
    with serving(lambda body, _: echo(body, 0) if last_asked(body) == "q0" else Answer(502)) as server:
        assert regenerate(server, "regenerate.retries=0") == 1
    assert "16 rows failed in succession" in capsys.readouterr().out and len(server.bodies) < 40
    assert report()["complete"] is False and report()["kept"] == 1 and not Path("own/conversations.jsonl").exists()
    with serving(echo) as server:
        assert regenerate(server) == 0
    assert answers() == [f"q{i}!1" for i in range(200)] and len(server.bodies) == 199


def test_what_is_wrong_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    write(*pairs(1))
    with serving(echo, models=("a", "b")) as server:
        assert "it serves a, b; name the model: regenerate.model=NAME" in refused(capsys, server)
        assert refused(capsys, server, "regenerate.source=null").startswith("regenerate.source must be given; say")
        assert refused(capsys, server, "regenerate.source=no.jsonl").startswith("regenerate.source must be there, got ")
        assert refused(capsys, server, "regenerate.out=.").startswith("regenerate.out must be a new folder, . holds")
        assert refused(capsys, server, "regenerate.server=127.0.0.1:80").startswith("regenerate.server must be http://")
        assert "sk-1" not in refused(capsys, server, "regenerate.api_key_env=sk-1")
        assert "NOT_SET" not in refused(capsys, server, "regenerate.api_key_env=NOT_SET")
        assert refused(capsys, server, "regenerate.concurrency=0").startswith("regenerate.concurrency must be >= 1")
        assert refused(capsys, server, "-m", "seed=0,1").startswith("regenerate makes one folder, got a sweep")
    lost = refused(capsys, server, "regenerate.retries=1")
    assert "does not: GET models: ConnectError" in lost
    assert not Path("own").exists()


def test_what_is_regenerated_is_no_part_of_a_run() -> None:
    assert identity(compose(["regenerate.source=x", "regenerate.batch=3"])) == identity(compose([]))
