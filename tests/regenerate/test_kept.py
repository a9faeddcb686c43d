"""The rows that are done outlive kills, are put in the input's order, and have one process at a time."""

from contextlib import closing
from pathlib import Path

import pytest

from dflash_exp.data.regeneration import CONVERSATIONS, JOURNAL
from dflash_exp.regenerate.kept import Kept


def record(row: int) -> dict[str, object]:
    return {"row": row, "tokens": 2, "finish_reasons": ["stop"]}


def test_a_line_that_a_kill_has_cut_is_taken_off_before_others_are_written(tmp_path: Path) -> None:
    with closing(Kept(tmp_path)) as kept:
        for row in (4, 0):
            kept.add(record(row))
    with (tmp_path / JOURNAL).open("ab") as journal:
        journal.write(b'{"row": 2, "tok')
    with closing(Kept(tmp_path)) as kept:
        assert kept.n_bytes_cut == 15 and 2 not in kept
        kept.add(record(2))
    with closing(Kept(tmp_path)) as kept:
        assert kept.n_bytes_cut == 0 and (len(kept), kept.tokens, kept.finish_reasons["stop"]) == (3, 6, 3)
        kept.assemble()
    written = (tmp_path / CONVERSATIONS).read_text().splitlines()
    assert [line[:9] for line in written] == ['{"row": 0', '{"row": 2', '{"row": 4'] and len(
        list(tmp_path.iterdir())
    ) == 1


def test_two_processes_do_not_write_into_one_folder_and_a_damaged_file_is_not_replaced(tmp_path: Path) -> None:
    with closing(Kept(tmp_path)) as kept:
        with pytest.raises(ValueError, match="another process writes"):
            Kept(tmp_path)
        kept.add(record(0))
        kept.assemble()
    (tmp_path / CONVERSATIONS).write_text("mine\n")
    with pytest.raises(ValueError, match="must be as it was written, it is not from byte 0"):
        Kept(tmp_path)
    assert (tmp_path / CONVERSATIONS).read_text() == "mine\n"
