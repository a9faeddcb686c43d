"""Files, folders and datasets become chunks of raw rows, a few megabytes at a time.

In: what `prepare.source` or `regenerate.source` names. Out: `Chunk`s, the same ones in the same order whoever asks, so
that a chunk's number says what is in it. Lines are cut here and read as JSON by the workers; .gz and .zst are unpacked
on the way.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dflash_exp.data.arrays import Damaged, element_lines, is_array
from dflash_exp.data.regeneration import ASKED, JOURNAL, REPORT

CHUNK_BYTES = 2**20
"""Of lines in a chunk; the memory of a worker is some hundred times that."""
HEAD_BYTES = 64
"""That tell an array from lines."""
CHUNK_ROWS = 256
"""Of a table in a chunk."""
PACKED = {".gz": "gzip", ".zst": "zstd"}
LINES = (".jsonl", ".ndjson", ".json", ".txt")
TABLES = (".parquet",)
HUB = "hf:"


@dataclass(frozen=True)
class Source:
    """One file, or one split of a dataset."""

    name: str
    kind: str
    """jsonl, array, text, parquet or dataset."""
    n_bytes: int
    version: str
    """Another one means other rows: of a file the time it was changed, of a dataset its fingerprint."""


@dataclass(frozen=True)
class Chunk:
    """Some rows of one source."""

    index: int
    """Over all sources, from 0."""
    source: Source
    first: int
    """Line, element of an array or row that it begins with, from 1."""
    rows: bytes | pa.RecordBatch
    """Whole lines, or a piece of a table."""
    done_share: float
    """Of the source, with this chunk."""


def find_sources(wanted: Sequence[str], key: str = "prepare.source") -> tuple[list[Source], list[str]]:
    """Everything that was named, in the order of the names, and the files in folders that are of no known kind.

    `key` is what the user calls them. Raises ValueError, one line, for what is not there or cannot be read.
    """
    found: dict[str, Source] = {}
    left_out: list[str] = []
    for name in wanted:
        if name.startswith(HUB) or _is_dataset(Path(name)):
            found |= {source.name: source for source in _datasets(name, key)}
            continue
        paths = _paths(name, key)
        named = [path for path in paths if _kind(path) is not None]
        if not named:
            raise _nothing_in(name, paths, key)
        left_out += [str(path) for path in paths if _kind(path) is None]
        found |= {str(path): _file(path) for path in named}
    return list(found.values()), left_out


def _nothing_in(name: str, paths: Sequence[Path], key: str) -> ValueError:
    """Why none of what was found under a name can be read."""
    if any(path.name == JOURNAL for path in paths):
        return ValueError(
            f"{key} must be finished where dflash-exp regenerate makes it, {name!r} is not; the same regenerate "
            "command goes on with it"
        )
    return ValueError(
        f"{key} must name {', '.join((*LINES, *TABLES))} (also .gz, .zst), a folder of them, or "
        f"hf:owner/name, got {name!r} with {len(paths)} files of other kinds; is it spelt right?"
    )


def chunks(sources: Sequence[Source]) -> Iterator[Chunk]:
    """Every row of every source; raises ValueError, one line, for a file that ends too early or is damaged."""
    index = 0
    for source in sources:
        readers = {"parquet": _tables, "dataset": _dataset_tables, "array": _array_blocks}
        pieces = readers.get(source.kind, _line_blocks)(source)
        try:
            for first, rows, done_share in pieces:
                yield Chunk(index, source, first, rows, done_share)
                index += 1
        except (OSError, EOFError, pa.ArrowInvalid, Damaged) as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"{source.name} must be readable to its end, it is not: {reason}; restore it or leave it out"
            ) from error


def share_read(sources: Sequence[Source]) -> Callable[[Chunk], float]:
    """How much of all sources is read once a chunk of theirs is."""
    before, total = dict[str, int](), 0
    for source in sources:
        before[source.name] = total
        total += source.n_bytes
    return lambda chunk: (before[chunk.source.name] + chunk.done_share * chunk.source.n_bytes) / max(1, total)


def _paths(name: str, key: str) -> list[Path]:
    path = Path(name)
    if path.is_file():
        return [path]
    if not path.exists() and not has_magic(name):
        raise ValueError(f"{key} must be there, got {name!r}, which is not; is it spelt right?")
    found = path.rglob("*") if path.is_dir() else map(Path, glob(name, recursive=True))
    return sorted(inner for inner in found if inner.is_file() and not _is_record(inner))


def _is_record(path: Path) -> bool:
    """Whether it only tells of the conversations beside it, which `dflash-exp regenerate` wrote."""
    return path.name in (ASKED, REPORT) and (path.parent / ASKED).is_file()


def _kind(path: Path) -> str | None:
    """None: not one that can be read. Of .json only its beginning tells whether it is an array."""
    inner = _unpacked(path)
    if inner.suffix in TABLES and inner is path:
        return "parquet"
    return ("text" if inner.suffix == ".txt" else "jsonl") if inner.suffix in LINES else None


def _unpacked(path: Path) -> Path:
    return Path(path.stem) if path.suffix in PACKED else path


def _file(path: Path) -> Source:
    state, kind = path.stat(), str(_kind(path))
    if _unpacked(path).suffix == ".json" and is_array(_head(path)):
        kind = "array"
    return Source(str(path), kind, state.st_size, str(state.st_mtime_ns))


def _head(path: Path) -> bytes:
    """The first bytes, unpacked; none where they cannot be, which reading it will say."""
    try:
        with _opened(path) as (stream, _):
            return stream.read(HEAD_BYTES)
    except (OSError, EOFError, pa.ArrowInvalid):
        return b""


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, pa.OSFile]]:
    """The stream of what is in a file, and the file, which knows how far it is read."""
    with pa.OSFile(str(path)) as file:
        packed = PACKED.get(path.suffix)
        yield pa.CompressedInputStream(file, packed) if packed else file, file


def _line_blocks(source: Source) -> Iterator[tuple[int, bytes, float]]:
    """Whole lines of about a chunk, the line they begin at, and the share of the file that is read."""
    first, behind = 1, b""
    with _opened(Path(source.name)) as (stream, file):
        while block := stream.read(CHUNK_BYTES):
            whole, newline, rest = block.rpartition(b"\n")
            if not newline:
                behind += block
                continue
            lines = behind + whole + newline
            yield first, lines, file.tell() / max(1, source.n_bytes)
            first, behind = first + lines.count(b"\n"), rest
    if behind:
        yield first, behind, 1.0


def _array_blocks(source: Source) -> Iterator[tuple[int, bytes, float]]:
    """The same of an array's elements, each on a line."""
    with _opened(Path(source.name)) as (stream, file):
        first, lines = 1, bytearray()
        for number, line in enumerate(element_lines(iter(lambda: stream.read(CHUNK_BYTES), b"")), start=1):
            lines += line
            if len(lines) >= CHUNK_BYTES:
                yield first, bytes(lines), file.tell() / max(1, source.n_bytes)
                first, lines = number + 1, bytearray()
        if lines:
            yield first, bytes(lines), 1.0


