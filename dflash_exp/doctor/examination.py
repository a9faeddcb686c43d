"""The examination: teacher-forced, replayed and decoded acceptance side by side, and what explains their gaps.

In: a target, a drafter, decoded texts, conversations of the data. Out: `doctor` of evaluation.json. Three gaps lie
between training's figure and decoding's. From the data to the target's own text: other tokens (a template, somebody
else's text). From teacher-forced to replayed: the same drafts, but decoding comes more often to the places behind a
rejected one, which are the hard ones; that is no fault. From replayed to decoded: rounding alone.
"""

# P prompt, L tokens of a text, A anchors, S drafted slots

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from dflash_exp.decode import Decoded
from dflash_exp.doctor.findings import Evidence, findings, unexplained
from dflash_exp.doctor.measures import SHIFTS, TAIL, Drafted, seam, share_at, share_with, surplus, teacher_forced
from dflash_exp.doctor.views import View, drafts_in_view, views
from dflash_exp.drafter.model import Drafter
from dflash_exp.drafter.session import drafts_at
from dflash_exp.replay import walk
from dflash_exp.target import FrozenTarget

RIGHT = View("nothing more than decoding", 0)
SLOTS_PER_PASS = 2048
PLACES = 64
"""Of a text, in views and in the data."""
MARKUP = "<>"
"""What a template's own tokens are spelt with, if they are special ones."""


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
class _Read:
    """A decoded text that has verify steps, with the target's features of it and the drafts behind every new token."""

    text: Text
    features_LF: Tensor
    drafted: Drafted


def examine(
    target: FrozenTarget, drafter: Drafter, texts: Sequence[Text], data: Sequence[Conversation],
    max_new_tokens: int, words: Callable[[Sequence[int]], str],
) -> dict[str, Any]:  # fmt: skip
    """What was measured and found. `data` may be empty: what rests on it is then None."""
    reads = [_path(target, drafter, text) for text in texts if len(text.plain.tokens) > 1]
    on_path, on_data = [one.drafted for one in reads], [_data_drafts(target, drafter, one) for one in data]
    steps = [_replayed(one, one.drafted, max_new_tokens) for one in reads]
    in_view = {view: _tau(_seen(drafter, one, view) for one in reads) for view in views(drafter.shape.block_size)}
    in_texts, in_data = _seams(texts, data, words)
    evidence = Evidence(
        tau_data=_tau(on_data),
        tau_path=_tau(on_path),
        tau_replayed=_mean(steps),
        tau_decoded=_mean([text.speculative.emitted for text in texts]),
        tau_in_view={view.name: tau for view, tau in in_view.items() if tau is not None},
        tau_in_right_view=_tau(_seen(drafter, one, RIGHT) for one in reads),
        share_at={shift: share_at(on_path, shift) for shift in SHIFTS},
        surplus_nats=_surplus(target, data),
        seam_in_data=share_with([one.tokens_L.tolist() for one in data if len(_begins(one))], in_texts),
        seam_in_texts=share_with([[*text.prompt_P.tolist(), *text.plain.tokens] for text in texts], in_data),
        seams=(words(in_texts), words(in_data)),
        n_texts=len(texts),
        n_unequal=sum(not _equal(text) for text in texts),
        n_other_steps=sum(
            _equal(one.text) and one.text.speculative.emitted != told for one, told in zip(reads, steps, strict=True)
        ),
        tau_float32=_in_float32(drafter, reads, max_new_tokens),
    )
    found, accepted = findings(evidence), {"data": teacher_forced(on_data), "texts": teacher_forced(on_path)}
    return {
        **asdict(evidence),
        "accepted_at": {name: told and told[1] for name, told in accepted.items()},
        "findings": [asdict(one) for one in found],
        "unexplained": unexplained(evidence, found),
    }


def _path(target: FrozenTarget, drafter: Drafter, text: Text) -> _Read:
    tokens_L = torch.cat([text.prompt_P, torch.tensor(text.plain.tokens)])
    features_LF = target.features(tokens_L[None], torch.tensor([len(tokens_L)]))
    positions_A = torch.arange(len(text.prompt_P), len(tokens_L) - 1)
    return _Read(text, features_LF, _drafted(drafter, features_LF, tokens_L, positions_A))


