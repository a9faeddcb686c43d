"""Output that cannot be written ends nothing: a full disk, a reader that is gone, an encoding without the character."""

import io
import os
import sys
from pathlib import Path

import pytest

from dflash_exp.console import LastingConsole
from dflash_exp.lasting import LastingFile, lasting, lasting_stderr, replace_what_stdout_lacks, text_of

FULL = Path("/dev/full")
on_linux = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


def console_on(path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8") -> LastingConsole:
    monkeypatch.setattr(sys, "stdout", path.open("w", encoding=encoding))
    return LastingConsole()


@on_linux
def test_a_line_on_a_full_disk_is_lost_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    console = console_on(FULL, monkeypatch)
    console.say("τ " * 10_000)
    console.print("a table")
    sys.stdout.close()  # as the interpreter does at its end
    assert sys.stdout.closed, "nothing was left in its buffer, which would have raised"


def test_the_next_line_is_tried_again() -> None:
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    os.set_blocking(reads, False)
    text = text_of(LastingFile(writes, "w"), "utf-8")
    for number in range(100_000):
        print(f"line {number}", file=text)
    held = b""
    while (part := _read(reads)) is not None:
        held += part
    assert held.startswith(b"line 0\n") and len(held) < 900_000, "the pipe was full"
    print("again", file=text)
    assert _read(reads) == b"again\n"


def _read(handle: int) -> bytes | None:
    try:
        return os.read(handle, 1 << 20)
    except BlockingIOError:
        return None


def test_a_reader_that_is_gone_silences_the_console(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    monkeypatch.setattr(sys, "stdout", os.fdopen(writes, "w"))
    LastingConsole().say("nobody")
    sys.stdout.close()
    assert sys.stdout.closed, "nothing was left in its buffer, which would have raised"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    console_on(tmp_path / "log", monkeypatch, encoding).say("τ 2.5")
    assert (tmp_path / "log").read_bytes() == b"? 2.5\n"
    replace_what_stdout_lacks()
    print("τ", flush=True)
    assert (tmp_path / "log").read_bytes() == b"? 2.5\n?\n"


def test_a_process_without_stderr_prints_nothing_of_it_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with lasting_stderr():
        print("a line", file=sys.stderr)
    assert sys.stderr is None and capsys.readouterr().out == ""


class Notebook(io.StringIO):
    def fileno(self) -> int:
        return 1  # the terminal of the kernel, where nobody looks


@pytest.mark.parametrize("stream", [io.StringIO(), Notebook(), None])
def test_a_stream_that_is_no_file_s_is_left_as_it_is(stream: io.StringIO | None) -> None:
    assert lasting(stream) is stream


@on_linux
def test_a_rank_s_log_that_cannot_be_written_is_quiet(tmp_path: Path) -> None:
    console = LastingConsole(quiet=True)
    console.write_to(tmp_path / "nowhere" / "rank-1.log")
    console.say("kept to itself")
    assert console.quiet, "there is no such file"
    (tmp_path / "rank-2.log").symlink_to(FULL)
    console.write_to(tmp_path / "rank-2.log")
    console.say("lost")
    assert not console.quiet, "each line is tried"
