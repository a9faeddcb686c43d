"""A store in pieces is mapped, not copied, and hashed once: until a write, or in a copy of it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dflash_exp.data import split_file, store
from dflash_exp.data.split_file import SplitFile
from dflash_exp.data.store import PREPARED, TooLong, file_sha256, read_split

ROWS = [[1, 2, 3], [4], [5, 6, 7, 8], [9, 10]]
MASKS = [[0, 1, 1], [1], [0, 0, 1, 0], [1, 1]]


def write_pieces(folder: Path, token_type: pa.DataType, rows: list[list[int]] = ROWS) -> Path:
    """A store of format 2 whose train split is written a row at a time."""
    folder.mkdir()
    columns = {
        "tokens": pa.array(rows, pa.list_(token_type)),
        "supervised": pa.array(MASKS[: len(rows)], pa.list_(pa.uint8())),
        "source": pa.array([f"file:{i}" for i in range(len(rows))], pa.string()),
        "ending": pa.array(["eos"] * len(rows), pa.string()),
    }
    table = pa.table(columns)
    with SplitFile(folder / "train.arrow", table.schema) as file:
        for i in range(len(rows)):
            file.add(table.slice(i, 1).combine_chunks())
    described = {"file": "train.arrow", "sha256": file_sha256(folder / "train.arrow"), "sequences": 4, "tokens": 10}
    manifest = {"format": PREPARED, "vocab_size": 11, "splits": {"train": described}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize("token_type", [pa.uint16(), pa.int32()])
@pytest.mark.parametrize("piece_tokens", [1, 4, 1000])
def test_rows_in_pieces_are_read_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token_type: pa.DataType, piece_tokens: int
) -> None:
    monkeypatch.setattr(split_file, "PIECE_TOKENS", piece_tokens)
    read = read_split(write_pieces(tmp_path / "s", token_type), "train", None, TooLong.error)
    assert [read.tokens(row).tolist() for row in read.rows] == ROWS
    assert [read.supervised(row).astype(int).tolist() for row in read.rows] == MASKS
    assert read.prompt(2).tolist() == [5, 6]
    assert list(read.sources) == ["file:0", "file:1", "file:2", "file:3"] and read.sources[-1] == "file:3"
    assert read.tokens(0).dtype == token_type.to_pandas_dtype() and read.supervised(0).dtype == bool


def test_tokens_and_mask_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    read = read_split(write_pieces(tmp_path / "s", pa.uint16()), "train", None, TooLong.error)
    assert np.shares_memory(read.tokens_N, read.supervised_N)
    with pytest.raises(ValueError, match="read-only"):
        read.tokens_N[0] = 1


def test_a_split_without_rows_can_be_read(tmp_path: Path) -> None:
    read = read_split(write_pieces(tmp_path / "s", pa.uint16(), []), "train", None, TooLong.error)
    assert len(read.rows) == 0 and len(read.sources) == 0


def test_a_file_is_hashed_once_and_anew_when_it_was_written_to_or_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, hashed = write_pieces(tmp_path / "s", pa.uint16()), []
    monkeypatch.setattr(store, "file_sha256", lambda path: (hashed.append(path), file_sha256(path))[1])
    for _ in range(3):
        read_split(folder, "train", None, TooLong.error)
    assert hashed == [folder / "train.arrow"]
    shutil.copytree(folder, tmp_path / "copy")
    read_split(tmp_path / "copy", "train", None, TooLong.error)
    assert len(hashed) == 2
    content = bytearray((folder / "train.arrow").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "train.arrow").write_bytes(content)
    with pytest.raises(ValueError, match="must have the hash its manifest states"):
        read_split(folder, "train", None, TooLong.error)


def test_a_token_beyond_the_vocabulary_is_named_with_its_row(tmp_path: Path) -> None:
    folder = write_pieces(tmp_path / "s", pa.uint16(), [[1, 2, 3], [99]])
    with pytest.raises(ValueError, match=r"ids in 0\.\.10, got 99: row 1 of .*\(from 'file:1'\)"):
        read_split(folder, "train", None, TooLong.error)
