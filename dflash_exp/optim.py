"""Optimizers and learning-rate schedules: AdamW alone, or Muon for matrices and AdamW for the rest.

In: named parameters and one of the two configurations. Out: an `Optimizer` whose learning rate is a function of
the *share* of the run that is done, so that a schedule means the same for every batch size and epoch count. Its peak
is `lr`, or with `lr_scale` follows the expected weight of a step, which arms of a comparison may differ in.
Muon is torch's own; it must see every projection as a matrix of its own (orthogonalising a fused q/k/v is another
optimizer).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn


class Schedule(str, Enum):
    """Shape of the learning rate after the warm-up."""

    constant = "constant"
    cosine = "cosine"
    """Half a cosine from the peak to zero."""
    wsd = "wsd"
    """Warm-up, stable, decay: linear to zero over the last `decay_share`."""


class LrScale(str, Enum):
    """How the peak learning rate follows the size of a step: r is the epoch's expected weight per step, the constant of
    `loss.reduction=epoch`, over `lr_reference_weight`. Neither depends on the order."""

    none = "none"
    """The peak is `lr`."""
    sqrt = "sqrt"
    """lr * sqrt(r): Krizhevsky 2014, arXiv:1404.5997; for Adam, whose update does not grow with the gradient, Malladi
    et al. 2022, arXiv:2205.10287 (their change of the betas is left out). Muon is like Adam in that."""
    linear = "linear"
    """lr * r: for SGD, Goyal et al. 2017, arXiv:1706.02677."""


@dataclass(frozen=True)
class AdamW:
    """AdamW on every parameter."""

    lr: float
    weight_decay: float
    betas: list[float]
    schedule: Schedule
    warmup_share: float
    decay_share: float
    max_grad_norm: float
    lr_scale: LrScale = LrScale.none  # as is the next, so that a run begun before there was one can be read
    lr_reference_weight: float | None = None
    """Expected weight per step at which `lr` is meant; plan.json has a run's as `weight_per_step`."""

    def __post_init__(self) -> None:
        _check_common(self)


@dataclass(frozen=True)
class Muon:
    """Muon on matrices, AdamW on norms (and on whatever else is not a matrix)."""

    lr: float
    momentum: float
    weight_decay: float
    adamw_lr: float
    betas: list[float]
    schedule: Schedule
    warmup_share: float
    decay_share: float
    max_grad_norm: float
    lr_scale: LrScale = LrScale.none  # as is the next, so that a run begun before there was one can be read
    lr_reference_weight: float | None = None
    """Expected weight per step at which `lr` is meant; plan.json has a run's as `weight_per_step`."""

    def __post_init__(self) -> None:
        _check_common(self)
        _require(0 <= self.momentum < 1, "optim.momentum", "be in [0, 1)", self.momentum)
        _require(self.adamw_lr >= 0, "optim.adamw_lr", "be >= 0", self.adamw_lr)


def _require(holds: bool, key: str, rule: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{key} must {rule}, got {value}")


def _check_common(config: AdamW | Muon) -> None:
    _require(config.lr >= 0, "optim.lr", "be >= 0", config.lr)
    _require(config.weight_decay >= 0, "optim.weight_decay", "be >= 0", config.weight_decay)
    _require(
        len(config.betas) == 2 and all(0 <= b < 1 for b in config.betas),
        "optim.betas",
        "be two numbers in [0, 1)",
        config.betas,
    )
    _require(0 <= config.warmup_share < 1, "optim.warmup_share", "be in [0, 1)", config.warmup_share)
    _require(0 <= config.decay_share <= 1, "optim.decay_share", "be in [0, 1]", config.decay_share)
    _require(
        config.warmup_share + config.decay_share <= 1,
        "optim.warmup_share + optim.decay_share",
        "be <= 1",
        config.warmup_share + config.decay_share,
    )
    _require(config.max_grad_norm > 0, "optim.max_grad_norm", "be > 0", config.max_grad_norm)
    _check_reference(config.lr_scale, config.lr_reference_weight)


def _check_reference(scale: LrScale, reference: float | None) -> None:
    if reference is None and scale is not LrScale.none:
        raise ValueError(
            f"optim.lr_reference_weight must be given with optim.lr_scale={scale.value}, got null; "
            "say the weight per step at which optim.lr is meant, as `dflash-exp plan` prints a run's"
        )
    holds = reference is None or (reference > 0 and math.isfinite(reference))
    _require(holds, "optim.lr_reference_weight", "be > 0", reference)


def schedule_scale(share: float, schedule: Schedule, warmup_share: float, decay_share: float) -> float:
    """Factor on the peak learning rate at `share` of the run, in [0, 1]."""
    share = min(max(share, 0.0), 1.0)
    if share < warmup_share:
        return share / warmup_share
    if schedule is Schedule.cosine:
        return 0.5 * (1 + math.cos(math.pi * (share - warmup_share) / (1 - warmup_share)))
    if schedule is Schedule.wsd and share > 1 - decay_share:
        return (1 - share) / decay_share
    return 1.0


def peak_scale(config: AdamW | Muon, weight_per_step: float) -> float:
    """Factor on `lr`, and on Muon's `adamw_lr`, in an epoch of this expected weight per step."""
    if config.lr_scale is LrScale.none or config.lr_reference_weight is None:
        return 1.0
    ratio = weight_per_step / config.lr_reference_weight
    return ratio if config.lr_scale is LrScale.linear else math.sqrt(ratio)


class Optimizer:
    """One or two torch optimizers that share a schedule."""

    def __init__(self, config: AdamW | Muon, parts: list[tuple[torch.optim.Optimizer, float]]) -> None:
        self.config = config
        self._parts = parts

    def set_share(self, share: float, peak_scale: float = 1.0) -> float:
        """Set every learning rate for `share` of the run, its peak times `peak_scale`; return the first part's rate."""
        scale = schedule_scale(share, self.config.schedule, self.config.warmup_share, self.config.decay_share)
        scale *= peak_scale
        for part, peak in self._parts:
            for group in part.param_groups:
                group["lr"] = peak * scale
        return self._parts[0][1] * scale

    def step(self) -> None:
        for part, _ in self._parts:
            part.step()

    def state_dict(self) -> dict[str, object]:
        return {str(i): part.state_dict() for i, (part, _) in enumerate(self._parts)}

    def load_state_dict(self, state: dict[str, dict[str, object]]) -> None:
        for i, (part, _) in enumerate(self._parts):
            part.load_state_dict(state[str(i)])


def build_optimizer(config: AdamW | Muon, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
    """Embeddings and vectors always go to AdamW; with `Muon` every other matrix goes to Muon."""
    trained = [(name, p) for name, p in named_parameters if p.requires_grad]
    if isinstance(config, AdamW):
        return Optimizer(config, [(_adamw([p for _, p in trained], config.lr, config), config.lr)])
    matrices = [p for name, p in trained if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in trained if p.ndim != 2 or "embed" in name]
    muon = torch.optim.Muon(
        matrices, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, nesterov=True
    )
    return Optimizer(config, [(muon, config.lr), (_adamw(rest, config.adamw_lr, config), config.adamw_lr)])


def _adamw(parameters: list[nn.Parameter], lr: float, config: AdamW | Muon) -> torch.optim.AdamW:
    decayed: list[Tensor] = [p for p in parameters if p.ndim >= 2]
    plain: list[Tensor] = [p for p in parameters if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=lr, betas=(config.betas[0], config.betas[1]), fused=True
    )
