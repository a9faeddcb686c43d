"""What `prepare` holds at once does not follow its input: neither as it reads, nor as parts become a store.

The workers between the two have a chunk each. Whole processes are measured by `python -m tests.benchmarks.data memory`.
"""

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dflash_exp.data import split_file
from dflash_exp.data.assemble import Store, assemble
from dflash_exp.data.part import part_path
from dflash_exp.data.preparation import Preparation, Thinking
from dflash_exp.data.sources import CHUNK_BYTES, chunks, find_sources

SETTINGS = Preparation(["x"], "x", 1, 2, None, Thinking.KEEP, False, 0.1, 0.1)
ROWS, TOKENS = 64, 500
"""Of a part, and of each of its rows."""


def peak_of_reading(path: Path, megabytes: int) -> int:
    line = json.dumps({"text": "x" * 1000}).encode() + b"\n"
    path.write_bytes(line * (megabytes * 10**6 // len(line)))
    tracemalloc.start()
    n_bytes = sum(len(chunk.rows) for chunk in chunks(find_sources([str(path)])[0]) if isinstance(chunk.rows, bytes))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n_bytes == path.stat().st_size
    return peak


def test_ten_times_the_input_is_read_in_the_same_memory(tmp_path: Path) -> None:
    small, large = (peak_of_reading(tmp_path / f"{size}.jsonl", size) for size in (4, 40))
    assert large < 1.1 * small < 8 * CHUNK_BYTES


@contextmanager
def pool_of_its_own() -> Iterator[pa.MemoryPool]:
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


def write_parts(folder: Path, n_parts: int) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for index in range(n_parts):
        offsets = pa.array(TOKENS * np.arange(ROWS + 1, dtype=np.int32))
        ids, mask = rng.integers(100, size=ROWS * TOKENS, dtype=np.uint16), np.ones(ROWS * TOKENS, np.uint8)
        table = pa.table(
            {
                "tokens": pa.ListArray.from_arrays(offsets, pa.array(ids)),
                "supervised": pa.ListArray.from_arrays(offsets, pa.array(mask)),
                "source": pa.array(["a"] * ROWS), "ending": pa.array(["eos"] * ROWS),
                "digest": pa.array(rng.integers(2**63, size=ROWS), pa.uint64()),
            },
            metadata={"part": json.dumps({"n_rows": ROWS, "left_out": []})},
        )  # fmt: skip
        with pa.OSFile(str(part_path(folder, index)), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)


def peak_of_assembling(folder: Path, n_parts: int) -> int:
    write_parts(folder / "parts", n_parts)
    with pool_of_its_own() as pool:
        tally = assemble(Store(folder, folder / "parts", n_parts, 100, SETTINGS, 0))
        peak = pool.max_memory()
    assert sum(tally.tokens.values()) == n_parts * ROWS * TOKENS
    return peak


def test_ten_times_the_parts_become_a_store_in_the_same_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_file, "PIECE_TOKENS", ROWS * TOKENS)
    small, large = (peak_of_assembling(tmp_path / str(n), n) for n in (12, 120))
    assert 0 < large < 1.3 * small
