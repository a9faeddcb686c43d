"""What a run needs to go on as if it had never stopped: written whole by a thread, verified when read.

In: a `Snapshot`, taken between two optimizer steps. Out: `checkpoints/step-<n>/`: the drafter in the layout that
engines load (`config.json`, `model.safetensors`), `state.pt` (optimizer, what was trained), `progress.json`, and
`checksums.json` over them. `latest` names the newest. What is saved is what was trained, never what was prefetched.
Nothing is unpickled: `state.pt` is read with `weights_only`.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from dflash_exp.drafter.model import Drafter
from dflash_exp.durable import remove_folder, write_folder, write_whole
from dflash_exp.export import LATEST, SHAPE, WEIGHTS, drafter_state, layout_config, write_drafter

STATE, PROGRESS, CHECKSUMS = "state.pt", "progress.json", "checksums.json"
NEEDED = (SHAPE, WEIGHTS, STATE, PROGRESS)
"""What a run cannot go on without."""


@dataclass(frozen=True)
class Checkpoint:
    """When to save, and how much to keep."""

    every_steps: int
    """0: at the end, and when stopped."""
    keep_last: int
    max_failures: int
    """Writes in a row that may fail (a full disk) before the run does; the last good checkpoint stays."""

    def __post_init__(self) -> None:
        least = {"every_steps": (self.every_steps, 0), "keep_last": (self.keep_last, 1)}
        for name, (value, bound) in {**least, "max_failures": (self.max_failures, 0)}.items():
            if value < bound:
                raise ValueError(f"checkpoint.{name} must be >= {bound}, got {value}; {bound} is the least")


@dataclass(frozen=True)
class Snapshot:
    """A run between two optimizer steps, copied: training may go on."""

    step: int
    weights: dict[str, Tensor]
    layout: dict[str, object]
    state: dict[str, Any]
    """Nested dictionaries and lists of tensors and numbers."""
    progress: dict[str, Any]
    """Counters, as JSON holds them."""


def take_snapshot(
    step: int, drafter: Drafter, max_position_embeddings: int, state: dict[str, Any], progress: dict[str, Any]
) -> Snapshot:
    """Copy everything to the CPU."""
    layout = layout_config(drafter.shape, max_position_embeddings)
    return Snapshot(step, drafter_state(drafter), layout, _copied(state), progress)


class CheckpointWriter:
    """Writes snapshots in a thread, one at a time; the newest `keep_last` stay."""

    def __init__(self, run_dir: Path, config: Checkpoint, say: Callable[[str], None]) -> None:
        self._parent = run_dir / "checkpoints"
        self._config = config
        self._say = say
        self._thread: Thread | None = None
        self._error: Exception | None = None
        self._n_failures = 0

    def save(self, snapshot: Snapshot) -> None:
        """Begin to write; waits for the write before, if it is not done. Raises its error if that was one too many."""
        self.wait()
        self._thread = Thread(target=self._write, args=(snapshot,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until the write under way is done. Raises the last error after `max_failures` failures in a row."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None and self._n_failures > self._config.max_failures:
            raise self._error

    def finish(self) -> str | None:
        """Wait, and name the newest checkpoint. Raises the error of the last write, if it failed."""
        self.wait()
        if self._error is not None:
            raise self._error
        latest = self._parent / LATEST
        return latest.read_text(encoding="utf-8").strip() if latest.is_file() else None

    def close(self) -> None:
        """Wait for the write under way, whatever becomes of it: nothing may be written once the run is let go."""
        if self._thread is not None:
            self._thread.join()

    def note_failure(self, step: int, error: Exception) -> None:
        """Count a checkpoint that could not be written, and say what that means."""
        self._error, self._n_failures = error, self._n_failures + 1
        left = self._config.max_failures - self._n_failures
        goes_on = f"training goes on, {left} more may fail" if left >= 0 else "the run ends"
        self._say(f"checkpoint of step {step} was not written ({error}): {goes_on}")

    def _write(self, snapshot: Snapshot) -> None:
        try:
            self._parent.mkdir(exist_ok=True)
            folder = self._parent / folder_name(snapshot.step)
            if not folder.exists():
                write_folder(folder, lambda unfinished: _fill(unfinished, snapshot))
            write_whole(self._parent / LATEST, folder.name + "\n")
        except Exception as error:  # the thread's edge: torch and safetensors have errors of their own for a full disk
            self.note_failure(snapshot.step, error)
        else:
            self._error, self._n_failures = None, 0
            self._remove_old()

    def _remove_old(self) -> None:
        for old in step_folders(self._parent)[: -self._config.keep_last]:
            try:
                remove_folder(old)
            except OSError as error:
                self._say(f"old checkpoint {old.name} could not be removed ({error}): training goes on")


def newest_whole(run_dir: Path, say: Callable[[str], None]) -> Path | None:
    """The newest checkpoint whose checksums hold, which `latest` names from now on; a damaged one is said, and moved
    aside as `damaged-step-<n>`."""
    for folder in reversed(step_folders(run_dir / "checkpoints")):
        damage = damage_of(folder)
        if damage is None:
            write_whole(folder.parent / LATEST, folder.name + "\n")  # a kill may have come before it
            return folder
        aside = folder.with_name(f"damaged-{folder.name}")
        while aside.exists():
            aside = aside.with_name(aside.name + "-again")
        folder.rename(aside)
        say(f"checkpoint {folder.name} is damaged ({damage}): kept as {aside.name}, going back to the one before")
    return None


def read_progress(folder: Path) -> dict[str, Any]:
    """The counters of a checkpoint."""
    return json.loads((folder / PROGRESS).read_text(encoding="utf-8"))


def read_state(folder: Path) -> dict[str, Any]:
    """The tensors of a checkpoint, on the CPU."""
    return torch.load(folder / STATE, map_location="cpu", weights_only=True)


def step_folders(parent: Path) -> list[Path]:
    """Whole checkpoints, oldest first: folders with a name that `folder_name` gives, not a user's copy beside them."""
    numbers = {path.name.removeprefix("step-") for path in parent.glob("step-*")}
    steps = sorted({int(number) for number in numbers if number.isdecimal()})
    return [folder for step in steps if (folder := parent / folder_name(step)).is_dir()]


def folder_name(step: int) -> str:
    """A checkpoint's folder; names sort as steps do."""
    return f"step-{step:08d}"


def _fill(folder: Path, snapshot: Snapshot) -> None:
    write_drafter(folder, snapshot.weights, snapshot.layout)
    torch.save(snapshot.state, folder / STATE)
    (folder / PROGRESS).write_text(json.dumps(snapshot.progress, indent=1) + "\n", encoding="utf-8")
    sums = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


def damage_of(folder: Path) -> str | None:
    """What is wrong with a checkpoint's files, None where nothing is."""
    try:
        sums = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"{CHECKSUMS} cannot be read"
    if not isinstance(sums, dict):
        return f"{CHECKSUMS} holds no object"
    for name in sorted(sums.keys() | set(NEEDED)):
        if name not in sums:
            return f"{CHECKSUMS} does not name {name}"
        if not (folder / name).is_file():
            return f"{name} is missing"
        if _sha256(folder / name) != sums[name]:
            return f"{name} is not what was written"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list | tuple) else value
