"""The examination: teacher-forced, replayed and decoded acceptance side by side, and what explains their gaps.

In: a target, a drafter, decoded texts, conversations of the data. Out: `doctor` of evaluation.json. Three gaps lie
between training's figure and decoding's. From the data to the target's own text: other tokens (a template, somebody
else's text). From teacher-forced to replayed: the same drafts, but decoding comes more often to the places behind a
rejected one, which are the hard ones; that is no fault. From replayed to decoded: rounding alone.
"""

# L tokens of a text

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from dflash_exp.doctor.findings import Evidence, findings, unexplained
from dflash_exp.doctor.measures import SHIFTS, TAIL, Drafted, seam, share_at, share_with, teacher_forced
from dflash_exp.doctor.reading import RIGHT, Conversation, Text, of_data, reads_of
from dflash_exp.doctor.views import views
from dflash_exp.drafter.model import Drafter
from dflash_exp.messages import ShareOut
from dflash_exp.target import FrozenTarget

MARKUP = "<>"
"""What a template's own tokens are spelt with, if they are special ones."""


def examine(
    target: FrozenTarget, drafter: Drafter, texts: Sequence[Text], data: Sequence[Conversation],
    max_new_tokens: int, words: Callable[[Sequence[int]], str], share_out: ShareOut,
) -> dict[str, Any]:  # fmt: skip
    """What was measured and found. `data` may be empty: what rests on it is then None. Each text and conversation is
    one item of `share_out`, which may end the examination by raising."""
    reads = reads_of(target, drafter, [text for text in texts if len(text.plain.tokens) > 1], max_new_tokens, share_out)
    on_path = [one.drafted for one in reads]
    on_data, surplus_nats = of_data(target, drafter, data, share_out)
    in_view = {view.name: _tau(one.in_view[view.name] for one in reads) for view in views(drafter.shape.block_size)}
    in_texts, in_data = _seams(texts, data, words)
    wide = [one.steps_float32 for one in reads if one.steps_float32 is not None]
    evidence = Evidence(
        tau_data=_tau(on_data),
        tau_path=_tau(on_path),
        tau_replayed=_mean([one.steps for one in reads]),
        tau_decoded=_mean([text.speculative.emitted for text in texts]),
        tau_in_view={name: tau for name, tau in in_view.items() if tau is not None},
        tau_in_right_view=_tau(one.in_view[RIGHT.name] for one in reads),
        share_at={shift: share_at(on_path, shift) for shift in SHIFTS},
        surplus_nats=surplus_nats,
        seam_in_data=share_with([one.tokens_L.tolist() for one in data if len(_begins(one))], in_texts),
        seam_in_texts=share_with([[*text.prompt_P.tolist(), *text.plain.tokens] for text in texts], in_data),
        seams=(words(in_texts), words(in_data)),
        n_texts=len(texts),
        n_places=sum(len(one.drafted.positions_A) for one in reads),
        n_unequal=sum(not _equal(text) for text in texts),
        n_other_steps=sum(_equal(one.text) and one.text.speculative.emitted != one.steps for one in reads),
        tau_float32=_mean(wide),
    )
    found, accepted = findings(evidence), {"data": teacher_forced(on_data), "texts": teacher_forced(on_path)}
    return {
        **asdict(evidence),
        "accepted_at": {name: told and told[1] for name, told in accepted.items()},
        "findings": [asdict(one) for one in found],
        "unexplained": unexplained(evidence, found),
    }


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
