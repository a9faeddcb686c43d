"""Parts become a store: duplicates left out, splits drawn, every row of the input counted once.

In: the parts of all chunks, in their order. Out: the store's files and a `Tally`. The parts are gone through twice, one
at a time: for digests and lengths (some 40 bytes a row stay in memory), then for the rows. A conversation is kept where
it comes first, and its split is drawn by its digest and the seed alone: more input moves none to another split.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from dflash_exp.data.part import Fate, part_path
from dflash_exp.data.preparation import Preparation
from dflash_exp.data.split_file import SplitFile
from dflash_exp.data.store import PREPARED, SPLITS, file_sha256
from dflash_exp.data.verified import note_verified

SHOWN = 5
"""Malformed rows that the report names; all of them are in the file."""
LEFT_OUT = "left_out.jsonl"
COLUMNS = ["tokens", "supervised", "source", "ending"]


@dataclass
class Tally:
    """What became of the input."""

    n_rows: int = 0
    fates: Counter[Fate] = field(default_factory=Counter)
    malformed: list[tuple[str, str]] = field(default_factory=list)
    """Where and why, of the first few."""
    sequences: dict[str, int] = field(default_factory=dict)
    """By split; so are the two below."""
    tokens: dict[str, int] = field(default_factory=dict)
    supervised: dict[str, int] = field(default_factory=dict)
    lengths: Counter[int] = field(default_factory=Counter)
    """Conversations by the upper edge of their length, a power of two."""


@dataclass(frozen=True)
class Store:
    """What is to be assembled."""

    folder: Path
    parts: Path
    n_parts: int
    vocab_size: int
    settings: Preparation
    seed: int


def assemble(store: Store) -> Tally:
    """Write the splits and what was left out; the manifest comes last, so that a store is whole or none."""
    digests, n_tokens = _all_digests(store)
    first = np.zeros(len(digests), bool)
    first[np.unique(digests, return_index=True)[1]] = True
    split_of = np.where(first, drawn_splits(digests, store.settings, store.seed), len(SPLITS)).astype(np.int8)
    edges, counts = np.unique(1 << np.ceil(np.log2(n_tokens[first])).astype(np.int64), return_counts=True)
    tally = Tally(lengths=Counter(dict(zip(edges.tolist(), counts.tolist(), strict=True))))
    _write_splits(store, split_of, tally)
    assert sum(tally.fates.values()) == tally.n_rows, f"{tally.n_rows} rows and {tally.fates}"
    _write_manifest(store, tally)
    return tally


def drawn_splits(digests: np.ndarray, settings: Preparation, seed: int) -> np.ndarray:
    """The index into `SPLITS` of each uint64 digest: digest and seed, mixed (splitmix64), against the shares."""
    key = int.from_bytes(hashlib.blake2b(f"splits/{seed}".encode(), digest_size=8).digest(), "little")
    mixed = digests ^ np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    share = (mixed ^ (mixed >> np.uint64(31))) / 2.0**64
    probe, prompts = settings.probe_share, settings.probe_share + settings.prompts_share
    return np.where(share < probe, SPLITS.index("probe"), np.where(share < prompts, SPLITS.index("prompts"), 0))


def _all_digests(store: Store) -> tuple[np.ndarray, np.ndarray]:
    digests, lengths = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for table in _tables(store):
        digests.append(np.array(table["digest"], np.uint64))
        lengths.append(np.array(table["tokens"].combine_chunks().value_lengths(), np.int64))
    return np.concatenate(digests), np.concatenate(lengths)


def _tables(store: Store) -> Iterator[pa.Table]:
    """Every part, mapped while it is looked at."""
    for index in range(store.n_parts):
        with pa.memory_map(str(part_path(store.parts, index))) as file:
            yield pa.ipc.open_file(file).read_all()


def _write_splits(store: Store, split_of: np.ndarray, tally: Tally) -> None:
    schema = next(_tables(store)).select(COLUMNS).schema.remove_metadata()
    done = 0
    with ExitStack() as stack:
        left_out = stack.enter_context((store.folder / LEFT_OUT).open("w", encoding="utf-8"))
        files = [stack.enter_context(SplitFile(store.folder / f"{split}.arrow", schema)) for split in SPLITS]
        for table in _tables(store):
            part_splits = split_of[done : done + len(table)]
            done += len(table)
            left_out.writelines(f"{json.dumps(line)}\n" for line in _counted(table, part_splits, tally))
            rows = table.select(COLUMNS).replace_schema_metadata()
            for split, file in enumerate(files):
                file.add(rows.take(pa.array(np.flatnonzero(part_splits == split))))
    for split, file in zip(SPLITS, files, strict=True):
        tally.sequences[split], tally.tokens[split] = file.n_sequences, file.n_tokens
        tally.supervised[split] = file.n_supervised


def _counted(table: pa.Table, part_splits: np.ndarray, tally: Tally) -> list[dict[str, str]]:
    """Count a part's rows, each once; what is said of those that are left out."""
    said = json.loads(table.schema.metadata[b"part"])
    lines = [{"fate": fate, "where": where, "why": why} for fate, where, why in said["left_out"]]
    for row in np.flatnonzero(part_splits == len(SPLITS)).tolist():
        why = "the same conversation came before"
        lines.append({"fate": Fate.DUPLICATE, "where": table["source"][row].as_py(), "why": why})
    tally.n_rows += said["n_rows"]
    tally.fates.update(Fate(line["fate"]) for line in lines)
    tally.fates[Fate.KEPT] += int((part_splits < len(SPLITS)).sum())
    malformed = [(line["where"], line["why"]) for line in lines if line["fate"] == Fate.MALFORMED]
    tally.malformed += malformed[: SHOWN - len(tally.malformed)]
    return lines


def _write_manifest(store: Store, tally: Tally) -> None:
    described = {}
    for split in SPLITS:
        path = store.folder / f"{split}.arrow"
        sha256 = file_sha256(path)
        note_verified(path, sha256)
        described[split] = {
            "file": path.name, "sha256": sha256,
            "sequences": tally.sequences[split], "tokens": tally.tokens[split],
        }  # fmt: skip
    manifest = {"format": PREPARED, "vocab_size": store.vocab_size, "splits": described}
    unfinished = store.folder / ".manifest.unfinished"
    unfinished.write_text(json.dumps(manifest, indent=1) + "\n")
    unfinished.rename(store.folder / "manifest.json")
