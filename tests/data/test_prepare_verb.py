"""`dflash-exp prepare` from the command line: the same store from any number of processes, and after any stop."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dflash_exp import part_workers
from dflash_exp.cli import main
from dflash_exp.compose import compose
from dflash_exp.config import identity
from dflash_exp.data import part, sources
from dflash_exp.data.sources import Chunk
from dflash_exp.data.store import TooLong, read_split
from tests.world import files_of


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """About ten chunks, in an empty current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "CHUNK_BYTES", 1000)
    rows = [{"prompt": f"What is {i % 190}?", "response": f"It is {i % 190}."} for i in range(200)]
    Path("chats.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, {"prompt": "alone"}]))


def asked(out: str, *more: str) -> list[str]:
    return [
        "prepare", "prepare.source=chats.jsonl", f"prepare.out={out}", "prepare.workers=1", "prepare.probe_share=0.2",
        "prepare.prompts_share=0.1", *more,
    ]  # fmt: skip


def store_of(folder: str) -> dict[str, bytes]:
    """Its files, without what is of this very copy."""
    return {name: content for name, content in files_of(Path(folder)).items() if name != ".verified.json"}


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    capsys.readouterr()
    assert main(arguments) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line.removeprefix("dflash-exp: ").strip()


def test_a_store_can_be_trained_on_and_its_report_counts_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(asked("store")) == 0
    said = capsys.readouterr().out
    assert "201 rows: 190 kept, 1 malformed, 10 duplicate" in said
    assert "malformed: chats.jsonl:201: a row must have messages" in said
    assert "<|user|>What is 0?<|assistant|>⟦It is 0.<|end|>⟧" in said
    report = json.loads(Path("store/report.json").read_text())
    assert report["rows"] == 201 == sum(report["fates"].values())
    counts = {split: len(read_split(Path("store"), split, None, TooLong.error).rows) for split in report["splits"]}
    assert counts == {split: report["splits"][split]["sequences"] for split in counts} and sum(counts.values()) == 190
    assert all(count > 0 for count in counts.values())
    assert not Path("store/parts").exists()


def test_two_processes_make_the_store_that_one_makes() -> None:
    assert main(asked("one")) == 0 and main(asked("two", "prepare.workers=2")) == 0
    assert store_of("one") == store_of("two")


def test_after_a_stop_the_same_command_makes_only_the_parts_that_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(asked("never_stopped")) == 0
    made: list[int] = []

    def stopped_in_the_fourth(*arguments: object) -> None:
        chunk = next(one for one in arguments if isinstance(one, Chunk))
        made.append(chunk.index)
        if len(made) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        part.write_part(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(part_workers, "write_part", stopped_in_the_fourth)
    assert main(asked("store")) == 75
    assert "stopped (SIGTERM); the same command goes on" in capsys.readouterr().out
    assert made == [0, 1, 2, 3] and not Path("store/manifest.json").exists()
    cut = Path("store/parts/00000002.arrow")
    cut.write_bytes(cut.read_bytes()[:100])
    assert main(asked("store")) == 0
    n_chunks = 1 + max(made)
    assert made == [0, 1, 2, 3, 2, *range(4, n_chunks)] and n_chunks > 8
    assert store_of("store") == store_of("never_stopped")


def test_a_finished_store_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(asked("store")) == 0
    before = files_of(Path("store"))
    assert main(asked("store", "prepare.workers=2")) == 0
    assert "store is finished" in capsys.readouterr().out and files_of(Path("store")) == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("prepare.max_tokens=99", "prepare.max_tokens was null and is 99"),
        ("prepare.thinking=strip", 'prepare.thinking was "keep" and is "strip"'),
        ("seeds.data=1", "seeds.data was 0 and is 1"),
        ("prepare.source=more.jsonl", "sources was "),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(
    capsys: pytest.CaptureFixture[str], change: str, said: str
) -> None:
    Path("more.jsonl").write_text('{"text": "x"}\n')
    assert main(asked("store")) == 0
    line = refused(capsys, asked("store", change))
    assert line.startswith("prepare.out must have been begun with the same settings and input, store was not: ")
    assert said in line and line.endswith("; choose another prepare.out")


def test_what_is_wrong_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, ["prepare"]).startswith("prepare.source must be given; say prepare.source=")
    assert refused(capsys, ["prepare", "prepare.source=chats.jsonl"]).startswith("prepare.out must be given; ")
    assert refused(capsys, asked("s", "prepare.source=no.jsonl")).startswith("prepare.source must be there, got 'no.js")
    assert refused(capsys, asked(".")).startswith("prepare.out must be a new folder, . holds other things")
    assert "did you mean `prepare.max_tokens`?" in refused(capsys, asked("s", "prepare.max_token=5"))
    assert refused(capsys, asked("s", "prepare.probe_share=1")).startswith("prepare.probe_share and prepare.prompts_")
    assert refused(capsys, asked("s", "prepare.thinking=kep")).endswith("did you mean `keep`?")
    assert refused(capsys, [*asked("s"), "-m", "seed=0,1"]).startswith("prepare makes one store, got a sweep")
    assert not Path("s").exists()


def test_what_is_prepared_is_no_part_of_a_run() -> None:
    assert identity(compose(["prepare.source=x", "prepare.workers=3"])) == identity(compose([]))


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_workers_end_with_their_parent_even_when_it_is_killed() -> None:
    Path("large.jsonl").write_bytes(Path("chats.jsonl").read_bytes() * 2000)
    arguments = asked("store", "prepare.source=large.jsonl", "prepare.workers=2")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "dflash_exp.cli", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    while not list(Path("store").glob("parts/*.arrow")):
        assert process.poll() is None
        time.sleep(0.1)
    with_workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{child}/cmdline").exists() for child in with_workers):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.1)
    assert len(with_workers) >= 2
