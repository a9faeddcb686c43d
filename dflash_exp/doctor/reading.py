"""What the drafter drafts in each text and conversation, and how the target takes it; each by one rank, for all.

In: a target, a drafter, decoded texts, conversations of the data. Out: drafts with the text they were made in. A text's
features are dropped before the next one's are made: 128 texts of 2,500 tokens would be 8 GB of Qwen3-4B's five taps.
"""

# P prompt, L tokens of a text, A anchors, S drafted slots, F features (taps x hidden)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dflash_exp.decode import Decoded
from dflash_exp.doctor.measures import Drafted, surplus
from dflash_exp.doctor.views import View, drafts_in_view, views
from dflash_exp.drafter.model import Drafter
from dflash_exp.drafter.session import drafts_at
from dflash_exp.messages import ShareOut
from dflash_exp.replay import walk
from dflash_exp.target import FrozenTarget

RIGHT = View("nothing more than decoding", 0)
SLOTS_PER_PASS = 2048
PLACES = 64
"""Of a text, in views and in the data."""


@dataclass(frozen=True)
class Text:
    """One prompt, decoded greedily both ways."""

    prompt_P: Tensor
    plain: Decoded
    speculative: Decoded


@dataclass(frozen=True)
class Conversation:
    """One of the data's, held out."""

    tokens_L: Tensor
    """int64."""
    supervised_L: Tensor
    """bool."""


@dataclass(frozen=True)
class Read:
    """A decoded text that has verify steps, and what was drafted in it."""

    text: Text
    drafted: Drafted
    """Behind every new token."""
    steps: tuple[int, ...]
    """What each verify step emits, replayed."""
    in_view: Mapping[str, Drafted]
    """At the first places, by the view's name."""
    steps_float32: tuple[int, ...] | None
    """Replayed by the same drafter computing in float32; None where it does."""


def reads_of(
    target: FrozenTarget, drafter: Drafter, texts: Sequence[Text], max_new_tokens: int, share_out: ShareOut
) -> list[Read]:
    """Of texts of two new tokens at least, in their order."""
    wide = _in_float32(drafter)

    def drafts_in(number: int) -> list[Any]:
        """Behind every new token, in each view, and in float32: what JSON holds."""
        tokens_L, positions_A = _places(texts[number])
        features_LF = _features(target, tokens_L)
        drafts_by = lambda one: drafts_at(one, features_LF, tokens_L, positions_A, SLOTS_PER_PASS).tolist()  # noqa: E731
        in_views = {
            view.name: drafts_in_view(drafter, features_LF, tokens_L, positions_A[:PLACES], view).tolist()
            for view in (RIGHT, *views(drafter.shape.block_size))
        }
        return [drafts_by(drafter), in_views, None if wide is None else drafts_by(wide)]

    told = share_out(len(texts), drafts_in)
    return [_read(text, drafts, max_new_tokens) for text, drafts in zip(texts, told, strict=True)]


def _read(text: Text, drafts: list[Any], max_new_tokens: int) -> Read:
    """`drafts`: as they were handed round."""
    tokens_L, positions_A = _places(text)
    behind, in_views, in_float32 = drafts
    replayed = lambda some: walk(text.plain.tokens, some, max_new_tokens)[0]  # noqa: E731
    return Read(
        text,
        Drafted(torch.tensor(behind), tokens_L, positions_A),
        replayed(behind),
        {name: Drafted(torch.tensor(some), tokens_L, positions_A[:PLACES]) for name, some in in_views.items()},
        None if in_float32 is None else replayed(in_float32),
    )


def _places(text: Text) -> tuple[Tensor, Tensor]:
    """The whole text, and where it is drafted in: behind every new token but the last."""
    tokens_L = torch.cat([text.prompt_P, torch.tensor(text.plain.tokens)])
    return tokens_L, torch.arange(len(text.prompt_P), len(tokens_L) - 1)


def _features(target: FrozenTarget, tokens_L: Tensor) -> Tensor:
    return target.features(tokens_L[None], torch.tensor([len(tokens_L)]))


def _in_float32(drafter: Drafter) -> Drafter | None:
    """The same drafter; None where it computes in float32 itself, or in more."""
    if drafter.compute_dtype.itemsize >= torch.float32.itemsize:
        return None
    wide = Drafter(drafter.shape, drafter.embed_VH.float(), drafter.head_VH.float()).to(drafter.fc.weight.device)
    wide.load_state_dict(drafter.state_dict())
    return wide


def of_data(
    target: FrozenTarget, drafter: Drafter, data: Sequence[Conversation], share_out: ShareOut
) -> tuple[list[Drafted], float | None]:
    """What is drafted in the conversations, and the surplus of their supervised tokens in nats a token."""

    def read(number: int) -> list[Any]:
        one, anchors_A = data[number], _anchors(data[number])
        drafts: list[list[int]] = []
        if len(anchors_A):
            features_LF = _features(target, one.tokens_L)
            drafts = drafts_at(drafter, features_LF, one.tokens_L, anchors_A, SLOTS_PER_PASS).tolist()
        logits_LV, _ = target.session(speculative=False).read(one.tokens_L, n_logits=len(one.tokens_L))
        return [drafts, *surplus(logits_LV, one.tokens_L, one.supervised_L)]

    told = share_out(len(data), read)
    n_tokens, n_slots = sum(n for _, _, n in told), drafter.shape.block_size - 1
    drafted = [
        Drafted(
            torch.tensor(drafts, dtype=torch.int64).view(-1, n_slots), one.tokens_L, _anchors(one), one.supervised_L
        )
        for one, (drafts, _, _) in zip(data, told, strict=True)
    ]
    return drafted, sum(nats for _, nats, _ in told) / n_tokens if n_tokens else None


def _anchors(one: Conversation) -> Tensor:
    """As many as `PLACES` of the anchors that training draws from, evenly over the conversation."""
    anchors_A = torch.nonzero(one.supervised_L[1:-1] & one.supervised_L[2:]).flatten() + 1
    return anchors_A[torch.linspace(0, len(anchors_A) - 1, min(PLACES, len(anchors_A))).round().long()]
