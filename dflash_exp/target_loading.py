"""A target's directory or hub id -> its settings, and the model in memory: frozen, from safetensors only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dflash_exp.architecture import check_rope
from dflash_exp.layer_split import spread
from dflash_exp.target import TargetConfig

if TYPE_CHECKING:  # 4 s to import, which a plan does without
    from transformers import PretrainedConfig, PreTrainedModel

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def load_model(config: TargetConfig, devices: Sequence[torch.device]) -> PreTrainedModel:
    """Load the causal LM from safetensors, frozen and in evaluation mode, its layers spread over `devices`.

    Raises ValueError, one line, when the path holds no such model, weights are missing, or its RoPE is refused.
    """
    from transformers import AutoModelForCausalLM

    is_local = is_directory(config)
    settings = read_settings(config, local_only=is_local)
    with _refusal_in_one_line(config.path):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            config.path,
            config=settings,
            dtype=config.dtype.torch,
            use_safetensors=True,
            output_loading_info=True,
            local_files_only=is_local,
            trust_remote_code=config.trust_remote_code,
        )
    model, report = loaded
    absent = sorted(report["missing_keys"])
    if absent:
        # transformers fills them with random numbers and only warns
        raise ValueError(f"target.path must hold every weight, {config.path!r} lacks {len(absent)}, first {absent[0]}")
    return spread(model, devices).eval().requires_grad_(False)


def is_directory(config: TargetConfig) -> bool:
    """Whether the target is a directory of this machine, not a hub id; ValueError where it is neither."""
    is_local = Path(config.path).is_dir()
    if not is_local and not HUB_ID.fullmatch(config.path):
        raise ValueError(
            f"target.path must be a directory with a model or a hub id owner/name, got {config.path!r}; "
            "give the directory that holds config.json"
        )
    return is_local


def read_settings(config: TargetConfig, *, local_only: bool) -> PretrainedConfig:
    """config.json alone, no weights; `local_only` asks no network. Raises ValueError, one line, also for its RoPE."""
    from transformers import AutoConfig

    with _refusal_in_one_line(config.path):
        settings = AutoConfig.from_pretrained(
            config.path, local_files_only=local_only, trust_remote_code=config.trust_remote_code
        )
    check_rope(settings)
    return settings


@contextmanager
def _refusal_in_one_line(path: str) -> Iterator[None]:
    """Turn transformers' paragraph on what it cannot read into one line of ours."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"target.path must hold a causal LM in safetensors, {path!r} does not: {reason}") from error
