"""A whole run of ours against one of NeMo AutoModel's recipe, which trains DFlash end to end on a CPU.

    PEERS_PYTHON=PEERS/bin/python python -m tests.benchmarks.end_to_end [--rounds 3] [--json FILE]

The embedded target, the same 200 of its conversations, one epoch: so as many supervised tokens. Both take 64 anchors a
sequence in blocks of 8, two draft layers, taps 1 and 5, eight sequences a step, AdamW, two threads. AutoModel pads a
batch to its longest, which is kinder than its own loader. Seconds of the training loop alone: its loop, and our line
over all steps; neither loading nor saving. One run of each a round, each in a process of its own; the ratio is taken
round by round.

How to install the peers: `step_against_peers.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

from dflash_exp.building import Outside, build
from dflash_exp.compose import compose
from dflash_exp.data.prepare import Row, write_store
from dflash_exp.data.store import EmbeddedData, Responses, TooLong, read_split
from dflash_exp.messages import StepResult, StepTiming
from dflash_exp.models import EMBEDDED_FILES
from dflash_exp.pipeline.line import Overlapped, run_overlapped
from dflash_exp.planning import plan_run
from dflash_exp.ranks import Alone

CONVERSATIONS, SEQUENCES, ANCHORS, BLOCK = 200, 8, 64, 8
WANTED = 1.5


def main(arguments: Sequence[str]) -> int:
    """0; prints a table, and writes the seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--ours", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.ours is not None:
        print(json.dumps(ours(options.ours)))
        return 0
    with TemporaryDirectory() as folder:
        write_conversations(Path(folder), options.conversations)
        found = [one_round(Path(folder)) for _ in range(options.rounds)]
    for name in found[0]:
        print(f"{name:10s} {median(one[name] for one in found):.2f} s, median of {len(found)}")
    if "automodel" in found[0]:
        ratio = median(one["automodel"] / one["ours"] for one in found)
        print(f"{ratio:.2f} times AutoModel (wanted {WANTED:g})")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def one_round(folder: Path) -> dict[str, float]:
    """Seconds of one run each; AutoModel's only where PEERS_PYTHON is."""
    runs = {"ours": [sys.executable, "-m", "tests.benchmarks.end_to_end", "--ours", str(folder)]}
    if "PEERS_PYTHON" in os.environ:
        recipe = "tests.benchmarks.automodel_recipe"
        runs["automodel"] = [os.environ["PEERS_PYTHON"], "-m", recipe, str(EMBEDDED_FILES / "target"), str(folder)]
    told = {name: _told(command) for name, command in runs.items()}
    supervised = {name: one["supervised_tokens"] for name, one in told.items()}
    assert len(set(supervised.values())) == 1, supervised
    return {name: one["seconds"] for name, one in told.items()}


def _told(command: list[str]) -> dict[str, float]:
    """The line of JSON that a run ends with."""
    root = str(Path(__file__).parents[2])
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def write_conversations(folder: Path, n_conversations: int) -> None:
    """The first embedded conversations as a store of ours, and their tokens as an array for the recipe."""
    split = read_split(EmbeddedData(Responses.model, None, TooLong.error).folder, "train", None, TooLong.error)
    rows = [
        Row(split.tokens(i).tolist(), split.supervised(i).tolist(), "embedded", "eos") for i in range(n_conversations)
    ]
    vocabulary = 1 + max(max(row.tokens) for row in rows)
    write_store(folder / "store", {"train": rows, "probe": rows[:2], "prompts": rows[:2]}, max(280, vocabulary))
    lengths = [len(row.tokens) for row in rows]
    tokens, supervised = np.zeros((2, len(rows), max(lengths)), dtype=np.int64)
    for i, row in enumerate(rows):
        tokens[i, : lengths[i]], supervised[i, : lengths[i]] = row.tokens, row.supervised
    np.savez(folder / "conversations.npz", tokens=tokens, supervised=supervised, lengths=np.array(lengths))


def ours(folder: Path) -> dict[str, float]:
    """Seconds of the overlapped line, and the supervised tokens of what it was given."""
    config = compose([
        "data=store", f"data.path={folder / 'store'}", "drafter.taps=[1,5]", "epochs=1", "steps=null",
        "batches=fixed_size", f"batches.n_sequences={SEQUENCES}", "batches_per_step=1", "probe.every_steps=0",
        "probe.prompts=0", "probe.sequences=1", "optim=adamw", "topology=cpu", f"run_dir={folder / 'run'}",
    ])  # fmt: skip
    planned = plan_run(config)
    stages = build(config, planned, 0, Outside(Alone(), print, lambda: False)).stages
    done: list[float] = []

    def after_step(result: StepResult, timing: StepTiming) -> bool:
        done.append(timing.step_s)
        return True

    assert isinstance(config.pipeline, Overlapped)
    run_overlapped(planned.steps(), stages, config.pipeline, after_step, print)
    supervised = np.load(folder / "conversations.npz")["supervised"]
    return {"seconds": sum(done), "steps": len(done), "supervised_tokens": int(supervised.sum())}


if __name__ == "__main__":
    torch.set_num_threads(2)
    sys.exit(main(sys.argv[1:]))
