"""An array of rows gives the lines that its elements would be, whatever its blocks, and breaks off with a word."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_exp.data import sources
from dflash_exp.data.arrays import Damaged, element_lines
from dflash_exp.data.part import Fate
from dflash_exp.data.rows import values
from dflash_exp.data.sources import chunks, find_sources
from tests.data.test_prepared_parts import encoder, left_out, pair, prepared, train_split  # noqa: F401  a fixture

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def blocks(content: bytes, size: int) -> Iterator[bytes]:
    return (content[i : i + size] for i in range(0, len(content), size))


@settings(max_examples=60)
@given(st.lists(anything, max_size=5), st.integers(1, 40), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_each_element_is_a_line_that_says_the_same(
    rows: list[object], size: int, indent: int | str | None, ascii_only: bool
) -> None:
    content = json.dumps(rows, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    lines = list(element_lines(blocks(b" \r\n" + content + b"\n", size)))
    assert [json.loads(line) for line in lines] == rows and all(line.count(b"\n") == 1 for line in lines)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'[{"a": 1}', "must go on or end behind an element, got 'the end of the file'"),
        (b'[{"a": 1} {"a": 2}]', "must go on or end behind an element, got '{'"),
        (b'[{"a": 1}]\n[{"a": 2}]', r"behind a JSON array there must be nothing, got '\['"),
        (b'[{"a": 1}, {"a": b' + b" " * 99 + b"}]", "must hold JSON, it does not: Expecting value"),
        (b'[{"a": "b', "must hold JSON, it does not: Unterminated string"),
        (b"[1,]", "must hold JSON, it does not: Expecting value"),
        (b'["\xff"]', "must be UTF-8"),
        (b'["\xc3', "must be UTF-8"),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_what_is_no_whole_array_is_damaged(content: bytes, why: str, size: int) -> None:
    with pytest.raises(Damaged, match=why):
        list(element_lines(blocks(content, size)))


def test_a_wrong_element_is_found_before_all_that_follows_it_is_read() -> None:
    read = []

    def far_too_much() -> Iterator[bytes]:
        yield b'[{"a" 1}, '
        for _ in range(1000):
            read.append(1)
            yield b'"x", ' * 10

    with pytest.raises(Damaged, match="Expecting ':' delimiter"):
        list(element_lines(far_too_much()))
    assert len(read) <= 2


def test_a_json_file_with_an_array_is_read_like_its_rows_in_lines(
    tmp_path: Path,
    encoder,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [pair(i) for i in range(40)] + [{"prompt": "alone"}]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=2))
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
    (tmp_path / "c.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = []
    for name, chunk_bytes in (("a.json", 2**20), ("a.json", 300), ("b.json.gz", 100), ("c.json", 100)):
        monkeypatch.setattr(sources, "CHUNK_BYTES", chunk_bytes)
        root = tmp_path / f"{chunk_bytes}-{name}"
        root.mkdir()
        tally = prepared(root, encoder, [str(tmp_path / name)])
        assert tally.fates == Counter({Fate.KEPT: 40, Fate.MALFORMED: 1})
        assert [one["where"] for one in left_out(root)] == [f"{tmp_path / name}:41"]
        found.append([train_split(root).tokens(row).tolist() for row in train_split(root).rows])
    assert all(other == found[0] for other in found)


def test_chunks_of_an_array_say_which_element_they_begin_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CHUNK_BYTES", 60)
    (tmp_path / "a.json").write_text(json.dumps([{"text": f"{i:020}"} for i in range(7)]))
    made = list(chunks(find_sources([str(tmp_path / "a.json")])[0]))
    assert [(chunk.index, chunk.first) for chunk in made] == [(0, 1), (1, 3), (2, 5), (3, 7)]
    assert [where.rpartition(":")[2] for chunk in made for where, _ in values(chunk)] == [str(i) for i in range(1, 8)]


def test_only_a_json_file_is_looked_at_for_an_array(tmp_path: Path) -> None:
    for name in ("a.txt", "b.jsonl", "c.json", "d.json"):
        (tmp_path / name).write_text('{"text": "x"}\n' if name == "d.json" else "\n [1, 2]\n")
    assert [source.kind for source in find_sources([str(tmp_path)])[0]] == ["text", "jsonl", "array", "jsonl"]


def test_an_array_that_was_cut_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"text": "x"}, {"te')
    with pytest.raises(ValueError, match=r"a\.json must be readable to its end, it is not: a JSON array must hold"):
        list(chunks(find_sources([str(tmp_path / "a.json")])[0]))
