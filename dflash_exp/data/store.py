"""The tokenised store: a folder of Arrow files with their hashes; a row gives its tokens and which are supervised.

    STORE/manifest.json     {"format": 1, "vocab_size": n, "splits": {"train": SPLIT, "probe": SPLIT, "prompts": SPLIT}}
                            with SPLIT {"file", "sha256", "sequences", "tokens"}
    STORE/train.arrow       columns tokens: list<uint16 | int32>, supervised: list<bool>, source: string, ending: string
    STORE/probe.arrow       the same, held out
    STORE/prompts.arrow     the same; what comes before the first supervised token is the prompt

A file whose hash differs from the manifest's is refused. Sequences over the limit raise, are cut or are left out, as
`data.too_long` says, and are counted.
"""

import hashlib
import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

FORMAT = 1
SPLITS = ("train", "probe", "prompts")


class TooLong(str, Enum):
    """What to do with a sequence over the limit."""

    error = "error"
    truncate = "truncate"
    skip = "skip"


class Responses(str, Enum):
    """Whose responses the embedded conversations end with."""

    model = "model"
    """The embedded target's own, sampled."""
    human = "human"
    """The original function bodies."""


@dataclass(frozen=True)
class EmbeddedData:
    """The conversations that ship with the package."""

    responses: Responses
    max_tokens: int | None
    """Longest sequence kept as it is; null: `batches.budget_tokens`."""
    too_long: TooLong

    def __post_init__(self) -> None:
        _check_max_tokens(self.max_tokens)

    @property
    def folder(self) -> Path:
        return Path(__file__).parents[1] / "embedded" / "files" / f"conversations_{self.responses.value}"


@dataclass(frozen=True)
class StoreData:
    """A store on disk."""

    path: str
    max_tokens: int | None
    """Longest sequence kept as it is; null: `batches.budget_tokens`."""
    too_long: TooLong

    def __post_init__(self) -> None:
        _check_max_tokens(self.max_tokens)

    @property
    def folder(self) -> Path:
        return Path(self.path)


def _check_max_tokens(max_tokens: int | None) -> None:
    if max_tokens is not None and max_tokens < 2:
        raise ValueError(f"data.max_tokens must be at least 2 or null, got {max_tokens}")


@dataclass(frozen=True)
class Conversations:
    """One split: flat tokens and masks, addressed by the row of the store."""

    tokens_N: np.ndarray
    """uint16 or int32, all sequences one after the other."""
    supervised_N: np.ndarray
    """bool, beside `tokens_N`."""
    starts: np.ndarray
    """int64, first token of each row."""
    lengths: np.ndarray
    """int32, tokens of each row that are used."""
    rows: np.ndarray
    """int64, the rows that are used, ascending."""
    sources: tuple[str, ...]
    """Where each row comes from."""
    n_truncated: int
    n_skipped: int
    sha256: str
    """Of the split's file."""

    def tokens(self, row: int) -> np.ndarray:
        return self.tokens_N[self.starts[row] : self.starts[row] + self.lengths[row]]

    def supervised(self, row: int) -> np.ndarray:
        return self.supervised_N[self.starts[row] : self.starts[row] + self.lengths[row]]

    def prompt(self, row: int) -> np.ndarray:
        """Tokens before the first supervised one."""
        supervised = self.supervised(row)
        return self.tokens(row)[: int(supervised.argmax()) if supervised.any() else len(supervised)]


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a store says of itself; ValueError names what is missing."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise ValueError(
            f"data.path must be a store with a manifest.json, got {folder}; "
            "write one with `dflash_exp.data.prepare.write_store`"
        )
    manifest = json.loads(path.read_text())
    if manifest.get("format") != FORMAT:
        raise ValueError(
            f"data.path must be a store of format {FORMAT}, got {manifest.get('format')} in {path}; prepare it again"
        )
    return manifest


def read_split(folder: Path, split: str, limit_tokens: int | None, too_long: TooLong) -> Conversations:
    """Open one split, check its hash, apply the limit.

    Raises ValueError for a missing split, a hash that does not match, or (with `too_long=error`) a sequence over the
    limit.
    """
    manifest = read_manifest(folder)
    splits = manifest["splits"]
    if split not in splits:
        raise ValueError(f"the store must have a {split} split, got {sorted(splits)} in {folder}")
    path = folder / splits[split]["file"]
    digest = file_sha256(path)
    if digest != splits[split]["sha256"]:
        raise ValueError(
            f"{path} must have the hash its manifest states, {splits[split]['sha256'][:12]}..., got {digest[:12]}...; "
            "it was changed or cut: restore or prepare it again"
        )
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all().combine_chunks()
    tokens, supervised = table["tokens"].chunk(0), table["supervised"].chunk(0)
    offsets = tokens.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(offsets)
    sources = tuple(table["source"].to_pylist())
    _check_records(
        path, offsets, tokens.values.to_numpy(), supervised.offsets.to_numpy(), manifest["vocab_size"], sources
    )
    used, rows, n_truncated, n_skipped = _limited(lengths, limit_tokens, too_long)
    return Conversations(
        tokens_N=tokens.values.to_numpy(),
        supervised_N=supervised.values.to_numpy(zero_copy_only=False),
        starts=offsets[:-1],
        lengths=used.astype(np.int32),
        rows=rows,
        sources=sources,
        n_truncated=n_truncated,
        n_skipped=n_skipped,
        sha256=digest,
    )


def _check_records(
    path: Path,
    offsets: np.ndarray,
    tokens_N: np.ndarray,
    mask_offsets: np.ndarray,
    vocab_size: int,
    sources: tuple[str, ...],
) -> None:
    """ValueError that names the first record whose mask does not fit, or whose ids are not the vocabulary's."""
    fits = np.diff(mask_offsets) == np.diff(offsets)
    outside_N = np.flatnonzero((tokens_N < 0) | (tokens_N >= vocab_size))
    if not fits.all():
        row, what = int(fits.argmin()), "as many mask values as tokens"
    elif len(outside_N):
        row = int(np.searchsorted(offsets, outside_N[0], side="right")) - 1
        what = f"ids in 0..{vocab_size - 1}, got {tokens_N[outside_N[0]]}"
    else:
        return
    raise ValueError(f"every record must have {what}: row {row} of {path} (from {sources[row]!r}); prepare it again")


def _limited(lengths: np.ndarray, limit: int | None, too_long: TooLong) -> tuple[np.ndarray, np.ndarray, int, int]:
    every = np.arange(len(lengths), dtype=np.int64)
    if limit is None or not (lengths > limit).any():
        return lengths, every, 0, 0
    over = lengths > limit
    n_over = int(over.sum())
    if too_long is TooLong.truncate:
        return np.minimum(lengths, limit), every, n_over, 0
    if too_long is TooLong.skip:
        return lengths, every[~over], 0, n_over
    worst = int(lengths.argmax())
    raise ValueError(
        f"sequences must have at most {limit} tokens (the smaller of data.max_tokens and batches.budget_tokens), "
        f"got {n_over} longer ones (row {worst}: {lengths[worst]}); raise batches.budget_tokens, or set data.too_long "
        "to truncate or skip"
    )


def file_sha256(path: Path) -> str:
    if not path.is_file():
        raise ValueError(
            f"the store's manifest names {path.name}, which must exist, got nothing at {path}; "
            "restore or prepare it again"
        )
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
