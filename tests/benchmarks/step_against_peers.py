"""A step of ours against a step of SpecForge, NeMo AutoModel, ModelOpt and speculators.

    python -m tests.benchmarks.step_against_peers                                   # ours alone
    PEERS_PYTHON=PEERS/bin/python python -m tests.benchmarks.step_against_peers --json FILE

Hidden states given, two threads, fp32: forward, backward, clip and AdamW (fused, theirs too), in one process, rounds
interleaved. The weights go through the exported layout, the batch and the anchors are the same; losses and gradients
are compared before anything is timed. Ratios are taken round by round, against the fastest peer of the medians.
Growth of memory is what torch's allocator holds at most during a step, beyond what it held before.

The peers live in an environment of their own, PEERS:

    pip install torch==2.13.0 transformers==5.18.0
    pip install --no-deps nemo-automodel==0.7.0 nvidia-modelopt==0.47.0 specforge==0.2.0 speculators==0.9.0
    pip install omegaconf pydantic pydantic-settings datasets accelerate pulp nvidia-ml-py rich torchprofile torchdata \
        torchao numba pillow scipy openai hs_connectors
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dflash_exp.bench.made_up_step import SETTINGS, SIZES, Given, Size, given, step_on
from dflash_exp.export import drafter_state, layout_config, write_drafter
from tests.benchmarks.peers import PEERS, Peer

LOSS_TOLERANCE, GRADIENT_TOLERANCE = 2e-6, 5e-6
WANTED = (1.35, 1.35, 1.6)


@dataclass(frozen=True)
class Contender:
    """Somebody who takes steps."""

    name: str
    evaluate: Callable[[], tuple[float, dict[str, Tensor]]]
    """Weighted mean loss and its gradient by parameter, changing nothing."""
    step: Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """Of one size."""

    size: Size
    times_s: dict[str, list[float]]
    peak_bytes: dict[str, int]
    apart: dict[str, tuple[float, float]]
    """Of each peer: how far our loss is, and our worst gradient in relative L2."""

    def ms(self, name: str) -> float:
        return 1e3 * median(self.times_s[name])

    @property
    def peers(self) -> list[str]:
        return [name for name in self.times_s if name != "ours"]

    @property
    def fastest(self) -> str:
        return min(self.peers, key=self.ms)

    @property
    def ratio(self) -> float:
        pairs = zip(self.times_s[self.fastest], self.times_s["ours"], strict=True)
        return median(theirs / ours for theirs, ours in pairs)


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 where losses or gradients differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=15, help="of the first two sizes; a third of it at the last")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 3], choices=[1, 2, 3])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    peers_python = os.environ.get("PEERS_PYTHON")
    if peers_python and Path(peers_python) != Path(sys.executable):
        return _in(peers_python, arguments)
    torch.set_num_threads(options.threads)
    found = []
    for number in options.sizes:
        rounds = options.rounds if number < 3 else max(1, options.rounds // 3)
        found.append(measure(SIZES[number - 1], rounds, PEERS if peers_python else {}))
        print(table(found[-1], WANTED[number - 1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"sizes": [as_json(one) for one in found]}, indent=1) + "\n")
    apart = [one for size in found for one in size.apart.values()]
    within = [loss <= LOSS_TOLERANCE and gradient <= GRADIENT_TOLERANCE for loss, gradient in apart]
    return 0 if all(within) else 1


def _in(python: str, arguments: Sequence[str]) -> int:
    """The same in the peers' environment, where this package is not installed."""
    root = str(Path(__file__).parents[2])
    return subprocess.call([python, "-m", "tests.benchmarks.step_against_peers", *arguments], cwd=root)


