"""The target's features, forwarded once and kept, in this process or in files that runs share; results stay the same.

In: a target, a store of bounded size, and all that features follow from beside the batch. Out: a target that asks the
store first. What is kept is what the target forwards at once, keyed by everything that goes into the forward: equality
needs no promise but that a forward repeats itself. With `target.forward=sequence` that is a sequence: every epoch, seed
and bucketing of the same data shares them. With `batch` it is a batch, since the last bits may differ in other company:
the arms of a sweep over order share theirs, seed by seed; runs of other `seeds.data` share none.

What does not fit is forwarded each time, and counted: nothing is put out for it, since a sweep goes through the same
batches in another order each time, which leaves a store of the newest ones without a hit.
"""

import hashlib
import os
import re
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Protocol

import torch
from rich.filesize import decimal
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dflash_exp.durable import UNFINISHED, write_whole
from dflash_exp.forwarded import Forward, joined, parts
from dflash_exp.messages import TargetFeatures, TokenBatch

FEATURES = "features_PF"
OURS = re.compile(r"\.?[0-9a-f]{64}\.safetensors")
"""How a file of a cache begins, an unfinished one too."""
LOOK_S = 5.0
"""How long the size of a shared folder is taken to be what this process knows of it: a look is 1 ms per 500 files."""
ABANDONED_S = 3600.0
"""An unfinished file older than this is of a process that was killed."""


