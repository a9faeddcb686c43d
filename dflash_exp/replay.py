"""τ by replay: what greedy decoding would accept of a drafter, without decoding.

In: prompts, the frozen target, a drafter's drafts. Out: what every verify step of each prompt would emit. The target's
greedy path depends on no drafter, so it is made once; after that a call is one batched forward of the drafter a prompt.
24 prompts of the embedded target (1926 tokens, τ 1.8) on one core: 2.2 s once, then 0.9 s a call; decoding takes 21 s.
Paid for that: a draft from every token of a path, where decoding asks for one in τ of them, and rounding: a path and
its features come from forwards over many tokens at once, decoding's from forwards over a block.
"""

# P prompt, T tokens with features, L tokens of a text, A anchors, S drafted tokens, F features (taps x hidden)

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Protocol

import torch
from torch import Tensor

from dflash_exp.decode import DecodeConfig, Verifying, common_prefix, decode
from dflash_exp.kept import KeptFeatures
from dflash_exp.messages import ShareOut

Steps = tuple[int, ...]
"""A number for each verify step."""
READ_AT_ONCE = 128
"""Guessed tokens that the target checks in one forward: bounds its logits."""
LOOKED_UP = 32
"""Tokens guessed from what stood behind the same two before."""


class ReplayTarget(Verifying, Protocol):
    """A target that reads texts, and says at once what a drafter is conditioned on."""

    def features(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor: ...


class Draft(Protocol):
    """The drafter, asked at many places of one text."""

    def __call__(self, features_TF: Tensor, tokens_L: Tensor, positions_A: Tensor) -> Tensor:
        """Drafts behind the tokens at `positions_A`, int64 [A, S]; at a they follow tokens_L[a] and features_TF[:a]."""
        ...


@dataclass(frozen=True)
class ReplayPrompt:
    """A prompt and what is known of its greedy continuation."""

    tokens_P: Tensor
    """int64, P >= 1, on the CPU."""
    guess: Sequence[int]
    """What the continuation may be, however short, long or wrong: costs time at worst."""
    bucket: int


@dataclass(frozen=True)
class Replayed:
    """The verify steps of one prompt, as `Decoded` has them."""

    bucket: int
    loops: bool
    """Whether the path repeats itself."""
    emitted: Steps
    accepted: Steps


class Replay:
    """Replays one drafter as it learns; touches no state of it, and no random numbers."""

    def __init__(
        self, prompts: Sequence[ReplayPrompt], target: ReplayTarget, decoding: DecodeConfig, draft: Draft,
        loops: Callable[[Sequence[int]], bool], share_out: ShareOut,
    ) -> None:  # fmt: skip
        """`loops` says of a path whether it repeats itself. Raises ValueError at a temperature other than 0."""
        if decoding.temperature != 0:
            raise ValueError(
                f"replay needs temperature 0, got {decoding.temperature}; a sampled text is measured by decoding it"
            )
        self._prompts, self._target, self._decoding = prompts, target, decoding
        self._draft, self._loops, self._share_out = draft, loops, share_out
        self._paths: dict[int, tuple[int, ...]] = {}
        self._kept = KeptFeatures()

    def path(self, i: int) -> tuple[int, ...]:
        """The target's greedy continuation of prompt `i`; made when first asked for."""
        if i not in self._paths:
            prompt = self._prompts[i]
            self._paths[i] = greedy_path(self._target, prompt.tokens_P, prompt.guess, self._decoding)
        return self._paths[i]

    def __call__(self) -> list[Replayed]:
        """Every prompt with the drafter as it is now; every rank replays its share, and all know all."""
        told = self._share_out(len(self._prompts), lambda i: list(astuple(self._replayed(i))))
        return [Replayed(bucket, loops, tuple(emitted), tuple(accepted)) for bucket, loops, emitted, accepted in told]

    def _replayed(self, i: int) -> Replayed:
        prompt, path = self._prompts[i], self.path(i)
        drafts: list[list[int]] = []
        if len(path) > 1:
            n_prompt, text_L = len(prompt.tokens_P), torch.cat([prompt.tokens_P, torch.tensor(path)])
            # the last draft follows the last token but one, whose own features do not exist yet
            read_T = text_L[:-2]
            features_TF = self._kept.get(i, lambda: self._target.features(read_T[None], torch.tensor([len(read_T)])))
            drafts = self._draft(features_TF, text_L, torch.arange(n_prompt, len(text_L) - 1)).tolist()
        emitted, accepted = walk(path, drafts, self._decoding.max_new_tokens)
        return Replayed(prompt.bucket, self._loops(path), emitted, accepted)


def greedy_path(target: Verifying, prompt_P: Tensor, guess: Sequence[int], decoding: DecodeConfig) -> tuple[int, ...]:
    """The tokens that plain decoding gives at temperature 0, made by speculative decoding with the guess for a draft.

    With a right guess: the prompt and the guess are read once, and that is all.
    """
    return decode(target, prompt_P, _Guesser(prompt_P.tolist(), guess), decoding, 0, lambda: 0.0).tokens


class _Guesser:
    """Drafts the rest of a guess while it is right, and what followed the last two tokens before once it is not.

    Stored responses are cut where a loop begins, and a loop is what the second rule knows.
    """

    block_size = READ_AT_ONCE + 1

    def __init__(self, prompt: Sequence[int], guess: Sequence[int]) -> None:
        self._text, self._guess, self._n_prompt = list(prompt), list(guess), len(prompt)
        self._draft: list[int] = []
        self._n_read = 0

    def extend(self, features_TF: Tensor) -> None:
        """Take note of how many tokens were committed: the last bonus and what was accepted behind it."""
        self._n_read = len(features_TF)

    def propose(self, bonus: int) -> Tensor:
        """At most READ_AT_ONCE tokens, perhaps none."""
        self._text += [*self._draft[: self._n_read - 1], bonus]
        new = self._text[self._n_prompt :]
        rest = self._guess[len(new) :] if new == self._guess[: len(new)] else []
        self._draft = rest[:READ_AT_ONCE] or looked_up(self._guess + self._text, LOOKED_UP)
        return torch.tensor(self._draft, dtype=torch.int64)


def looked_up(tokens: list[int], n_tokens: int) -> list[int]:
    """What followed the last two tokens where they stood last, as a loop if it reaches the end; [] if they are new."""
    for start in range(len(tokens) - 1, 1, -1):
        if tokens[start - 2 : start] == tokens[-2:]:
            period = tokens[start:]
            return (period * (n_tokens // len(period) + 1))[:n_tokens]
    return []


def walk(path: Sequence[int], drafts_AS: Sequence[Sequence[int]], max_new_tokens: int) -> tuple[Steps, Steps]:
    """What each verify step emits and accepts, if the draft behind path[a] is drafts_AS[a]: `decode` step for step.

    The path ends with an eos or after `max_new_tokens`; its first token comes from no verify step.
    """
    emitted: list[int] = []
    accepted: list[int] = []
    at = 0
    while at < len(path) - 1:
        ahead = path[at + 1 :]
        n_accepted = common_prefix(drafts_AS[at][: max_new_tokens - at - 2], ahead)
        accepted.append(n_accepted)
        # an accepted eos is the last token: the target's own choice behind it is not emitted
        emitted.append(min(n_accepted + 1, len(ahead)))
        at += emitted[-1]
    return tuple(emitted), tuple(accepted)


def replay_metrics(replayed: Iterable[Replayed]) -> dict[str, float]:
    """τ (tokens per verify step, pooled) of all prompts, of those that loop and not, and of each bucket.

    A group without a verify step has no figure.
    """
    groups: dict[str, list[Replayed]] = {}
    for one in replayed:
        kind = "looping" if one.loops else "not_looping"
        for group in ("probe/tau_replayed", f"probe/tau_replayed_{kind}", f"probe/bucket/{one.bucket}/tau_replayed"):
            groups.setdefault(group, []).append(one)
    steps = {name: [n for one in group for n in one.emitted] for name, group in groups.items()}
    return {name: sum(emitted) / len(emitted) for name, emitted in steps.items() if emitted}
