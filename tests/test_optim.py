"""Learning rates by hand at several shares of the run, and which optimizer gets which parameter."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from dflash_exp.optim import AdamW, LrScale, Muon, Schedule, build_optimizer, peak_scale, schedule_scale

ADAMW = AdamW(
    lr=0.1, weight_decay=0.5, betas=[0.9, 0.95], schedule=Schedule.constant, warmup_share=0.0, decay_share=0.0,
    max_grad_norm=1.0,
)  # fmt: skip
MUON = Muon(
    lr=0.1, momentum=0.9, weight_decay=0.5, adamw_lr=0.01, betas=[0.9, 0.95], schedule=Schedule.wsd, warmup_share=0.1,
    decay_share=0.5, max_grad_norm=1.0,
)  # fmt: skip


class Tiny(nn.Module):
    """Two matrices, an embedding, a norm and something frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(4, 3, bias=False), nn.Linear(3, 4, bias=False)
        self.embed_tokens = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm(4, bias=False)
        self.frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)


@pytest.mark.parametrize(
    ("schedule", "share", "scale"),
    [
        (Schedule.constant, 0.0, 0.0),
        (Schedule.constant, 0.05, 0.25),
        (Schedule.constant, 0.2, 1.0),
        (Schedule.constant, 1.0, 1.0),
        (Schedule.cosine, 0.1, 0.5),
        (Schedule.cosine, 0.2, 1.0),
        (Schedule.cosine, 0.6, 0.5),  # half way between the warm-up's end and the run's
        (Schedule.cosine, 0.4, 0.5 * (1 + math.cos(math.pi / 4))),
        (Schedule.cosine, 1.0, 0.0),
        (Schedule.wsd, 0.15, 0.75),
        (Schedule.wsd, 0.59, 1.0),
        (Schedule.wsd, 0.6, 1.0),
        (Schedule.wsd, 0.7, 0.75),
        (Schedule.wsd, 0.9, 0.25),
        (Schedule.wsd, 1.0, 0.0),
        (Schedule.wsd, 1.5, 0.0),
        (Schedule.wsd, -1.0, 0.0),
    ],
)
def test_the_rate_at_a_share_of_the_run(schedule: Schedule, share: float, scale: float) -> None:
    assert schedule_scale(share, schedule, warmup_share=0.2, decay_share=0.4) == pytest.approx(scale, abs=1e-12)


@pytest.mark.parametrize("schedule", Schedule)
def test_without_warm_up_a_run_begins_at_the_peak(schedule: Schedule) -> None:
    assert schedule_scale(0.0, schedule, warmup_share=0.0, decay_share=0.0) == 1.0


@pytest.mark.parametrize(
    ("scale", "weight_per_step", "factor"),
    [
        (LrScale.none, 400.0, 1.0),
        (LrScale.sqrt, 400.0, 2.0),
        (LrScale.sqrt, 25.0, 0.5),
        (LrScale.linear, 400.0, 4.0),
        (LrScale.linear, 25.0, 0.25),
        (LrScale.linear, 100.0, 1.0),
    ],
)
def test_the_peak_follows_the_weight_of_a_step_over_the_one_that_lr_is_meant_at(
    scale: LrScale, weight_per_step: float, factor: float
) -> None:
    for config in (ADAMW, MUON):
        assert peak_scale(replace(config, lr_scale=scale, lr_reference_weight=100.0), weight_per_step) == factor


def test_without_a_reference_no_weight_moves_the_peak() -> None:
    assert peak_scale(ADAMW, 12345.0) == 1.0


def rates_of(step: Callable[[], object], module: nn.Module) -> dict[str, bool]:
    """Which parameters a step with gradients of one changes."""
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    step()
    return {name: not torch.equal(p, before[name]) for name, p in module.named_parameters()}


def test_muon_gets_the_matrices_and_adamw_embeddings_and_norms() -> None:
    module = Tiny()
    parts = {type(part).__name__: part for part, _ in build_optimizer(MUON, module.named_parameters())._parts}
    held = {name: [id(p) for g in part.param_groups for p in g["params"]] for name, part in parts.items()}
    assert held["Muon"] == [id(module.one.weight), id(module.two.weight)]
    assert held["AdamW"] == [id(module.embed_tokens.weight), id(module.norm.weight)]


