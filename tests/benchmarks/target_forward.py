"""The target's forward against the bare decoder layers that it needs.

    python -m tests.benchmarks.target_forward [--target DIR]

Bare: the embedding, the rotation's angles and the layers up to the deepest tap, one after the other, with neither mask
nor cache, nothing kept. Ours: `FrozenTarget.features`, from tokens to the packed features of the real ones. Rounds
interleaved, the order within a round alternating; the ratio is taken round by round. Wanted: at most 1.05.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from dflash_exp.architecture import decoder_layers
from dflash_exp.models import EMBEDDED_FILES
from dflash_exp.target import FrozenTarget, TargetConfig, TargetDtype
from dflash_exp.target_loading import load_model

BATCHES = ((1, 1024), (8, 512), (32, 128))
TAPS = (1, 4, 6)


def main(arguments: Sequence[str]) -> int:
    """Prints a line a batch; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=str(EMBEDDED_FILES / "target"))
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args(arguments)
    model = load_model(TargetConfig(options.target, TargetDtype.FLOAT32), [torch.device("cpu")])
    target = FrozenTarget(model, TAPS)
    for n_sequences, length in BATCHES:
        ours_s, bare_s = rounds_of(target, n_sequences, length, options.rounds)
        ratio = median(ours / bare for ours, bare in zip(ours_s, bare_s, strict=True))
        print(
            f"{n_sequences}x{length}: ours {1e3 * median(ours_s):.1f} ms, bare {1e3 * median(bare_s):.1f}, {ratio:.3f}"
        )
    return 0


def rounds_of(target: FrozenTarget, n_sequences: int, length: int, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of ours and of the bare layers, round by round, after one that does not count."""
    tokens_BT = torch.randint(0, target.shape.vocab_size, (n_sequences, length))
    lengths_B = torch.full((n_sequences,), length)
    calls: tuple[Callable[[], object], ...] = (
        lambda: target.features(tokens_BT, lengths_B),
        lambda: bare_layers(target, tokens_BT),
    )
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(1 + rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            began_s = time.perf_counter()
            calls[which]()
            if number:
                seconds[which].append(time.perf_counter() - began_s)
    return seconds


@torch.no_grad()
def bare_layers(target: FrozenTarget, tokens_BT: Tensor) -> Tensor:
    """The hidden states behind the deepest tap, [B, T, H]."""
    decoder: Any = target.model.get_decoder()
    hidden_BTH = target.model.get_input_embeddings()(tokens_BT)
    angles = decoder.rotary_emb(hidden_BTH, torch.arange(tokens_BT.shape[1])[None])
    for layer in decoder_layers(target.model)[: target.taps[-1] + 1]:
        hidden_BTH = layer(hidden_BTH, attention_mask=None, position_embeddings=angles)
    return hidden_BTH


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
