"""A store is written whole and once, read only as it was written, and its long sequences are dealt with as asked."""

import json
from pathlib import Path

import numpy as np
import pytest

from dflash_exp.data.prepare import Row, write_store
from dflash_exp.data.store import StoreData, TooLong, file_sha256, read_split

VOCAB_SIZE = 100


def row(n_prompt: int, n_response: int, first: int = 1) -> Row:
    tokens = [(first + i) % VOCAB_SIZE for i in range(n_prompt + n_response)]
    return Row(tokens, [False] * n_prompt + [True] * n_response, f"file{first}", "eos")


ROWS = [row(3, 4), row(2, 9, first=40), row(1, 2, first=90), row(5, 6, first=7)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    write_store(folder, {"train": ROWS, "prompts": [row(4, 0)]}, VOCAB_SIZE)
    return folder


def test_what_is_read_is_what_was_written(store: Path) -> None:
    read = read_split(store, "train", None, TooLong.error)
    assert [read.tokens(r).tolist() for r in read.rows] == [r.tokens for r in ROWS]
    assert [read.supervised(r).tolist() for r in read.rows] == [r.supervised for r in ROWS]
    assert read.lengths.tolist() == [7, 11, 3, 11]
    assert read.sources == ("file1", "file40", "file90", "file7")
    assert read.sha256 == file_sha256(store / "train.arrow")


def test_the_prompt_is_what_comes_before_the_first_supervised_token(store: Path) -> None:
    assert read_split(store, "train", None, TooLong.error).prompt(1).tolist() == [40, 41]
    assert read_split(store, "prompts", None, TooLong.error).prompt(0).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.int32)])
def test_tokens_take_two_bytes_where_the_vocabulary_allows_it(tmp_path: Path, vocab_size: int, dtype: type) -> None:
    write_store(tmp_path / "s", {"train": [Row([vocab_size - 1], [True], "a", "eos")]}, vocab_size)
    read = read_split(tmp_path / "s", "train", None, TooLong.error)
    assert read.tokens_N.dtype == dtype
    assert read.tokens(0).tolist() == [vocab_size - 1]


def test_a_compressed_store_reads_the_same(tmp_path: Path, store: Path) -> None:
    write_store(tmp_path / "small", {"train": ROWS}, VOCAB_SIZE, compress=True)
    plain, packed = (read_split(folder, "train", None, TooLong.error) for folder in (store, tmp_path / "small"))
    assert np.array_equal(plain.tokens_N, packed.tokens_N) and np.array_equal(plain.supervised_N, packed.supervised_N)
    assert plain.sha256 != packed.sha256


def test_long_sequences_are_cut_and_counted_under_truncate(store: Path) -> None:
    read = read_split(store, "train", 7, TooLong.truncate)
    assert (read.n_truncated, read.n_skipped) == (2, 0)
    assert read.lengths[read.rows].tolist() == [7, 7, 3, 7]
    assert read.tokens(1).tolist() == ROWS[1].tokens[:7] and read.supervised(1).tolist() == ROWS[1].supervised[:7]


def test_long_sequences_are_left_out_and_counted_under_skip_and_rows_keep_their_number(store: Path) -> None:
    read = read_split(store, "train", 7, TooLong.skip)
    assert (read.n_truncated, read.n_skipped) == (0, 2)
    assert read.rows.tolist() == [0, 2]
    assert read.tokens(2).tolist() == ROWS[2].tokens


def test_long_sequences_are_an_error_that_names_the_longest_under_error(store: Path) -> None:
    with pytest.raises(
        ValueError, match=r"at most 10 tokens .*got 2 longer ones \(row 1: 11\); raise batches"
    ) as caught:
        read_split(store, "train", 10, TooLong.error)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("too_long", TooLong)
def test_a_sequence_of_exactly_the_limit_is_kept_as_it_is(store: Path, too_long: TooLong) -> None:
    read = read_split(store, "train", 11, too_long)
    assert (read.lengths.tolist(), read.n_truncated, read.n_skipped) == ([7, 11, 3, 11], 0, 0)


def test_a_file_that_was_changed_is_refused(store: Path) -> None:
    path = store / "train.arrow"
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"train\.arrow must have the hash its manifest states"):
        read_split(store, "train", None, TooLong.error)


def test_a_file_that_is_gone_is_named(store: Path) -> None:
    (store / "train.arrow").unlink()
    with pytest.raises(ValueError, match=r"names train\.arrow, which must exist"):
        read_split(store, "train", None, TooLong.error)


def test_a_missing_split_is_named_with_those_that_are_there(store: Path) -> None:
    with pytest.raises(ValueError, match=r"must have a probe split, got \['prompts', 'train'\]"):
        read_split(store, "probe", None, TooLong.error)


def test_a_folder_without_a_manifest_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.path must be a store with a manifest\.json"):
        read_split(tmp_path, "train", None, TooLong.error)


def test_another_format_is_refused(store: Path) -> None:
    manifest = json.loads((store / "manifest.json").read_text())
    (store / "manifest.json").write_text(json.dumps({**manifest, "format": 3}))
    with pytest.raises(ValueError, match=r"a store of format 1 or 2, got 3"):
        read_split(store, "train", None, TooLong.error)


def test_a_store_is_never_overwritten(store: Path) -> None:
    before = {p.name: p.read_bytes() for p in store.iterdir()}
    with pytest.raises(ValueError, match="a store is never overwritten"):
        write_store(store, {"train": [row(1, 1)]}, VOCAB_SIZE)
    assert {p.name: p.read_bytes() for p in store.iterdir()} == before


@pytest.mark.parametrize(
    ("split", "bad", "says"),
    [
        ("train", Row([1, 2], [True], "a", "eos"), "train row 1 must have as many mask entries as tokens"),
        ("train", Row([], [], "a", "eos"), "at least one, got 0 and 0"),
        ("train", Row([1, VOCAB_SIZE], [True, True], "a", "eos"), r"must hold ids in \[0, 100\), got 1\.\.100"),
        ("train", Row([-1, 5], [True, True], "a", "eos"), r"must hold ids in \[0, 100\), got -1\.\.5"),
        ("test", row(1, 1), "a split must be one of train, probe, prompts, got test"),
    ],
)
def test_a_bad_split_mask_or_id_is_refused_and_no_store_is_made(
    tmp_path: Path, split: str, bad: Row, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        write_store(tmp_path / "store", {split: [row(1, 1), bad]}, VOCAB_SIZE)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_under_two_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.max_tokens must be at least 2 or null, got 1"):
        StoreData("somewhere", 1, TooLong.error)


def test_a_record_with_an_id_that_the_vocabulary_lacks_is_named(store: Path) -> None:
    manifest = json.loads((store / "manifest.json").read_text())
    largest = int(max(max(r.tokens) for r in ROWS))
    (store / "manifest.json").write_text(json.dumps(manifest | {"vocab_size": largest}))
    row = next(i for i, r in enumerate(ROWS) if max(r.tokens) >= largest)
    with pytest.raises(ValueError, match=rf"ids in 0\.\.{largest - 1}, got {largest}: row {row} of .*train\.arrow"):
        read_split(store, "train", None, TooLong.error)