def _tables(source: Source) -> Iterator[tuple[int, pa.RecordBatch, float]]:
    with pq.ParquetFile(source.name) as file:
        yield from _numbered(file.iter_batches(CHUNK_ROWS), file.metadata.num_rows)


def _dataset_tables(source: Source) -> Iterator[tuple[int, pa.RecordBatch, float]]:
    name, _, split = source.name.rpartition(":")
    dataset = _loaded(name, source.name)[split]
    pieces = dataset.with_format("arrow").iter(CHUNK_ROWS)
    yield from _numbered((batch for piece in pieces for batch in piece.to_batches()), len(dataset))


def _numbered(batches: Iterator[pa.RecordBatch], n_rows: int) -> Iterator[tuple[int, pa.RecordBatch, float]]:
    before = 0
    for batch in batches:
        before += len(batch)
        yield before - len(batch) + 1, batch, before / n_rows


def _is_dataset(path: Path) -> bool:
    """Whether `datasets.save_to_disk` wrote it."""
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def _datasets(name: str, key: str) -> list[Source]:
    hub = name.removeprefix(HUB)
    name, _, only = (HUB + hub).rpartition(":") if name.startswith(HUB) and ":" in hub else (name, "", "")
    splits = _loaded(name, key)
    if only and only not in splits:
        raise ValueError(f"{key} must name a split of {name}, got {only}; there are {', '.join(splits)}")
    wanted = [only] if only else list(splits)
    return [
        Source(f"{name}:{split}", "dataset", splits[split].data.nbytes, splits[split]._fingerprint) for split in wanted
    ]


def _loaded(name: str, key: str) -> dict[str, Any]:
    """The splits of a dataset, from disk or the hub; raises ValueError, one line."""
    import datasets

    try:
        if name.startswith(HUB):
            loaded = datasets.load_dataset(name.removeprefix(HUB))
        else:
            loaded = datasets.load_from_disk(name)
    except Exception as error:  # the library raises a kind of its own for each way in which it finds nothing
        reason = " ".join(str(error).split())
        raise ValueError(f"{key} must be a dataset, {name} is not: {reason}; is it spelt right?") from error
    return {str(split): loaded[split] for split in loaded} if isinstance(loaded, dict) else {"all": loaded}
