"""`dflash-exp prepare` reads what `dflash-exp regenerate` wrote: its conversations, and nothing beside them."""

import json
from pathlib import Path

import pytest

from dflash_exp.cli import main
from dflash_exp.data.sources import find_sources
from dflash_exp.data.store import TooLong, read_split
from tests.regenerate.fake_server import Answer, echo, serving
from tests.regenerate.test_server import last_asked, pairs, regenerate, write


@pytest.fixture(autouse=True)
def empty_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_prepare_reads_the_conversations_that_were_written_and_not_the_report_beside_them() -> None:
    write(*pairs(40))
    with serving(echo) as server:
        assert regenerate(server) == 0
    assert main(["prepare", "prepare.source=own", "prepare.out=store", "prepare.workers=1"]) == 0
    counts = [len(read_split(Path("store"), name, None, TooLong.error).rows) for name in ("train", "probe", "prompts")]
    assert sum(counts) == 40 == json.loads(Path("store/report.json").read_text())["rows"]
    for named in ("own/conversations.jsonl", "own/*.json*"):
        assert [source.name for source in find_sources([named])[0]] == ["own/conversations.jsonl"]


def test_prepare_of_a_folder_that_is_not_finished_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    write(*pairs(40))
    with serving(lambda body, _: echo(body, 0) if last_asked(body) == "q0" else Answer(502)) as server:
        assert regenerate(server, "regenerate.retries=0") == 1
    capsys.readouterr()
    assert main(["prepare", "prepare.source=own", "prepare.out=store"]) == 2
    said = "prepare.source must be finished where dflash-exp regenerate makes it, 'own' is not; the same regenerate"
    assert said in capsys.readouterr().err


def test_a_report_that_regenerate_did_not_write_is_read_like_any_other_file() -> None:
    write(*pairs(2))
    Path("report.json").write_text('{"prompt": "q", "response": "a"}\n')
    assert [source.name for source in find_sources(["."])[0]] == ["chats.jsonl", "report.json"]