def measure(size: Size, rounds: int, peers: dict[str, Callable[[Given, Path], Peer]]) -> Measured:
    """Compare, then time, then look at the memory."""
    contenders = [ours(given(size)), *[other(name, make, given(size)) for name, make in peers.items()]]
    loss, gradient = contenders[0].evaluate()
    apart = {one.name: _apart(loss, gradient, *one.evaluate()) for one in contenders[1:]}
    times_s: dict[str, list[float]] = {one.name: [] for one in contenders}
    for round_number in range(1 + rounds):
        for one in contenders:
            began_s = time.perf_counter()
            one.step()
            if round_number > 0:
                times_s[one.name].append(time.perf_counter() - began_s)
    return Measured(size, times_s, {one.name: peak_bytes(one.step) for one in contenders}, apart)


def ours(given: Given) -> Contender:
    """The step as a run takes it, with its sums of accuracy, its sketch of the gradient and its clip."""
    drafter, step = given.drafter, step_on(given)

    def evaluate() -> tuple[float, dict[str, Tensor]]:
        sums = step.accumulate(given.features)
        gradient = {name: p.grad / sums.weight for name, p in drafter.named_parameters() if p.grad is not None}
        step.discard()
        return float(sums.loss) / sums.weight, gradient

    return Contender("ours", evaluate, lambda: step.finish(step.accumulate(given.features).weight))


def other(name: str, make: Callable[[Given, Path], Peer], given: Given) -> Contender:
    """A peer's step as its recipe takes it."""
    with TemporaryDirectory() as folder:
        write_drafter(Path(folder), drafter_state(given.drafter), layout_config(given.drafter.shape, 8192))
        peer = make(given, Path(folder))
    parameters = list(peer.parameters.values())
    optimizer = torch.optim.AdamW(parameters, lr=SETTINGS.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def evaluate() -> tuple[float, dict[str, Tensor]]:
        loss = peer.loss()
        gradients = torch.autograd.grad(loss, parameters)
        return loss.item() / peer.scale, {n: g / peer.scale for n, g in zip(peer.parameters, gradients, strict=True)}

    def step() -> None:
        peer.loss().backward()
        torch.nn.utils.clip_grad_norm_(parameters, SETTINGS.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return Contender(name, evaluate, step)


def _apart(
    loss: float, gradient: dict[str, Tensor], their_loss: float, theirs: dict[str, Tensor]
) -> tuple[float, float]:
    assert gradient.keys() == theirs.keys(), gradient.keys() ^ theirs.keys()
    return abs(loss - their_loss), max(float((g - theirs[n]).norm() / theirs[n].norm()) for n, g in gradient.items())


def peak_bytes(run: Callable[[], object]) -> int:
    """The most that the CPU's allocator held at once beyond what it held before."""
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    assert profiled.profiler is not None and profiled.profiler.kineto_results is not None
    events: list[Any] = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return int(np.cumsum(changes).max())


def as_json(one: Measured) -> dict[str, object]:
    """Medians in milliseconds, peaks in bytes."""
    return {
        "name": one.size.name,
        "ours_ms": one.ms("ours"),
        "peers_ms": {name: one.ms(name) for name in one.peers},
        "ours_peak_bytes": one.peak_bytes["ours"],
        "peers_peak_bytes": {name: one.peak_bytes[name] for name in one.peers},
    }


def table(one: Measured, wanted: float) -> str:
    """Lines for a reader."""
    rounds = len(one.times_s["ours"])
    lines = [f"{one.size.name}, medians of {rounds} rounds", f"  {'':12s}{'ms':>9s}{'MB':>9s}  loss and gradient apart"]
    for name in one.times_s:
        loss, grad = one.apart.get(name, (0.0, 0.0))
        apart = f"  {loss:.1e} {grad:.1e}" if name in one.apart else ""
        lines.append(f"  {name:12s}{one.ms(name):9.1f}{one.peak_bytes[name] / 1e6:9.1f}{apart}")
    if one.peers:
        memory = one.peak_bytes["ours"] / min(one.peak_bytes[name] for name in one.peers)
        lines.append(f"  {one.ratio:.2f} times {one.fastest} (wanted {wanted:g}); memory {memory:.2f} of the least")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
