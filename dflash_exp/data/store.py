"""The tokenised store: a folder of Arrow files with their hashes; a row gives its tokens and which are supervised.

    STORE/manifest.json     {"format": 1 or 2, "vocab_size": n, "splits": {"train": SPLIT, "probe": ..., ...}}
                            with SPLIT {"file", "sha256", "sequences", "tokens"}
    STORE/train.arrow       columns tokens: list<uint16 | int32>, supervised: list<bool>, source: string, ending: string
    STORE/probe.arrow       the same, held out
    STORE/prompts.arrow     the same; what comes before the first supervised token is the prompt

A store of format 2, which `dflash-exp prepare` makes, has its mask as uint8, so that it is mapped into memory and not
copied, and opens in the same time whatever its size: its hash is taken once, and noted beside it with the file's inode
and time of change, in `.verified.json`. A file whose hash differs from the manifest's is refused. Sequences over the
limit raise, are cut or are left out, as `data.too_long` says, and are counted.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from dflash_exp.data.columns import Columns, open_columns
from dflash_exp.data.verified import is_verified, note_verified

FORMAT = 1
PREPARED = 2
"""Of a store that `dflash-exp prepare` made: in pieces, the mask a byte a token."""
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
    sources: Sequence[str]
    """Where each row comes from."""
    n_truncated: int
    n_skipped: int
    sha256: str
    """Of the split's file."""
    mask_starts: np.ndarray | None = None
    """int64, first mask value of each row; None: as `starts`."""

    def tokens(self, row: int) -> np.ndarray:
        return self.tokens_N[self.starts[row] : self.starts[row] + self.lengths[row]]

    def supervised(self, row: int) -> np.ndarray:
        starts = self.starts if self.mask_starts is None else self.mask_starts
        return self.supervised_N[starts[row] : starts[row] + self.lengths[row]]

    def prompt(self, row: int) -> np.ndarray:
        """Tokens before the first supervised one."""
        supervised = self.supervised(row)
        return self.tokens(row)[: int(supervised.argmax()) if supervised.any() else len(supervised)]


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a store says of itself; ValueError names what is missing."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise ValueError(
            f"data.path must be a store with a manifest.json, got {folder}; make one with `dflash-exp prepare`"
        )
    manifest = json.loads(path.read_text())
    if manifest.get("format") not in (FORMAT, PREPARED):
        raise ValueError(
            f"data.path must be a store of format {FORMAT} or {PREPARED}, got {manifest.get('format')} in {path}; "
            "prepare it again"
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
    path, digest = folder / splits[split]["file"], splits[split]["sha256"]
    verified = manifest["format"] == PREPARED and is_verified(path, digest)
    if not verified:
        _check_hash(path, digest)
    columns = open_columns(path)
    if not verified:
        _check_records(path, columns, manifest["vocab_size"])
        if manifest["format"] == PREPARED:
            note_verified(path, digest)
    used, rows, n_truncated, n_skipped = _limited(columns.lengths, limit_tokens, too_long)
    return Conversations(
        tokens_N=columns.tokens_N,
        supervised_N=columns.supervised_N,
        starts=columns.starts,
        lengths=used.astype(np.int32),
        rows=rows,
        sources=columns.sources,
        n_truncated=n_truncated,
        n_skipped=n_skipped,
        sha256=digest,
        mask_starts=columns.mask_starts,
    )


def _check_hash(path: Path, stated: str) -> None:
    digest = file_sha256(path)
    if digest != stated:
        raise ValueError(
            f"{path} must have the hash its manifest states, {stated[:12]}..., got {digest[:12]}...; "
            "it was changed or cut: restore or prepare it again"
        )


def _check_records(path: Path, columns: Columns, vocab_size: int) -> None:
    """ValueError that names the first record whose mask does not fit, or whose ids are not the vocabulary's."""
    for row, (length, n_mask) in enumerate(zip(columns.lengths, columns.mask_lengths, strict=True)):
        outside = _outside(columns.tokens_N[columns.starts[row] :][:length], vocab_size)
        if length != n_mask:
            what = "as many mask values as tokens"
        elif len(outside):
            what = f"ids in 0..{vocab_size - 1}, got {outside[0]}"
        else:
            continue
        raise ValueError(
            f"every record must have {what}: row {row} of {path} (from {columns.sources[row]!r}); prepare it again"
        )


def _outside(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    return tokens[(tokens < 0) | (tokens >= vocab_size)]


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
