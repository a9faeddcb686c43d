"""A split's Arrow file as flat arrays: mapped into memory, not read, where it lies there plainly.

In: a path. Out: `Columns`. A file of several pieces is seen as one array over all of its bytes, in which each row has
its place; a compressed one, or one whose mask is packed in bits, is copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
import pyarrow as pa


class Texts(Sequence[str]):
    """A column of text, read when it is asked for."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return Texts(self._column[index]) if isinstance(index, slice) else self._column[index].as_py()


@dataclass(frozen=True)
class Columns:
    """All rows of a split."""

    tokens_N: np.ndarray
    """uint16 or int32; with other bytes of the file in between where it is mapped."""
    supervised_N: np.ndarray
    """bool, the same."""
    starts: np.ndarray
    """int64, where each row's tokens begin."""
    mask_starts: np.ndarray
    """int64, where its mask begins."""
    lengths: np.ndarray
    """int64, tokens of each row."""
    mask_lengths: np.ndarray
    sources: Sequence[str]


def open_columns(path: Path) -> Columns:
    """Raises pyarrow.ArrowInvalid for what is no Arrow file."""
    file = pa.memory_map(str(path))
    bytes_N = np.frombuffer(file.read_buffer(), np.uint8)
    table = pa.ipc.open_file(file).read_all()
    if table["supervised"].type.value_type == pa.uint8() and _inside(table, bytes_N):
        return _mapped(table, bytes_N)
    whole = table.combine_chunks()
    tokens, supervised = whole["tokens"].chunk(0), whole["supervised"].chunk(0)
    starts, mask_starts = (_numbers(column.offsets).astype(np.int64) for column in (tokens, supervised))
    return Columns(
        _numbers(tokens.values), _numbers(supervised.values.cast(pa.uint8())).view(bool),
        starts[:-1], mask_starts[:-1], np.diff(starts), np.diff(mask_starts), tuple(whole["source"].to_pylist()),
    )  # fmt: skip


def _mapped(table: pa.Table, bytes_N: np.ndarray) -> Columns:
    token_type = table["tokens"].type.value_type.to_pandas_dtype()
    n_bytes = np.dtype(token_type).itemsize
    tokens_N = bytes_N[: len(bytes_N) // n_bytes * n_bytes].view(token_type)
    starts, lengths = _places(table["tokens"], bytes_N, n_bytes)
    mask_starts, mask_lengths = _places(table["supervised"], bytes_N, 1)
    return Columns(
        tokens_N, bytes_N.view(bool), starts, mask_starts, lengths, mask_lengths, Texts(table["source"])
    )  # fmt: skip


def _places(column: pa.ChunkedArray, bytes_N: np.ndarray, n_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each row begins in the file, in values of `n_bytes`, and how many it has."""
    base = bytes_N.ctypes.data
    starts, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for piece in column.chunks:
        offsets = _numbers(piece.offsets).astype(np.int64)
        starts.append((piece.values.buffers()[1].address - base) // n_bytes + offsets[:-1])
        lengths.append(np.diff(offsets))
    return np.concatenate(starts), np.concatenate(lengths)


def _numbers(array: pa.Array) -> np.ndarray:
    """The same memory; `to_numpy` would first import pandas, most of a second."""
    return np.from_dlpack(array)


def _inside(table: pa.Table, bytes_N: np.ndarray) -> bool:
    """Whether every piece of tokens and mask lies in the mapped file as it is, and not in a copy."""
    base = bytes_N.ctypes.data
    pieces = [piece.values.buffers()[1] for name in ("tokens", "supervised") for piece in table[name].chunks]
    return all(base <= piece.address and piece.address + piece.size <= base + len(bytes_N) for piece in pieces)
