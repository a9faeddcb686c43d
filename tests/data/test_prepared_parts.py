"""Every row of every kind of file has exactly one fate, whoever counts, and nothing is dropped without a word."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from dflash_exp.data import sources
from dflash_exp.data.assemble import Store, Tally, assemble, drawn_splits
from dflash_exp.data.part import Fate, Recipe, is_whole, part_path, write_part
from dflash_exp.data.preparation import Preparation, Thinking
from dflash_exp.data.sources import chunks, find_sources
from dflash_exp.data.store import Conversations, TooLong, read_split
from dflash_exp.data.template import Encoder

TARGET = Path(__file__).parents[2] / "dflash_exp" / "embedded" / "files" / "target"
VOCAB_SIZE = 280


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(AutoTokenizer.from_pretrained(TARGET), last_turn_only=False)


def settings(**changes: Any) -> Preparation:
    values: dict[str, Any] = {
        "source": None, "out": None, "workers": 1, "min_tokens": 2, "max_tokens": None, "thinking": Thinking.KEEP,
        "last_turn_only": False, "probe_share": 0.0, "prompts_share": 0.0,
    }  # fmt: skip
    return Preparation(**{**values, **changes})


def prepared(root: Path, encoder: Encoder, source: list[str], seed: int = 0, **changes: Any) -> Tally:
    """A store in `root/store`, made here, one part after the other."""
    asked = settings(**changes)
    (root / "parts").mkdir()
    (root / "store").mkdir()
    n_parts = 0
    for chunk in chunks(find_sources(source)[0]):
        write_part(root / "parts", chunk, encoder, Recipe(asked, VOCAB_SIZE))
        n_parts += 1
    return assemble(Store(root / "store", root / "parts", n_parts, VOCAB_SIZE, asked, seed))


def train_split(root: Path) -> Conversations:
    return read_split(root / "store", "train", None, TooLong.error)


def left_out(root: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (root / "store" / "left_out.jsonl").read_text().splitlines()]


def pair(i: int) -> dict[str, str]:
    return {"prompt": f"What is {i}?", "response": f"It is {i}."}


def write_lines(path: Path, lines: list[bytes]) -> str:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return str(path)


def as_lines(rows: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


BAD_LINES = {
    b'{"prompt": "Q"': "a line must be JSON",
    b'{"text": "\xff"}': "a line must be UTF-8, byte 11 is not",
    b"[1, 2]": "a row must be an object, got a list",
    b'{"body": "hello"}': "got body",
    b'{"messages": "hello"}': "messages must be a list of turns",
    b'{"messages": ["hello"]}': "turn 1 must be an object",
    b'{"messages": [{"content": "hello"}]}': "turn 1 must have `role`",
    b'{"messages": [{"role": "narrator", "content": "x"}]}': "turn 1's role must be one of",
    b'{"messages": [{"role": "user", "content": null}]}': "turn 1's content must be text, got null",
    b'{"messages": [{"role": "user", "content": "Q"}]}': "must have an assistant turn",
    b'{"messages": [{"role": "assistant", "content": "A"}]}': "must begin with a system or user turn",
    b'{"messages": [{"role": "system", "content": "S"}, {"role": "assistant", "content": "A"}]}': "template refuses it",
}


def test_every_malformed_line_is_named_with_its_file_and_line(tmp_path: Path, encoder: Encoder) -> None:
    good = as_lines([pair(i) for i in range(len(BAD_LINES))])
    lines = [line for two in zip(good, BAD_LINES, strict=True) for line in two]
    path = write_lines(tmp_path / "chats.jsonl", lines)
    tally = prepared(tmp_path, encoder, [path])
    assert tally.n_rows == 2 * len(BAD_LINES)
    assert tally.fates == Counter({Fate.KEPT: len(BAD_LINES), Fate.MALFORMED: len(BAD_LINES)})
    said = {one["where"]: one["why"] for one in left_out(tmp_path)}
    for number, why in enumerate(BAD_LINES.values()):
        assert why in said[f"{path}:{2 * number + 2}"]
    assert list(train_split(tmp_path).sources) == [f"{path}:{2 * i + 1}" for i in range(len(BAD_LINES))]
    assert len(tally.malformed) == 5, "the first few, for the report"


def test_every_row_has_exactly_one_fate(tmp_path: Path, encoder: Encoder) -> None:
    thinks = {"prompt": "Q", "response": "<think>why</think>A"}
    rows = [
        (thinks, Fate.KEPT), (pair(1), Fate.WITHOUT_THINKING), (thinks, Fate.DUPLICATE),
        ({"prompt": "Q", "response": "<think>why</think>" + "A" * 99}, Fate.TOO_LONG),
        ({"prompt": "Q", "response": " "}, Fate.EMPTY), ({"prompt": "Q"}, Fate.MALFORMED),
        ({"messages": []}, Fate.EMPTY), ({"prompt": "", "response": "<think>.</think>"}, Fate.KEPT),
    ]  # fmt: skip
    lines = [*as_lines([row for row, _ in rows]), b"", b"  "]
    path = write_lines(tmp_path / "chats.jsonl", lines)
    tally = prepared(tmp_path, encoder, [path], max_tokens=60, thinking=Thinking.REQUIRE)
    assert tally.n_rows == 10
    assert tally.fates == Counter(fate for _, fate in rows) + Counter({Fate.EMPTY: 2})
    expected = {str(i): fate.value for i, (_, fate) in enumerate(rows, 1) if fate is not Fate.KEPT}
    found = {one["where"].rpartition(":")[2]: one["fate"] for one in left_out(tmp_path)}
    assert found == {**expected, "9": "empty", "10": "empty"}


def test_the_limits_are_of_tokens_and_both_ends_are_kept(tmp_path: Path, encoder: Encoder) -> None:
    rows = [{"prompt": "", "response": "!" * n} for n in (1, 2, 3, 4)]  # user, assistant, n, end: n + 3 tokens
    tally = prepared(tmp_path, encoder, [write_lines(tmp_path / "a.jsonl", as_lines(rows))], min_tokens=5, max_tokens=6)
    assert train_split(tmp_path).lengths.tolist() == [5, 6]
    assert (tally.fates[Fate.TOO_SHORT], tally.fates[Fate.TOO_LONG]) == (1, 1)
    assert tally.lengths == {8: 2} and tally.tokens["train"] == 11 and tally.supervised["train"] == 7


def test_lines_tables_and_packed_files_give_the_same_store(
    tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [pair(i) for i in range(40)]
    content = b"".join(line + b"\n" for line in as_lines(rows))
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content[:500]) + gzip.compress(content[500:]))
    with pa.CompressedOutputStream(str(tmp_path / "a.jsonl.zst"), "zstd") as file:
        file.write(content)
    (tmp_path / "cut.jsonl").write_bytes(content.rstrip(b"\n"))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=7)
    found = []
    for chunk_bytes, name in ((2**20, "a.jsonl"), (50, "a.jsonl"), (50, "a.jsonl.gz"), (70, "a.jsonl.zst"),
                              (64, "cut.jsonl"), (9, "a.parquet")):  # fmt: skip
        monkeypatch.setattr(sources, "CHUNK_BYTES", chunk_bytes)
        monkeypatch.setattr(sources, "CHUNK_ROWS", chunk_bytes)
        root = tmp_path / f"{chunk_bytes}-{name}"
        root.mkdir()
        prepared(root, encoder, [str(tmp_path / name)])
        read = train_split(root)
        found.append([read.tokens(row).tolist() for row in read.rows])
        assert [source.rpartition(":")[2] for source in read.sources] == [str(i) for i in range(1, 41)]
    assert len(found[0]) == 40 and all(other == found[0] for other in found)


def test_a_dataset_saved_to_disk_is_read_split_by_split(tmp_path: Path, encoder: Encoder) -> None:
    datasets = pytest.importorskip("datasets")
    one, two = ([pair(i) for i in range(first, first + 3)] for first in (0, 3))
    both = datasets.DatasetDict({"a": datasets.Dataset.from_list(one), "b": datasets.Dataset.from_list(two)})
    both.save_to_disk(str(tmp_path / "d"))
    tally = prepared(tmp_path, encoder, [str(tmp_path / "d")])
    assert tally.fates == {Fate.KEPT: 6}
    assert list(train_split(tmp_path).sources) == [f"{tmp_path / 'd'}:{s}:{i}" for s in "ab" for i in (1, 2, 3)]


def test_raw_text_is_a_row_a_line(tmp_path: Path, encoder: Encoder) -> None:
    path = write_lines(tmp_path / "a.txt", [b"x = 1", b"", b"y = 2\r"])
    tally = prepared(tmp_path, encoder, [path])
    assert tally.fates == {Fate.KEPT: 2, Fate.EMPTY: 1}
    read = train_split(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    assert [tokenizer.decode(read.tokens(row)) for row in read.rows] == ["x = 1<|end|>", "y = 2<|end|>"]


def test_folders_and_globs_name_files_and_say_which_they_leave_out(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.parquet", "sub/c.jsonl.gz", "sub/readme.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found, others = find_sources([str(tmp_path)])
    assert [Path(source.name).name for source in found] == ["a.parquet", "b.jsonl", "c.jsonl.gz"]
    assert others == [str(tmp_path / "sub" / "readme.md")]
    assert len(find_sources([str(tmp_path / "**" / "*.jsonl*"), str(tmp_path / "b.jsonl")])[0]) == 2, "each once"


@pytest.mark.parametrize("name", ["no.jsonl", "*.nothing", "readme.md"])
def test_a_source_that_names_nothing_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "readme.md").write_text("")
    with pytest.raises(ValueError, match=r"prepare\.source must .*is it spelt right\?"):
        find_sources([str(tmp_path / name)])


def test_a_packed_file_that_was_cut_is_refused_by_name(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(as_lines([pair(i) for i in range(999)])))
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz must be readable to its end, it is not: "):
        list(chunks(find_sources([str(tmp_path / "a.jsonl.gz")])[0]))


def test_a_conversation_stays_in_its_split_when_more_come(tmp_path: Path) -> None:
    digests = np.random.default_rng(0).integers(0, 2**64, 100_000, np.uint64)
    asked = settings(probe_share=0.1, prompts_share=0.02)
    drawn = drawn_splits(digests, asked, seed=0)
    shares = np.bincount(drawn) / len(drawn)
    assert np.allclose(shares, [0.88, 0.1, 0.02], atol=3 * (0.25 / len(drawn)) ** 0.5)
    assert np.array_equal(drawn[::7], drawn_splits(digests[::7], asked, seed=0))
    assert (drawn != drawn_splits(digests, asked, seed=1)).mean() > 0.15


def test_a_part_that_was_cut_is_not_whole(tmp_path: Path, encoder: Encoder) -> None:
    path = write_lines(tmp_path / "a.jsonl", as_lines([pair(1)]))
    (chunk,) = chunks(find_sources([path])[0])
    write_part(tmp_path, chunk, encoder, Recipe(settings(), VOCAB_SIZE))
    part = part_path(tmp_path, 0)
    assert is_whole(part)
    part.write_bytes(part.read_bytes()[:-20])
    assert not is_whole(part) and not is_whole(part_path(tmp_path, 1))


def test_a_tokenizer_that_says_more_than_the_vocabulary_is_refused(tmp_path: Path, encoder: Encoder) -> None:
    path = write_lines(tmp_path / "a.jsonl", as_lines([pair(1)]))
    (chunk,) = chunks(find_sources([path])[0])
    with pytest.raises(ValueError, match=r"must give ids below 10, its vocabulary, got \d+ for .*a\.jsonl:1;"):
        write_part(tmp_path, chunk, encoder, Recipe(settings(), 10))