def test_a_frozen_parameter_is_nobody_s() -> None:
    for config in (ADAMW, MUON):
        module = Tiny()
        optimizer = build_optimizer(config, module.named_parameters())
        optimizer.set_share(0.3)
        changed = rates_of(optimizer.step, module)
        assert changed == {name: name != "frozen.weight" for name in changed}


def test_vectors_are_not_decayed() -> None:
    for config in (ADAMW, MUON):
        module = Tiny()
        optimizer = build_optimizer(config, module.named_parameters())
        before = {name: p.detach().clone() for name, p in module.named_parameters()}
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.set_share(0.3)
        optimizer.step()
        assert torch.equal(module.norm.weight, before["norm.weight"])
        shrunk = 1 - 0.5 * (config.lr if isinstance(config, AdamW) else config.adamw_lr)
        assert torch.allclose(module.embed_tokens.weight, before["embed_tokens.weight"] * shrunk)


def test_both_parts_follow_the_schedule_each_from_its_own_peak() -> None:
    optimizer = build_optimizer(MUON, Tiny().named_parameters())
    assert optimizer.set_share(0.05) == pytest.approx(0.05)
    rates = [group["lr"] for part, _ in optimizer._parts for group in part.param_groups]
    assert rates == pytest.approx([0.05, 0.005, 0.005])
    assert optimizer.set_share(0.75) == pytest.approx(0.05)
    assert optimizer.set_share(0.4) == pytest.approx(0.1)


def test_a_scaled_peak_moves_every_part_s_rate_and_not_the_schedule() -> None:
    optimizer = build_optimizer(MUON, Tiny().named_parameters())
    assert optimizer.set_share(0.05, 3.0) == pytest.approx(0.15)  # half of the warm-up
    assert [g["lr"] for part, _ in optimizer._parts for g in part.param_groups] == pytest.approx([0.15, 0.015, 0.015])
    assert optimizer.set_share(0.75) == pytest.approx(0.05), "of each step anew"


def test_a_saved_optimizer_goes_on_as_if_it_had_never_stopped() -> None:
    def trained(module: Tiny, n_steps: int, state: dict[str, dict[str, object]] | None = None) -> dict[str, object]:
        optimizer = build_optimizer(MUON, module.named_parameters())
        if state is not None:
            optimizer.load_state_dict(state)
        for _ in range(n_steps):
            optimizer.set_share(0.3)
            for parameter in module.parameters():
                parameter.grad = parameter.detach().sin()
            optimizer.step()
        return optimizer.state_dict()

    whole, parted = Tiny(), Tiny()
    trained(whole, 4)
    state = trained(parted, 2)
    trained(parted, 2, {k: v for k, v in state.items() if isinstance(v, dict)})
    for one, other in zip(whole.parameters(), parted.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: replace(ADAMW, lr=-0.1), r"optim\.lr must be >= 0, got -0\.1"),
        (lambda: replace(ADAMW, weight_decay=-1.0), r"optim\.weight_decay must be >= 0, got -1\.0"),
        (lambda: replace(ADAMW, betas=[0.9]), r"optim\.betas must be two numbers in \[0, 1\), got \[0\.9\]"),
        (lambda: replace(MUON, betas=[0.9, 1.0]), r"optim\.betas must be two numbers"),
        (lambda: replace(ADAMW, warmup_share=1.0), r"optim\.warmup_share must be in \[0, 1\), got 1\.0"),
        (lambda: replace(ADAMW, decay_share=1.1), r"optim\.decay_share must be in \[0, 1\], got 1\.1"),
        (lambda: replace(MUON, warmup_share=0.6), r"optim\.warmup_share \+ optim\.decay_share must be <= 1, got 1\.1"),
        (lambda: replace(ADAMW, max_grad_norm=0.0), r"optim\.max_grad_norm must be > 0, got 0\.0"),
        (lambda: replace(MUON, momentum=1.0), r"optim\.momentum must be in \[0, 1\), got 1\.0"),
        (
            lambda: replace(ADAMW, lr_scale=LrScale.sqrt),
            r"optim\.lr_reference_weight must be given with optim\.lr_scale=sqrt, got null; say the weight per step",
        ),
        (lambda: replace(MUON, lr_reference_weight=0.0), r"optim\.lr_reference_weight must be > 0, got 0\.0"),
        (lambda: replace(MUON, lr_reference_weight=math.inf), r"optim\.lr_reference_weight must be > 0, got inf"),
        (lambda: replace(MUON, adamw_lr=-0.1), r"optim\.adamw_lr must be >= 0, got -0\.1"),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_key(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()
