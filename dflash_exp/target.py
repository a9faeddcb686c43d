"""The frozen target: TokenBatch -> TargetFeatures.

In: right-padded tokens. Out: the tapped hidden states of the real tokens, packed. No attention mask is passed: under
causal attention a real token never sees the padding to its right. The decoder runs as far as the deepest tap, without
head or cache: 7 of 8 layers for taps [1, 4, 6], 34 of 36 for a Qwen3-4B. Decoding opens a `TargetSession` on the same
weights, which keeps a cache and captures the taps only when it is asked to.

Captures belong to the call: the hooks on the tapped modules call the one that a ContextVar holds, so threads that share
a target never meet, and a hook that finds none returns at once.
"""

# B sequences, T padded tokens, P packed (real) tokens, N new tokens, H hidden, F features (taps x hidden), V vocabulary

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dflash_exp.architecture import check_rope, check_taps, decoder_layers, final_norm, target_shape
from dflash_exp.forwarded import Forward, joined, parts
from dflash_exp.messages import TargetFeatures, TokenBatch

if TYPE_CHECKING:  # 4 s to import, which a plan does without
    from transformers import PreTrainedModel


class TargetDtype(StrEnum):
    """The number format the target is loaded in."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def torch(self) -> torch.dtype:
        """The torch dtype of this name."""
        formats = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
        return formats.get(self.value, torch.float16)


class TargetCache(StrEnum):
    """Where features that were forwarded once are kept."""

    OFF = "off"
    MEMORY = "memory"
    """Of this process: for epochs that repeat the first one's batches (`batches.frozen`)."""
    DISK = "disk"
    """In `cache_dir`, for all runs that train on the same batches."""


@dataclass(frozen=True)
class TargetConfig:
    """Which target, and how it is loaded. Weights are read from safetensors only."""

    path: str
    """A directory, or a hub id `owner/name`."""
    dtype: TargetDtype
    trust_remote_code: bool = False
    """Run model code that comes with the weights: off unless the user says so."""
    cache: TargetCache = TargetCache.OFF  # as are those below, so that a run begun before there was one can be read
    cache_bytes: int = 8 * 2**30
    """All that is kept: of the folder on disk, whoever wrote it; of each rank's process in memory."""
    cache_dir: str | None = None
    """None: the user's cache folder."""
    mask_token_id: int | None = None
    """None: the tokenizer's mask token, else the first id without a token."""
    forward: Forward = Forward.BATCH
    layer_split: int = 1
    """Devices that a copy's decoder layers are spread over, for a target too large for one: features stay the same."""

    def __post_init__(self) -> None:
        if self.layer_split < 1:
            raise ValueError(f"target.layer_split must be >= 1, got {self.layer_split}; 1 keeps a copy on one device")
        if self.cache_bytes < 1:
            raise ValueError(f"target.cache_bytes must be >= 1, got {self.cache_bytes}; target.cache='off' keeps none")


Capture = Callable[[int, Tensor], None]
"""Takes a tap and its hidden states [B, T, H] as soon as a forward has them; it may raise to end the forward."""


class _DeepestTapSeen(Exception):
    """Leaves a forward whose remaining layers nobody needs."""


def _check_all_seen(taps: Sequence[int], seen: Container[int]) -> None:
    """Raises ValueError where a forward went past a tap without calling its layer."""
    unseen = [tap for tap in taps if tap not in seen]
    if unseen:
        raise ValueError(
            f"target.path must name a model that calls every tapped layer, it did not call {unseen}; "
            "take other drafter.taps"
        )


class _Packing:
    """Copies the taps of one forward beside one another while they are in the processor's cache: a `Capture`."""

    def __init__(self, taps: Sequence[int], real_P: Tensor) -> None:
        """`real_P`: int64, rows of the real tokens."""
        self._taps, self._real_P = taps, real_P
        self._features_PF: Tensor | None = None
        self._seen: set[int] = set()

    def __call__(self, tap: int, hidden_BTH: Tensor) -> None:
        if tap not in self._taps:  # somebody else's, of the same model
            return
        hidden_NH = hidden_BTH.flatten(0, 1).to(self._real_P.device)
        width = hidden_NH.shape[1]
        if self._features_PF is None:
            self._features_PF = hidden_NH.new_empty(len(self._real_P), len(self._taps) * width)
        place = self._features_PF.split(width, dim=1)[self._taps.index(tap)]
        torch.index_select(hidden_NH, 0, self._real_P, out=place)
        self._seen.add(tap)
        if tap == self._taps[-1]:
            raise _DeepestTapSeen

    def packed(self) -> Tensor:
        """features_PF. Raises ValueError where a tap was not seen."""
        _check_all_seen(self._taps, self._seen)
        assert self._features_PF is not None, "made for the first tap"
        return self._features_PF


_capture: ContextVar[Capture | None] = ContextVar("dflash_exp.target.capture", default=None)


@contextmanager
def _captured_by(capture: Capture) -> Iterator[None]:
    """Within it the hooks of this thread's forwards hand their taps to `capture`."""
    token = _capture.set(capture)
    try:
        yield
    finally:
        _capture.reset(token)


