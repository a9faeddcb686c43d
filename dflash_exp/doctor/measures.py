"""What is counted of drafts, prompts and texts: arithmetic on tokens and logits, no model.

In: drafts and the text they were made in, conversations, a target's logits. Out: figures that a finding rests on.
"""

# A anchors, S drafted slots, L tokens of a text, V vocabulary

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SHIFTS = (-2, -1, 0, 1, 2)
"""Where else the drafted tokens may stand in the text, in slots; 0 is where they should."""


@dataclass(frozen=True)
class Drafted:
    """Drafts in one text."""

    drafts_AS: Tensor
    """int64."""
    tokens_L: Tensor
    """int64, the text."""
    positions_A: Tensor
    """int64: the draft begins behind this token."""
    supervised_L: Tensor | None = None
    """bool, the tokens that count; None: all."""


def following(one: Drafted, shift: int = 0) -> tuple[Tensor, Tensor]:
    """The text's own tokens at the drafted places moved by `shift`, int64 [A, S], and which of them count, bool."""
    places_AS = one.positions_A[:, None] + torch.arange(1, one.drafts_AS.shape[1] + 1) + shift
    inside_AS = (places_AS >= 0) & (places_AS < len(one.tokens_L))
    places_AS = places_AS.clamp(0, len(one.tokens_L) - 1)
    if one.supervised_L is not None:
        inside_AS &= one.supervised_L[places_AS]
    return one.tokens_L[places_AS], inside_AS


def teacher_forced(drafted: Iterable[Drafted]) -> tuple[float, list[float]] | None:
    """Mean over all drafts of the leading right tokens plus one, and the share whose first k tokens are right, k = 1
    .. S; None of no draft."""
    right = []
    for one in drafted:
        tokens_AS, counts_AS = following(one)
        right.append((one.drafts_AS == tokens_AS) & counts_AS)
    if not right or not sum(len(right_AS) for right_AS in right):
        return None
    at_S = torch.cat(right).cumprod(dim=1).double().mean(dim=0)
    return 1 + float(at_S.sum()), at_S.tolist()


def share_at(drafted: Iterable[Drafted], shift: int) -> float:
    """Of the drafted tokens that stand in the text `shift` places from where they were drafted for; slot 1 aside, as
    the token before it is known to every drafter. 0 of none."""
    n_right = n_all = 0
    for one in drafted:
        tokens_AS, counts_AS = following(one, shift)
        n_right += int(((one.drafts_AS == tokens_AS) & counts_AS)[:, 1:].sum())
        n_all += int(counts_AS[:, 1:].sum())
    return n_right / n_all if n_all else 0.0


def surplus(logits_LV: Tensor, tokens_L: Tensor, supervised_L: Tensor) -> tuple[float, int]:
    """How many nats more than the target's own entropy the supervised tokens cost it, summed, and their number.

    In the mean 0 for a text that the target sampled at temperature 1, less below that, more for anybody else's:
    then it is a divergence. `logits_LV[i]` are those behind token i; the first token is never counted.
    """
    counted_L = supervised_L[1:].to(logits_LV.device)
    logp_LV = logits_LV[:-1][counted_L].float().log_softmax(-1)
    told_L = tokens_L[1:].to(logits_LV.device)[counted_L]
    nll = -logp_LV.gather(1, told_L[:, None]).sum()
    entropy = torch.special.entr(logp_LV.exp()).sum()
    return float(nll - entropy), int(counted_L.sum())


TAIL, HEAD = 16, 4
"""Tokens of a prompt's end and of a response's beginning that are looked at."""


def seam(
    prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], marks: Callable[[int], bool]
) -> list[int]:
    """What a chat template puts around the place where all responses begin, as `assistant`, and an opening of thinking.

    Of what all prompts end with, that from the first token on that `marks` (all, where none does): what is before it
    is asked of every prompt of a benchmark alike. Of what all responses begin with, that up to the last one: what is
    behind it is an answer. [] of fewer than two prompts.
    """
    if len(prompts) < 2:
        return []
    tail = _common_head([prompt[::-1] for prompt in prompts], TAIL)[::-1]
    head = _common_head(responses, HEAD)
    first = next((i for i, token in enumerate(tail) if marks(token)), 0)
    n_opening = max((i for i, token in enumerate(head, start=1) if marks(token)), default=0)
    return [*tail[first:], *head[:n_opening]]


def _common_head(texts: Sequence[Sequence[int]], most: int) -> list[int]:
    head = []
    for column in zip(*texts, strict=False):
        if len(head) == most or len(set(column)) > 1:
            break
        head.append(column[0])
    return head


def share_with(texts: Sequence[Sequence[int]], wanted: Sequence[int]) -> float:
    """Of the texts that hold the wanted tokens, in a row; 1 where nothing is wanted or there is no text."""
    if not wanted or not texts:
        return 1.0
    needle = np.asarray(wanted)
    return sum(_holds(np.asarray(text), needle) for text in texts) / len(texts)


def _holds(text: np.ndarray, needle: np.ndarray) -> bool:
    if len(text) < len(needle):
        return False
    windows = np.lib.stride_tricks.sliding_window_view(text, len(needle))
    return bool((windows == needle).all(axis=1).any())
