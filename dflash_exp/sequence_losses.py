"""What every training sequence costs at a run's newest checkpoint: computed once, kept in the run's directory.

In: the configuration of a plan, and the run that its `plan.loss_from` names. Out: `SequenceLosses`, in the order of the
plan's sequences. They lie in `losses/<checkpoint>-<8 hex>.safetensors`, the digits being a hash of the weights and
tokens that they follow from: other weights or tokens make another file, so none is ever overwritten. A run of other
data, of another target or of other blocks than the plan's is refused.
"""

# S sequences

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from dflash_exp import door
from dflash_exp.checkpoint import CHECKSUMS, damage_of
from dflash_exp.composition import SequenceLosses
from dflash_exp.config import Config, leaves, plain
from dflash_exp.console import LastingConsole
from dflash_exp.data.store import Conversations, read_split
from dflash_exp.durable import write_whole
from dflash_exp.export import LATEST, WEIGHTS
from dflash_exp.plan.sequences import array_sha256
from dflash_exp.planning import token_limit
from dflash_exp.run_directory import inputs_there
from dflash_exp.suggest import ConfigError
from dflash_exp.telemetry.duration import duration

LOSSES = "losses"
"""The folder of a run directory that they are kept in."""
SAME = ("target.path", "drafter.anchors", "drafter.block_size", "loss.gamma", "seeds.anchors")
"""What run and plan must agree on beside the data: which tokens the losses are of, and how they are weighed."""


def losses_for(config: Config, run_dir: Path) -> SequenceLosses:
    """The losses at the newest checkpoint of the run, computed where they are not kept yet. Raises ConfigError."""
    if not run_dir.is_dir():
        raise ConfigError(f"plan.loss_from must be a run's directory, got {run_dir}; `ls runs` shows the runs here")
    try:
        wanted, console = _wanted(config, run_dir), LastingConsole()
        if wanted.path.is_file():
            console.say(f"the losses of {run_dir} at {wanted.checkpoint.name} are read from {wanted.path}")
        else:
            _measure_into(wanted, console)
        loss_S, weight_S = _read(wanted.path)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return SequenceLosses(str(run_dir), wanted.checkpoint.name, loss_S, weight_S)


def kept_losses(config: Config, run_dir: Path) -> SequenceLosses | None:
    """The same where they are kept, else None; raises ValueError where they are not of the plan's data or blocks."""
    wanted = _wanted(config, run_dir)
    if not wanted.path.is_file():
        return None
    return SequenceLosses(str(run_dir), wanted.checkpoint.name, *_read(wanted.path))


@dataclass(frozen=True)
class _Wanted:
    """Losses of one checkpoint, and the file that is theirs."""

    run_config: Config
    checkpoint: Path
    inputs: Mapping[str, str]
    conversations: Conversations
    path: Path


def _wanted(config: Config, run_dir: Path) -> _Wanted:
    """Raises ValueError where the run is not of the plan's data or blocks, or has no whole checkpoint."""
    run_config = door.load(run_dir / "config.yaml")
    checkpoint = newest_checkpoint(run_dir)
    inputs = inputs_there(run_dir)
    conversations = same_conversations(config, run_config, run_dir, inputs)
    check_same_blocks(config, run_config, run_dir)
    path = run_dir / LOSSES / f"{checkpoint.name}-{_key(checkpoint, inputs, conversations)[:8]}.safetensors"
    return _Wanted(run_config, checkpoint, inputs, conversations, path)


def newest_checkpoint(run_dir: Path) -> Path:
    """The checkpoint that `latest` names; ValueError where there is none, or where it is damaged."""
    latest = run_dir / "checkpoints" / LATEST
    if not latest.is_file():
        raise ValueError(
            f"plan.loss_from must be a run with a checkpoint, got none yet in {run_dir}; let it train to its next one"
        )
    folder = latest.parent / latest.read_text(encoding="utf-8").strip()
    damage = damage_of(folder)
    if damage is not None:
        raise ValueError(
            f"plan.loss_from must be a run whose newest checkpoint is whole, {folder} is not: {damage}; "
            "the run's own command goes back to the one before"
        )
    return folder


def same_conversations(config: Config, run_config: Config, run_dir: Path, inputs: Mapping[str, str]) -> Conversations:
    """The training data of run and plan; ValueError, naming what differs, where they are not the same."""
    ours, theirs = _train_split(config), _train_split(run_config)
    if theirs.sha256 != inputs["train_sha256"]:
        raise ValueError(
            f"plan.loss_from must be a run whose data is as it was, {run_config.data.folder} changed since {run_dir} "
            "was begun; take the data of then, or another run"
        )
    if ours.sha256 != theirs.sha256:
        raise ValueError(
            f"plan.loss_from must be a run of the plan's data: {run_dir} is of {run_config.data.folder}, the plan of "
            f"{config.data.folder}; say the run's data"
        )
    used, there = ours.lengths[ours.rows], theirs.lengths[theirs.rows]
    if not (np.array_equal(ours.rows, theirs.rows) and np.array_equal(used, there)):
        raise ValueError(
            f"plan.loss_from must be a run of the plan's sequences: {len(there)} of {there.sum()} tokens in {run_dir}, "
            f"{len(used)} of {used.sum()} here; say its data.max_tokens, data.too_long and batches.budget_tokens"
        )
    return theirs


def check_same_blocks(config: Config, run_config: Config, run_dir: Path) -> None:
    """ValueError, naming what differs, unless the plan trains the run's blocks with the run's weights."""
    here, there = leaves(plain(config)), leaves(plain(run_config))
    for key in SAME:
        if here[key] != there[key]:
            raise ValueError(
                f"plan.loss_from must be a run with the plan's {key}: {there[key]} in {run_dir}, {here[key]} here; "
                f"say {key}={there[key]}"
            )


def _train_split(config: Config) -> Conversations:
    return read_split(config.data.folder, "train", token_limit(config), config.data.too_long)


def _key(checkpoint: Path, inputs: Mapping[str, str], conversations: Conversations) -> str:
    """Hash of all that the losses of a run follow from, its configuration apart."""
    weights = json.loads((checkpoint / CHECKSUMS).read_text(encoding="utf-8"))[WEIGHTS]
    rows, lengths = conversations.rows, conversations.lengths[conversations.rows]
    sequences = array_sha256(rows.astype("<i8"), lengths.astype("<i4"))
    parts = (weights, inputs["target_fingerprint"], conversations.sha256, sequences)
    return sha256("/".join(parts).encode()).hexdigest()


def _measure_into(wanted: _Wanted, console: LastingConsole) -> None:
    """Compute the losses, then write them whole: what stops it in between leaves nothing."""
    from dflash_exp.loss_measurement import measure_losses  # transformers takes 2 s, which reading does not need

    path, rows = wanted.path, wanted.conversations.rows
    console.say(f"computing, once, the losses of {len(rows):,} sequences at {wanted.checkpoint}")
    began_s = time.monotonic()
    fingerprint = wanted.inputs["target_fingerprint"]
    loss_S, weight_S = measure_losses(wanted.run_config, wanted.checkpoint, fingerprint, console)
    try:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, save({"row": rows, "loss": loss_S, "weight": weight_S}))
    except OSError as error:
        raise ValueError(
            f"plan.loss_from must be a run directory that can be written, {path} cannot: {error.strerror}; "
            "make room, or copy the run"
        ) from error
    console.say(f"computed in {duration(time.monotonic() - began_s)}, kept in {path}")


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Losses and weights, float64 [S] each."""
    try:
        kept = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} must be whole, it is not ({error}); delete it, and it is computed anew") from error
    return kept["loss"], kept["weight"]