def _hand_over(layer: int, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
    """Forward hook of a tapped module: hand its hidden states to the capture of this call, if there is one."""
    capture = _capture.get()
    if capture is not None:
        capture(layer, output if isinstance(output, Tensor) else output[0])


class FrozenTarget:
    """A frozen causal LM with taps. Safe to call from several threads.

    Tap l is `output_hidden_states`' entry l + 1, bit for bit; for the last layer that entry stands *after* the final
    norm in transformers, and so it does here.
    """

    def __init__(self, model: PreTrainedModel, taps: Sequence[int], forward: Forward = Forward.BATCH) -> None:
        """Raises ValueError: layers not found, taps out of range, RoPE refused."""
        check_rope(model.config)
        layers = decoder_layers(model)
        self.shape = target_shape(model.config)
        self.taps = check_taps(taps, self.shape.n_layers)
        self.forward = forward
        self.model = model.eval().requires_grad_(False)
        self._decoder = model.get_decoder()
        # `past_key_values` until transformers 5.2x renamed it; where both are taken, the old name warns
        self.cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        for tap in self.taps:
            tapped = self._decoder if tap == self.shape.n_layers - 1 else layers[tap]
            tapped.register_forward_hook(partial(_hand_over, tap))

    @property
    def device(self) -> torch.device:
        """Where the weights are, and the features; of a target that is spread, its first."""
        return self.model.device

    @property
    def embedding_weight_VH(self) -> Tensor:
        """The input embedding."""
        return self.model.get_input_embeddings().get_parameter("weight")

    @property
    def head_weight_VH(self) -> Tensor:
        """The output projection; the embedding itself where the two are tied."""
        head = self.model.get_output_embeddings()
        assert head is not None, "a causal LM has a head"
        return head.get_parameter("weight")

    @property
    def final_norm_weight_H(self) -> Tensor | None:
        """The scale of the norm behind the last layer; None where the decoder ends otherwise."""
        norm = final_norm(self.model)
        return None if norm is None else norm.get_parameter("weight")

    def __call__(self, batch: TokenBatch) -> TargetFeatures:
        """The batch with its features, which lie on the target's device in the target's dtype."""
        return TargetFeatures(batch, self.features(batch.tokens_BT, batch.lengths_B))

    def features(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """features_PF of the real tokens, sequences one after the other, taps concatenated in ascending order."""
        return joined([self._features(*part) for part in parts(self.forward, tokens_BT, lengths_B)])

    @torch.no_grad()
    def _features(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """The same, by one forward."""
        # on the CPU, as long as the batch is: to look for rows on a device would wait for it
        real_P = (torch.arange(tokens_BT.shape[1]) < lengths_B.cpu()[:, None]).flatten().nonzero()[:, 0]
        tokens_BT = tokens_BT.to(self.device, non_blocking=True)
        packing = _Packing(self.taps, real_P.to(self.device, non_blocking=True))
        with _captured_by(packing), suppress(_DeepestTapSeen):
            self._decoder(input_ids=tokens_BT, use_cache=False)
        return packing.packed()

    @property
    def token_bytes(self) -> int:
        """Memory of a token's features."""
        return len(self.taps) * self.shape.hidden_size * self.model.dtype.itemsize

    def features_bytes(self, batch: TokenBatch) -> int:
        """Memory that the batch's features will take."""
        return int(batch.lengths_B.sum()) * self.token_bytes

    def session(self, *, speculative: bool) -> TargetSession:
        """A fresh session on these weights, for one text; only a speculative one captures features and can drop."""
        return TargetSession(self, speculative)


class TargetSession:
    """The target reading one text piece by piece, with a cache. Not shared between threads.

    A plain session pays for nothing that speculation needs: no capture, no cropping.
    """

    def __init__(self, target: FrozenTarget, speculative: bool) -> None:
        from transformers import DynamicCache

        self._target = target
        self._speculative = speculative
        self._cache = DynamicCache(config=target.model.config)
        if speculative:
            # layers with a sliding window forget what a rejected draft pushed out, unless told to wait for the crop
            self._cache.activate_past_recording()

    @torch.no_grad()
    def read(self, tokens_N: Tensor, n_logits: int) -> tuple[Tensor, Tensor | None]:
        """Append tokens (int64, any device): the logits of the last `n_logits` of them, [n_logits, V], and the
        features of all of them, [N, F] (None in a plain session)."""
        inputs = {"input_ids": tokens_N.to(self._target.device)[None], "logits_to_keep": n_logits}
        inputs[self._target.cache_name] = self._cache
        if not self._speculative:
            return self._target.model(**inputs, use_cache=True).logits[0, -n_logits:], None
        hidden: dict[int, Tensor] = {}
        with _captured_by(hidden.__setitem__):
            logits_1NV = self._target.model(**inputs, use_cache=True).logits
        _check_all_seen(self._target.taps, hidden)
        features_NF = torch.cat([hidden[tap][0].to(self._target.device) for tap in self._target.taps], dim=-1)
        return logits_1NV[0, -n_logits:], features_NF

    def drop(self, n_tokens: int) -> None:
        """Forget the last `n_tokens` read (0 too: layers with a window then let go of what they held back).

        Raises ValueError when a layer's state cannot go back, as that of linear attention.
        """
        if not self._cache.is_croppable:
            raise ValueError(
                "target.path must name a model whose cache can drop rejected tokens, "
                f"{type(self._target.model).__name__} has layers that cannot; choose a target with attention only"
            )
        # transformers takes the negative count to remove; a positive one, once the size to keep, is refused since 5.24
        self._cache.crop(-n_tokens)