def _drafted(
    drafter: Drafter, features_LF: Tensor, tokens_L: Tensor, positions_A: Tensor, supervised_L: Tensor | None = None
) -> Drafted:
    drafts_AS = drafts_at(drafter, features_LF, tokens_L, positions_A, SLOTS_PER_PASS).cpu()
    return Drafted(drafts_AS, tokens_L, positions_A, supervised_L)


def _data_drafts(target: FrozenTarget, drafter: Drafter, one: Conversation) -> Drafted:
    """At as many as `PLACES` of the anchors that training draws from, evenly over the conversation."""
    anchors_A = torch.nonzero(one.supervised_L[1:-1] & one.supervised_L[2:]).flatten() + 1
    chosen_A = anchors_A[torch.linspace(0, len(anchors_A) - 1, min(PLACES, len(anchors_A))).round().long()]
    if not len(chosen_A):
        return Drafted(torch.empty(0, drafter.shape.block_size - 1, dtype=torch.int64), one.tokens_L, chosen_A)
    features_LF = target.features(one.tokens_L[None], torch.tensor([len(one.tokens_L)]))
    return _drafted(drafter, features_LF, one.tokens_L, chosen_A, one.supervised_L)


def _seen(drafter: Drafter, read: _Read, view: View) -> Drafted:
    """The first places of a text, drafted in a view."""
    text, positions_A = read.drafted, read.drafted.positions_A[:PLACES]
    drafts_AS = drafts_in_view(drafter, read.features_LF, text.tokens_L, positions_A, view).cpu()
    return Drafted(drafts_AS, text.tokens_L, positions_A)


def _replayed(read: _Read, drafted: Drafted, max_new_tokens: int) -> tuple[int, ...]:
    """What each verify step emits."""
    return walk(read.text.plain.tokens, drafted.drafts_AS.tolist(), max_new_tokens)[0]


def _in_float32(drafter: Drafter, reads: Sequence[_Read], max_new_tokens: int) -> float | None:
    """τ replayed by the same drafter computing in float32; None where it does."""
    if drafter.compute_dtype.itemsize >= torch.float32.itemsize:
        return None
    wide = Drafter(drafter.shape, drafter.embed_VH.float(), drafter.head_VH.float()).to(drafter.fc.weight.device)
    wide.load_state_dict(drafter.state_dict())
    anew = [_drafted(wide, one.features_LF, one.drafted.tokens_L, one.drafted.positions_A) for one in reads]
    return _mean([_replayed(one, drafted, max_new_tokens) for one, drafted in zip(reads, anew, strict=True)])


def _surplus(target: FrozenTarget, data: Sequence[Conversation]) -> float | None:
    told = []
    for one in data:
        logits_LV, _ = target.session(speculative=False).read(one.tokens_L, n_logits=len(one.tokens_L))
        told.append(surplus(logits_LV, one.tokens_L, one.supervised_L))
    n_tokens = sum(n for _, n in told)
    return sum(nats for nats, _ in told) / n_tokens if n_tokens else None


def _seams(
    texts: Sequence[Text], data: Sequence[Conversation], words: Callable[[Sequence[int]], str]
) -> tuple[list[int], list[int]]:
    """Around the responses of the evaluated texts and of the data; [] where there is no data to compare with."""
    if not data:
        return [], []
    marks = lambda token: any(sign in words([token]) for sign in MARKUP)  # noqa: E731
    before, responses = [], []
    for one in data:
        for start in _begins(one).tolist():
            before.append(one.tokens_L[max(0, start - TAIL) : start].tolist())
            responses.append(one.tokens_L[start:].tolist())
    ours = seam([text.prompt_P.tolist() for text in texts], [text.plain.tokens for text in texts], marks)
    return ours, seam(before, responses, marks)


def _begins(one: Conversation) -> Tensor:
    """Where its responses begin, int64; none in one that was cut before."""
    begins_L = one.supervised_L & ~one.supervised_L.roll(1)
    return torch.nonzero(begins_L[1:]).flatten() + 1


def _equal(text: Text) -> bool:
    return text.plain.tokens == text.speculative.tokens


def _tau(drafted: Iterable[Drafted]) -> float | None:
    told = teacher_forced(drafted)
    return None if told is None else told[0]


def _mean(steps: Sequence[Sequence[int]]) -> float | None:
    numbers = [n for emitted in steps for n in emitted]
    return sum(numbers) / len(numbers) if numbers else None
