"""Plain and speculative decoding, one loop.

In: a target, a prompt, and a drafting session or none. Out: tokens and what each verify step emitted. Plain decoding is
the same loop with an empty draft: it neither captures features nor crops, so the speed-up compares like with like.
Speculation changes no token: the target makes its own choice at every position, by argmax or by a random number that
belongs to the output index alone, and a draft survives where it equals that choice. What remains is rounding: a forward
over a block and one over a token may differ in the last bit, so `lossless` is counted, not claimed.
"""

# P prompt, N tokens of a block, K drafted tokens, F features (taps x hidden), V vocabulary

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Reading(Protocol):
    """The target's side of one text: tokens in, logits and features out, and a way back."""

    def read(self, tokens_N: Tensor, n_logits: int) -> tuple[Tensor, Tensor | None]:
        """Append tokens; logits of the last `n_logits`, features_NF of all (None in a plain session)."""
        ...

    def drop(self, n_tokens: int) -> None:
        """Forget the last `n_tokens`."""
        ...


class Verifying(Protocol):
    """A target that can read texts."""

    def session(self, *, speculative: bool) -> Reading:
        """A fresh text."""
        ...


class Drafting(Protocol):
    """The drafter's side of one text."""

    @property
    def block_size(self) -> int:
        """B: the token to continue from and B - 1 drafted ones."""
        ...

    def extend(self, features_TF: Tensor) -> None:
        """Take the features of the tokens committed since the last call, in order."""
        ...

    def propose(self, bonus: int) -> Tensor:
        """Draft int64 [B - 1] to follow the committed tokens and `bonus`, whose features do not exist yet."""
        ...


@dataclass(frozen=True)
class DecodeConfig:
    """How far and how to decode."""

    max_new_tokens: int
    temperature: float
    """0: argmax."""
    seed: int
    """Of the random numbers at temperature > 0, one stream a prompt, one number an output index."""
    eos_ids: tuple[int, ...]
    """Decoding stops behind any of these."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"prompts.max_new_tokens must be >= 1, got {self.max_new_tokens}; ask for at least one")
        if self.temperature < 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}; 0 takes the most likely token")


@dataclass(frozen=True)
class Decoded:
    """One continuation."""

    tokens: tuple[int, ...]
    """The new tokens, an eos included. The first comes from reading the prompt, the rest from verify steps."""
    emitted: tuple[int, ...]
    """Tokens of each verify step: accepted + 1, or fewer where an eos cut the step short."""
    accepted: tuple[int, ...]
    """Drafted tokens among them."""
    seconds: float
    """From the prompt to the last token, reading the prompt included."""


@torch.no_grad()
def decode(
    target: Verifying,
    prompt_P: Tensor,
    drafting: Drafting | None,
    config: DecodeConfig,
    prompt_number: int,
    clock: Callable[[], float],
) -> Decoded:
    """Continue a prompt (int64 [P], P >= 1), speculatively if there is a (fresh) drafting session.

    Exactly `max_new_tokens` tokens, or fewer with an eos at the end. `prompt_number` keys the random numbers.
    """
    started_s = clock()
    uniforms = _uniforms(config, prompt_number)
    session = target.session(speculative=drafting is not None)
    logits_NV, features_NF = session.read(prompt_P, n_logits=1)
    tokens = choose(logits_NV, config.temperature, uniforms[:1]).tolist()
    emitted: list[int] = []
    accepted: list[int] = []
    no_draft = torch.empty(0, dtype=torch.int64)
    while len(tokens) < config.max_new_tokens and tokens[-1] not in config.eos_ids:
        draft_K = no_draft if drafting is None else _draft(drafting, features_NF, tokens[-1])
        # a step emits one token more than it accepts, so a longer draft could not be used
        draft_K = draft_K[: config.max_new_tokens - len(tokens) - 1]
        block_N = torch.cat([draft_K.new_tensor([tokens[-1]]), draft_K])
        logits_NV, features_NF = session.read(block_N, n_logits=len(block_N))
        chosen = choose(logits_NV, config.temperature, uniforms[len(tokens) : len(tokens) + len(block_N)]).tolist()
        n_accepted = common_prefix(draft_K.tolist(), chosen)
        if features_NF is not None:
            session.drop(len(draft_K) - n_accepted)
            features_NF = features_NF[: n_accepted + 1]
        new = _until_eos(chosen[: n_accepted + 1], config.eos_ids)
        tokens += new
        emitted.append(len(new))
        accepted.append(min(n_accepted, len(new)))
    return Decoded(tuple(tokens), tuple(emitted), tuple(accepted), clock() - started_s)


def _draft(drafting: Drafting, features_NF: Tensor | None, bonus: int) -> Tensor:
    """Show the drafter what was committed last, and take its draft."""
    assert features_NF is not None, "a speculative session returns features"
    drafting.extend(features_NF)
    return drafting.propose(bonus)


def _uniforms(config: DecodeConfig, prompt_number: int) -> Tensor:
    """The random numbers of a prompt, float64 [max_new_tokens]: entry i depends on (seed, prompt, i) alone."""
    if config.temperature == 0:
        return torch.empty(0)
    stream = np.random.Generator(np.random.Philox(np.random.SeedSequence([config.seed, prompt_number])))
    return torch.from_numpy(stream.random(config.max_new_tokens))


def choose(logits_NV: Tensor, temperature: float, uniforms_N: Tensor) -> Tensor:
    """The target's choice at each position, int64 [N]: argmax at temperature 0, else the token at which the
    cumulative probability (in float64) passes the position's random number."""
    if temperature == 0:
        return logits_NV.argmax(dim=-1)
    cumulative_NV = torch.softmax(logits_NV.double() / temperature, dim=-1).cumsum(dim=-1)
    # scaled, as the last sum may fall short of 1
    points_N1 = uniforms_N.to(logits_NV.device)[:, None] * cumulative_NV[:, -1:]
    return torch.searchsorted(cumulative_NV, points_N1, right=True)[:, 0]


def common_prefix(drafted: Sequence[int], chosen: Sequence[int]) -> int:
    """How many drafted tokens the target would have chosen itself, from the first on; either may be the longer."""
    pairs = zip(drafted, chosen, strict=False)
    return next((k for k, (token, own) in enumerate(pairs) if token != own), min(len(drafted), len(chosen)))


def _until_eos(tokens: list[int], eos_ids: tuple[int, ...]) -> list[int]:
    """The tokens up to the first eos, which is kept."""
    for i, token in enumerate(tokens):
        if token in eos_ids:
            return tokens[: i + 1]
    return tokens
