"""A target by name or path, and what a drafter must know of it beyond its weights: mask token, eos, positions.

In: `TargetConfig`. Out: a `LoadedTarget`, tapped where the drafter wants it.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dflash_exp.architecture import TargetShape, target_shape
from dflash_exp.data.store import file_sha256
from dflash_exp.drafter.model import ComputeDtype, Drafter
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.target import FrozenTarget, TargetConfig
from dflash_exp.target_loading import is_directory, load_model, read_settings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FINGERPRINT_VALUES = 4096
WEIGHTS = "model.safetensors"
EMBEDDED = "embedded"
EMBEDDED_FILES = Path(__file__).parent / "embedded" / "files"


@dataclass(frozen=True)
class LoadedTarget:
    """A frozen target with its tokenizer and the shape of a drafter for it."""

    model: FrozenTarget
    tokenizer: PreTrainedTokenizerBase
    drafter_shape: DrafterShape
    eos_ids: tuple[int, ...]
    max_position_embeddings: int
    is_embedded: bool = False
    """The one that ships."""

    def words(self, tokens: Sequence[int]) -> str:
        """The text of some tokens, special ones too."""
        return str(self.tokenizer.decode(list(tokens)))

    def new_drafter(self, compute: ComputeDtype, device: torch.device | None = None) -> Drafter:
        """An untrained drafter, parameters in fp32, with the target's embedding and head, on the target's
        device unless another is named.

        Those two are the target's own tensors where its dtype is the one to compute in, else a copy: one where tied.
        """
        embed_VH, head_VH = self.model.embedding_weight_VH, self.model.head_weight_VH
        dtype = compute.beside(embed_VH.dtype)
        cast_VH = embed_VH.to(dtype)
        own_head_VH = cast_VH if head_VH is embed_VH else head_VH.to(dtype)
        return Drafter(self.drafter_shape, cast_VH, own_head_VH).to(device or self.model.device)


def load(
    config: TargetConfig, devices: Sequence[torch.device], shape_for: Callable[[TargetShape, int], DrafterShape]
) -> LoadedTarget:
    """Load the target onto its devices and tap the layers that the drafter's shape names. Raises ValueError, one
    line."""
    from transformers import AutoTokenizer
    from transformers.utils import logging as transformers_logging

    is_embedded = config.path == EMBEDDED
    if is_embedded:
        check_embedded_target()
    config = located(config)
    transformers_logging.disable_progress_bar()
    model = load_model(config, devices)
    tokenizer = AutoTokenizer.from_pretrained(
        config.path, local_files_only=Path(config.path).is_dir(), trust_remote_code=config.trust_remote_code
    )
    shape = target_shape(model.config)
    drafter_shape = shape_for(shape, mask_token_id(config.mask_token_id, tokenizer, shape.vocab_size))
    return LoadedTarget(
        model=FrozenTarget(model, drafter_shape.target_layer_ids, config.forward),
        tokenizer=tokenizer,
        drafter_shape=drafter_shape,
        eos_ids=eos_ids(model, tokenizer),
        max_position_embeddings=model.config.get_text_config(decoder=True).max_position_embeddings,
        is_embedded=is_embedded,
    )


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokens that end a text, as the model states them, else its tokenizer."""
    stated = model.generation_config.eos_token_id if model.generation_config is not None else None
    eos: Any = tokenizer.eos_token_id if stated is None else stated
    return tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)


def located(config: TargetConfig) -> TargetConfig:
    """The same target with the directory of the one that ships in place of its name."""
    return replace(config, path=str(EMBEDDED_FILES / "target")) if config.path == EMBEDDED else config


def known_shape(config: TargetConfig) -> TargetShape | None:
    """The target's sizes from its config.json, without weights and without asking a network; None for a hub id whose
    config.json is not on this machine. Raises ValueError, one line."""
    config = located(config)
    is_local = is_directory(config)
    try:
        return target_shape(read_settings(config, local_only=True))
    except ValueError as error:
        if is_local or not isinstance(error.__cause__, OSError):
            raise
        return None


def check_readable(config: TargetConfig) -> None:
    """ValueError, one line, unless settings and every file of weights are on a disk of this machine."""
    config = located(config)
    try:
        settings = read_settings(config, local_only=True)
        absent = next((name for name in _weight_files(config.path) if _on_disk(config.path, name) is None), None)
    except ValueError as error:
        if is_directory(config) or not isinstance(error.__cause__, OSError):
            raise
        settings, absent = None, "config.json"
    if settings is None or absent is not None:
        raise ValueError(
            f"target.path must be readable without a network, {config.path!r} lacks {absent} here; "
            f"fetch it first: hf download {config.path}"
        )


def _weight_files(path: str) -> list[str]:
    """Of a model in safetensors: one file, or the parts that its index names."""
    index = _on_disk(path, f"{WEIGHTS}.index.json")
    if index is None:
        return [WEIGHTS]
    return sorted(set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values()))


def _on_disk(path: str, name: str) -> str | None:
    from transformers.utils.hub import cached_file

    return cached_file(
        path,
        name,
        local_files_only=True,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )


def mask_token_id(stated: int | None, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> int:
    """The one that is stated, else the tokenizer's mask token, else the first id without a token (Qwen3: 151669).
    ValueError where there is none."""
    if stated is not None:
        return stated
    if isinstance(tokenizer.mask_token_id, int):
        return tokenizer.mask_token_id
    if len(tokenizer) < vocab_size:
        return len(tokenizer)
    raise ValueError(
        f"target.path must have a mask token or an unused id, got {len(tokenizer)} tokens for {vocab_size} embeddings; "
        "name a token that your texts do not use by target.mask_token_id"
    )


def parameters_sha256(drafter: Drafter) -> str:
    """Hash of every parameter in fp32, by sorted name."""
    digest = hashlib.sha256()
    for name, parameter in sorted(drafter.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().to("cpu", torch.float32).contiguous().numpy().data)
    return digest.hexdigest()


def weights_fingerprint(model: nn.Module) -> str:
    """Hash of every parameter's name, shape and up to 4096 of its values, evenly spread: seconds for any size."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        flat = parameter.detach().flatten()
        some = flat[:: max(1, len(flat) // FINGERPRINT_VALUES)].to("cpu", torch.float32)
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        digest.update(some.contiguous().numpy().data)
    return digest.hexdigest()


def forward_inputs(target: FrozenTarget) -> str:
    """All that decides the bits of a forward beside its batch and threads: weights, settings, versions, processor."""
    settings = {name: value for name, value in target.model.config.to_dict().items() if name != "_name_or_path"}
    inputs = [
        weights_fingerprint(target.model), settings, target.taps, str(target.model.dtype), processor(target.device),
        torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(),
        *(metadata.version(package) for package in ("torch", "transformers")),
    ]  # fmt: skip
    return json.dumps(inputs, sort_keys=True, default=str)


def processor(device: torch.device) -> str:
    """Model of what computes: libraries choose their kernels by it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{named[0] if named else platform.processor()} {torch.backends.cpu.get_cpu_capability()}"


def check_embedded_target() -> None:
    """ValueError when the shipped weights are not the ones that were frozen."""
    hashes = json.loads((EMBEDDED_FILES / "hashes.json").read_text(encoding="utf-8"))
    for name, expected in hashes.items():
        if name.startswith("target/") and file_sha256(EMBEDDED_FILES / name) != expected:
            raise ValueError(
                f"the embedded target's {name} must have the hash that hashes.json states, it has another; "
                "reinstall dflash-exp"
            )
