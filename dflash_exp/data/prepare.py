"""Write a store: token lists with their masks, split by split, with a manifest of hashes.

In: rows that are tokenised already. Out: a new folder as `store.py` reads it, whole or not there at all.
"""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dflash_exp.data.store import FORMAT, SPLITS, file_sha256


@dataclass(frozen=True)
class Row:
    """One conversation: its tokens, and how many at the end or wherever are supervised."""

    tokens: list[int]
    supervised: list[bool]
    source: str
    ending: str
    """How the last response ends: eos, cap, loop, or unknown."""


def write_store(folder: Path, splits: Mapping[str, Sequence[Row]], vocab_size: int, *, compress: bool = False) -> None:
    """Write `splits` to `folder`, which must not exist yet. Raises ValueError for a bad split, token or mask."""
    if folder.exists():
        raise ValueError(f"a store is never overwritten: {folder} exists; choose another folder or remove it")
    for split, rows in splits.items():
        _check(split, rows, vocab_size)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    described: dict[str, dict[str, object]] = {}
    for split, rows in splits.items():
        path = unfinished / f"{split}.arrow"
        _write_arrow(path, rows, vocab_size, compress)
        described[split] = {
            "file": path.name,
            "sha256": file_sha256(path),
            "sequences": len(rows),
            "tokens": sum(len(r.tokens) for r in rows),
        }
    manifest = {"format": FORMAT, "vocab_size": vocab_size, "splits": described}
    (unfinished / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    unfinished.chmod(0o755)
    os.rename(unfinished, folder)


def _check(split: str, rows: Sequence[Row], vocab_size: int) -> None:
    if split not in SPLITS:
        raise ValueError(f"a split must be one of {', '.join(SPLITS)}, got {split}")
    for i, row in enumerate(rows):
        if not row.tokens or len(row.tokens) != len(row.supervised):
            raise ValueError(
                f"{split} row {i} must have as many mask entries as tokens and at least one, "
                f"got {len(row.supervised)} and {len(row.tokens)}"
            )
        if not 0 <= min(row.tokens) <= max(row.tokens) < vocab_size:
            raise ValueError(
                f"{split} row {i} must hold ids in [0, {vocab_size}), got {min(row.tokens)}..{max(row.tokens)}"
            )


def _write_arrow(path: Path, rows: Sequence[Row], vocab_size: int, compress: bool) -> None:
    token_type = pa.uint16() if vocab_size <= 2**16 else pa.int32()
    table = pa.table(
        {
            "tokens": pa.array([r.tokens for r in rows], pa.list_(token_type)),
            "supervised": pa.array([r.supervised for r in rows], pa.list_(pa.bool_())),
            "source": pa.array([r.source for r in rows], pa.string()),
            "ending": pa.array([r.ending for r in rows], pa.string()),
        }
    )
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 15) if compress else None)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
