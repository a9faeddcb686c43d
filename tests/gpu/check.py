"""What a GPU must show, in one script: `python -m tests.gpu.check` (8 minutes at most on an H200), or `--dry` on a CPU.

Golden parity in fp32 and bf16, under grouped and under flex attention; the two against one another (`attention.py`);
the overlapped line against lockstep; tokens/s and MFU of a Qwen3-4B with random weights and its drafter, sequences up
to 8192 tokens; peak memory against the plan's prediction; the same configuration twice, which is the noise floor.
Prints a table and, last, one line of JSON. Exits with 1 where a figure misses its target.
"""

import argparse
import gc
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash_exp.bench.figures import Figure, figures_json, figures_table
from dflash_exp.building import Outside, build
from dflash_exp.compose import compose
from dflash_exp.config import Config
from dflash_exp.data.prepare import Row, write_store
from dflash_exp.distributed import grow_segments
from dflash_exp.drafter.loss import LossConfig, Reduction
from dflash_exp.drafter.model import Drafter, tapped_layers
from dflash_exp.drafter.passes import GroupedPasses
from dflash_exp.drafter.step import DrafterStep
from dflash_exp.embedded.tokenizer import train_tokenizer
from dflash_exp.messages import StepResult, StepTiming, TargetFeatures
from dflash_exp.models import known_shape
from dflash_exp.peaks import mfu
from dflash_exp.pipeline.line import Overlapped, run_lockstep, run_overlapped
from dflash_exp.plan.cost import batch_work, counted_costs, stage_costs
from dflash_exp.planning import Planned, plan_document, plan_run
from dflash_exp.ranks import Alone
from tests.golden_step import golden_step
from tests.gpu.attention import BLOCKS_4B, BLOCKS_TINY, attention_figures, packed


@dataclass(frozen=True)
class Size:
    """A target, its data and how it is trained."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    longest: int
    budget_tokens: int
    sequences: int
    warm_steps: int
    """Steps before the clock starts."""
    steps: int
    overrides: tuple[str, ...]


QWEN3_4B = Size(
    36, 2560, 9728, 32, 8, 128, 151_936, longest=8192, budget_tokens=16_384, sequences=160, warm_steps=4, steps=16,
    overrides=("drafter=paper", "loss.gamma=7", "topology=gpu1"),
)  # fmt: skip
TINY = Size(
    4, 32, 48, 4, 2, 8, 512, longest=96, budget_tokens=192, sequences=24, warm_steps=1, steps=4,
    overrides=("drafter.n_layers=1", "drafter.taps=[0,2]", "drafter.block_size=4", "drafter.anchors=8", "topology=cpu"),
)  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """One run of the line, from fresh weights."""

    seconds: float
    """Of the steps after the warm ones."""
    tokens: int
    """Real tokens of those."""
    losses: list[float]
    """Of all steps: weighted means."""
    peak_bytes: int | None
    """None on a CPU."""


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.check", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="tiny shapes on a CPU: shows that the script runs, no more")
    dry = parser.parse_args(arguments).dry
    grow_segments(os.environ)
    device, size = torch.device("cpu" if dry else "cuda"), TINY if dry else QWEN3_4B
    with TemporaryDirectory() as folder:
        figures = [*golden_figures(device, flex=False), *golden_figures(device, flex=True)]
        figures += [*attention_figures(BLOCKS_TINY if dry else BLOCKS_4B, device)]
        figures += [*line_figures(size, Path(folder), device)]
    console = Console()
    console.print(figures_table(figures, 1))
    console.print(figures_json(figures, 1), highlight=False, soft_wrap=True)
    return int(any(figure.holds is False for figure in figures))


def golden_figures(device: torch.device, flex: bool) -> list[Figure]:
    """The golden step in fp32 against what others found, and in bf16 against that in fp32.

    The groups are held to what is held on a CPU; flex, which exponentiates to base 2, to five times as much.
    """
    golden, under, times = golden_step(), "flex" if flex else "grouped", 5 if flex else 1
    weight, loss, wide = golden_gradient(torch.float32, device, flex)
    _, narrow_loss, narrow = golden_gradient(torch.bfloat16, device, flex)
    expected = {name.removeprefix("grad."): x for name, x in golden.expected.items() if name.startswith("grad.")}
    apart = [float((wide[f"{name}.weight"] / weight - x).norm() / x.norm()) for name, x in expected.items()]
    cosines = [float(F.cosine_similarity(x.flatten(), narrow[name].flatten(), dim=0)) for name, x in wide.items()]
    return [
        Figure(f"golden, {under}", "loss, absolute", abs(loss - float(golden.expected["loss"])), "nats", 2e-6 * times),
        Figure(f"golden, {under}", "worst gradient, relative", max(apart), "of L2", 1e-6 * times),
        Figure(f"golden, {under}", "bf16: loss, relative to fp32", abs(narrow_loss / loss - 1), "of loss", 1e-3),
        Figure(f"golden, {under}", "bf16: worst gradient, cosine", min(cosines), "", 0.99, at_least=True),
    ]


def golden_gradient(
    dtype: torch.dtype, device: torch.device, flex: bool
) -> tuple[float, float, dict[str, torch.Tensor]]:
    """Weight, mean loss and the gradients of the weighted sum, computed in `dtype`; gradients on the CPU."""
    golden = golden_step()
    of = golden.drafter
    drafter = Drafter(of.shape, of.embed_VH.to(dtype), of.head_VH.to(dtype))
    drafter.load_state_dict(of.state_dict())
    drafter = drafter.to(device)
    optimizer = torch.optim.SGD(drafter.parameters(), lr=0.0)
    passes = packed(48, 64, of.shape.block_size, device) if flex else GroupedPasses(10_000)
    step = DrafterStep(drafter, LossConfig(Reduction.step, golden.gamma), optimizer, passes, 1.0)
    sums = step.accumulate(TargetFeatures(golden.features.batch, golden.features.features_PF.to(device)))
    gradients = {name: p.grad.cpu() for name, p in drafter.named_parameters() if p.grad is not None}
    return sums.weight, float(sums.loss) / sums.weight, gradients


def line_figures(size: Size, folder: Path, device: torch.device) -> list[Figure]:
    """Overlapped, overlapped once more, lockstep: speed, memory, and how far the first two are apart."""
    config = world(size, folder)
    planned = plan_run(config)
    first, again = (run(config, planned, size, device, overlapped=True) for _ in range(2))
    lockstep = run(config, planned, size, device, overlapped=False)
    group = "line" if device.type == "cuda" else "line, dry: tiny shapes, the figures mean nothing"
    figures = [
        Figure(group, "overlapped / lockstep, seconds", first.seconds / lockstep.seconds, "", None),
        Figure(group, "overlapped", first.tokens / first.seconds, "tokens/s", None),
        Figure(group, "lockstep", lockstep.tokens / lockstep.seconds, "tokens/s", None),
        Figure(group, "run-to-run spread of seconds", abs(again.seconds / first.seconds - 1), "share", None),
        Figure(group, "run-to-run spread of loss, worst step", apart(first, again), "of loss", None),
        Figure(group, "overlapped against lockstep, worst step", apart(first, lockstep), "of loss", None),
    ]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    used = mfu(flop(config, planned, size), first.seconds, name)
    if used is not None:
        figures.append(Figure(group, "MFU, overlapped", used, "share", None))
    if first.peak_bytes is not None:
        predicted = plan_document(config, planned)["memory_bytes"]
        assert isinstance(predicted, dict)
        figures.append(Figure(group, "peak of memory", first.peak_bytes / 1e9, "GB", None))
        figures.append(Figure(group, "peak of memory / predicted", first.peak_bytes / predicted["total"], "", None))
    return figures


def apart(one: Ran, other: Ran) -> float:
    """The largest relative difference of a step's loss."""
    return max(abs(a / b - 1) for a, b in zip(one.losses, other.losses, strict=True))