class Target(Protocol):
    """As `FrozenTarget`."""

    @property
    def forward(self) -> Forward:
        """What it forwards at once."""
        ...

    @property
    def device(self) -> torch.device: ...

    def features(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """features_PF of the real tokens."""
        ...


class Store(Protocol):
    """Keeps features by their key. Safe to call from several threads."""

    def get(self, key: str) -> Tensor | None:
        """On the CPU; None for what is not kept."""
        ...

    def keep(self, key: str, features_PF: Tensor) -> bool:
        """Whether there was room."""
        ...


@dataclass(frozen=True)
class CacheCounts:
    """Forwards of one session and rank."""

    found: int
    kept: int
    """Forwarded, then kept."""
    not_kept: int
    """Forwarded, and no room left."""


class CachedTargets:
    """Targets that share a store."""

    def __init__(self, store: Store, inputs: str) -> None:
        """`inputs`: all that features follow from beside the tokens and the threads."""
        self._store = store
        self._inputs = inputs.encode()
        self._counts = Counter[str]()
        self._lock = Lock()

    def counts(self) -> CacheCounts:
        """So far."""
        return CacheCounts(self._counts["found"], self._counts["kept"], self._counts["not_kept"])

    def wrap(self, target: Target) -> Callable[[TokenBatch], TargetFeatures]:
        """The same target, which forwards what the store does not hold."""

        def features_of(batch: TokenBatch) -> TargetFeatures:
            cut = parts(target.forward, batch.tokens_BT, batch.lengths_B)
            return TargetFeatures(batch, joined([self._features(target, *part) for part in cut]))

        return features_of

    def _features(self, target: Target, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        key = self.key(tokens_BT, lengths_B)
        found_PF = self._store.get(key)
        if found_PF is not None:
            self._count("found")
            return found_PF.to(target.device)
        features_PF = target.features(tokens_BT, lengths_B)
        self._count("kept" if self._store.keep(key, features_PF.cpu()) else "not_kept")
        return features_PF

    def key(self, tokens_BT: Tensor, lengths_B: Tensor) -> str:
        """Hash of the padded tokens, the lengths, what else features follow from, and the calling thread's threads."""
        digest = hashlib.sha256(self._inputs)
        digest.update(f"{tuple(tokens_BT.shape)} {torch.get_num_threads()}".encode())
        for tensor in (tokens_BT, lengths_B):
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1


class MemoryStore:
    """In this process: for epochs that hold what the first one forwarded."""

    def __init__(self, bound_bytes: int, say: Callable[[str], None]) -> None:
        self._bound_bytes, self._say = bound_bytes, say
        self._kept: dict[str, Tensor] = {}
        self._bytes, self._said = 0, False
        self._lock = Lock()

    def get(self, key: str) -> Tensor | None:
        return self._kept.get(key)

    def keep(self, key: str, features_PF: Tensor) -> bool:
        with self._lock:
            fits = self._bytes + features_PF.nbytes <= self._bound_bytes
            if fits and key not in self._kept:
                self._kept[key] = features_PF
                self._bytes += features_PF.nbytes
            if not fits and not self._said:
                self._said = True
                self._say(full_line("memory", self._bytes, self._bound_bytes))
        return fits


class DiskStore:
    """A file a forward, whole or not there, whoever else writes into the folder; a damaged one is made anew.

    The bound is of the folder, which is looked through once in `LOOK_S`: processes that write at the same moment may
    exceed it by what they write in between. Files are not synced: what a power cut tears is damaged, and seen to be.
    """

    def __init__(self, folder: Path, bound_bytes: int, say: Callable[[str], None]) -> None:
        """Makes the folder. Raises ValueError where none can be."""
        self._folder, self._bound_bytes, self._say = folder, bound_bytes, say
        self._said: set[str] = set()
        self._lock = Lock()
        self._held_bytes, self._looked_s = 0, -LOOK_S
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned()
        except OSError as error:
            raise ValueError(
                f"target.cache_dir must be a folder that can be written, {folder} is not: {error.strerror}; "
                "name another, or say target.cache='off'"
            ) from error

    def get(self, key: str) -> Tensor | None:
        path = self._path(key)
        try:
            with safe_open(path, framework="pt") as file:
                features_PF, stated = file.get_tensor(FEATURES), file.metadata()["crc32"]
            damage = None if crc32_of(features_PF) == stated else "is not what was written"
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, KeyError, TypeError) as error:
            damage = f"cannot be read ({error})"
        if damage is None:
            return features_PF
        self._say_once("damaged", f"{path} {damage}: it is made anew, as is any other like it")
        path.unlink(missing_ok=True)
        return None

    def keep(self, key: str, features_PF: Tensor) -> bool:
        content = save({FEATURES: features_PF.contiguous()}, {"crc32": crc32_of(features_PF)})
        with self._lock:
            try:
                self._look()
                if self._held_bytes + len(content) > self._bound_bytes:
                    self._say_once("full", full_line(str(self._folder), self._held_bytes, self._bound_bytes))
                    return False
                write_whole(self._path(key), content, synced=False)
                self._held_bytes += len(content)
            except OSError as error:
                why = f"features cannot be kept in {self._folder} ({error.strerror}): they are made each time"
                self._say_once("unwritten", why)
                return False
        return True

    def _look(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._held_bytes, self._looked_s = self.n_bytes(), now_s

    def n_bytes(self) -> int:
        """Of all features in the folder, whoever wrote them."""
        return sum(size for _, size, _ in self._files())

    def _files(self) -> list[tuple[Path, int, float]]:
        """Path, size and time of change of every cache's files; what another process has just removed is none."""
        found = []
        for entry in os.scandir(self._folder):
            if not OURS.match(entry.name):
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            found.append((Path(entry.path), status.st_size, status.st_mtime))
        return found

    def _remove_abandoned(self) -> None:
        for path, _, changed_s in self._files():
            if path.name.endswith(UNFINISHED) and time.time() - changed_s > ABANDONED_S:
                path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.safetensors"

    def _say_once(self, what: str, line: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._say(line)


def default_folder() -> Path:
    """The user's, by the XDG rules: shared by all their runs, and theirs to delete."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "dflash-exp" / "features"


def crc32_of(features_PF: Tensor) -> str:
    """Of the bits, whatever their dtype: 1 ms for 3 MB."""
    return f"{zlib.crc32(features_PF.contiguous().view(torch.uint8).numpy().data):08x}"


def full_line(where: str, held_bytes: int, bound_bytes: int) -> str:
    """What is said once when the next features do not fit."""
    return (
        f"the target's cache in {where} is full ({decimal(held_bytes)} of target.cache_bytes, {decimal(bound_bytes)}): "
        "what else there is is forwarded each time"
    )