def world(size: Size, folder: Path) -> Config:
    """A random target in bf16 and a store of random tokens in `folder`, and the configuration of a run on them."""
    torch.manual_seed(0)
    settings = Qwen3Config(
        vocab_size=size.vocabulary, hidden_size=size.hidden, intermediate_size=size.intermediate,
        num_hidden_layers=size.layers, num_attention_heads=size.heads, num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim, max_position_embeddings=size.longest, eos_token_id=0, tie_word_embeddings=True,
        dtype=torch.bfloat16,
    )  # fmt: skip
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen3ForCausalLM(settings)
    nn.Module.to(model, torch.bfloat16)
    model.save_pretrained(folder / "target")
    train_tokenizer(("def add(a, b):", "return a + b") * 4, 280).save_pretrained(folder / "target")
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(np.log(size.longest / 6), 0.8, size.sequences), 16, size.longest).astype(int)
    lengths[0] = size.longest
    rows = [Row(draw.integers(1, 279, n).tolist(), [False] * 8 + [True] * (n - 8), "random", "eos") for n in lengths]
    write_store(folder / "store", {"train": rows, "probe": rows[:2], "prompts": rows[:2]}, 280)
    return compose([
        "data=store", f"data.path={folder / 'store'}", "target=hf", f"target.path={folder / 'target'}",
        "drafter.taps=null", f"steps={size.steps}", f"batches.budget_tokens={size.budget_tokens}",
        "buckets.n_buckets=3", "probe.every_steps=0", "probe.prompts=0", "probe.sequences=1", "optim=adamw",
        f"run_dir={folder / 'run'}", *size.overrides,
    ])  # fmt: skip


def run(config: Config, planned: Planned, size: Size, device: torch.device, overlapped: bool) -> Ran:
    """All planned steps from fresh weights."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    stages, settings = build(config, planned, 0, Outside(Alone(), print, lambda: False)).stages, config.pipeline
    assert isinstance(settings, Overlapped)
    done: list[tuple[StepResult, StepTiming]] = []

    def after_step(result: StepResult, timing: StepTiming) -> bool:
        done.append((result, timing))
        return True

    if overlapped:
        run_overlapped(planned.steps(), stages, settings, after_step, print)
    else:
        run_lockstep(planned.steps(), stages, settings.threads, after_step)
    counted = done[size.warm_steps :]
    return Ran(
        seconds=sum(timing.step_s for _, timing in counted),
        tokens=sum(result.tokens for result, _ in counted),
        losses=[result.sums.loss / result.sums.weight for result, _ in done],
        peak_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    )


def flop(config: Config, planned: Planned, size: Size) -> float:
    """Operations of the steps after the warm ones, target and drafter together, backward and padding included."""
    first, shape, drafter = planned.planner.epoch(0), known_shape(config.target), config.drafter
    sequences = planned.planner.sequences
    assert shape is not None and sequences.anchors is not None
    assert size.steps <= first.n_steps, f"{size.steps} steps must lie in one epoch, which has {first.n_steps}"
    taps = tapped_layers(drafter, shape.n_layers)
    costs = counted_costs(shape, taps[-1] + 1, drafter.n_layers, len(taps), drafter.block_size)
    work = batch_work(first.batches, sequences.lengths, sequences.anchors, drafter.block_size)
    target, drafter_cost = stage_costs(work, costs)
    per_step = np.add.reduceat((target + drafter_cost)[first.drawn], first.bounds[:-1])
    return float(per_step[size.warm_steps : size.steps].sum())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
