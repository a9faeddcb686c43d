"""From what was measured to what is wrong: each known cause of a gap, where its own evidence shows it.

In: `Evidence`. Out: findings, each with what was seen and what to do. A cause is found by what it alone does, not by
the size of the gap, so that two at once are both found, and none is blamed for want of a better one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GAIN, GAIN_FLOOR = 1.5, 0.25
"""A view is that of the training where drafts in it are accepted this much longer, in tokens beyond the bonus."""
NATS = 0.1
"""Surplus above which a text is not the target's own."""
MOVED, MOVED_FLOOR = 1.25, 0.05
"""Drafts are moved where this many times as many, and so many more of all, stand elsewhere in the text."""
ROUNDING = 0.02
"""Part of tau that two ways to the same figure may differ by."""
LEAST_PLACES = 64
"""Drafts in texts below which views and moved drafts are not judged, for there one draft more moves a share by over a
hundredth. Not more than the drafts of a text that views are made of (`reading.PLACES`)."""
DROP = 0.75
"""Of what is accepted of the data, what must be left on the evaluated text to need no explanation."""


@dataclass(frozen=True)
class Evidence:
    """What was measured; None where there was nothing to measure it on."""

    tau_data: float | None
    """Teacher-forced, on held-out conversations of the data."""
    tau_path: float | None
    """Teacher-forced, on the target's greedy text."""
    tau_replayed: float | None
    tau_decoded: float | None
    tau_in_view: Mapping[str, float]
    """Teacher-forced, on the first places of the target's text, in views that decoding does not have."""
    tau_in_right_view: float | None
    """The same places."""
    share_at: Mapping[int, float]
    """Of drafted tokens that stand so many places from where they should; 0 is right."""
    surplus_nats: float | None
    """Of the data's supervised tokens, each, over the target's entropy."""
    seam_in_data: float
    """Share of conversations with what stands where the evaluated texts' responses begin."""
    seam_in_texts: float
    """Share of evaluated texts with what stands where the data's responses begin."""
    seams: tuple[str, str]
    """Both as text: of the evaluated, of the data."""
    n_texts: int
    n_places: int
    """Drafts made in the texts."""
    n_unequal: int
    """Speculative texts that are not the plain ones."""
    n_other_steps: int
    """Texts that are, with other verify steps than their replay has."""
    tau_float32: float | None
    """Replayed, the drafter computing in float32; None where it does anyway."""


@dataclass(frozen=True)
class Finding:
    """One cause."""

    cause: str
    seen: str
    mend: str


def findings(evidence: Evidence) -> list[Finding]:
    """Every cause that shows."""
    found = [_template(evidence), _data(evidence), _leak(evidence), _moved(evidence), _precision(evidence)]
    return [one for one in found if one is not None]


def _template(e: Evidence) -> Finding | None:
    if min(e.seam_in_data, e.seam_in_texts) >= 0.5:
        return None
    ours, theirs = ("".join(seam.partition("think")[1:]) for seam in e.seams)
    return Finding(
        "template mismatch" if ours == theirs else "thinking mismatch",
        f"where a response begins the evaluated texts have {e.seams[0]!r}, which {e.seam_in_data:.0%} of the data's "
        f"conversations hold; the data has {e.seams[1]!r}, which {e.seam_in_texts:.0%} of the texts hold",
        "prepare the data as it will be served (thinking=keep|strip|require, the target's template), or serve it so",
    )


def _data(e: Evidence) -> Finding | None:
    if e.surplus_nats is None or e.surplus_nats <= NATS:
        return None
    return Finding(
        "data not from the target",
        f"the data's responses cost the target {e.surplus_nats:.2f} nats a token more than its own would",
        "let the target write them anew with dflash-exp regenerate",
    )


def _leak(e: Evidence) -> Finding | None:
    right = e.tau_in_right_view
    if right is None or not e.tau_in_view or e.n_places < LEAST_PLACES:
        return None
    view, tau = max(e.tau_in_view.items(), key=lambda item: item[1])
    if tau - 1 <= GAIN * (right - 1) + GAIN_FLOOR:
        return None
    return Finding(
        "mask leak",
        f"shown {view}, which decoding does not have, it has {tau:.2f} tokens a step right, without {right:.2f}",
        "it was trained to see them: train it with a mask that hides them (dflash-exp does)",
    )


def _moved(e: Evidence) -> Finding | None:
    shift, share = max(e.share_at.items(), key=lambda item: item[1], default=(0, 0.0))
    right = e.share_at.get(0, 0.0)
    if shift == 0 or e.n_places < LEAST_PLACES or share <= max(MOVED * right, right + MOVED_FLOOR):
        return None
    way = "later" if shift > 0 else "earlier"
    return Finding(
        "off-by-one slot",
        f"{share:.0%} of the drafted tokens stand {abs(shift)} {way} in the text than they were drafted for, "
        f"{right:.0%} in their place",
        "slot k of a block must predict the token k behind its first; see block_size and the labels it was trained on",
    )


def _precision(e: Evidence) -> Finding | None:
    by_dtype = e.tau_float32 is not None and _differ(e.tau_float32, e.tau_replayed)
    if not by_dtype and not (_differ(e.tau_decoded, e.tau_replayed) and e.n_unequal + e.n_other_steps):
        return None
    drafter = f"; in float32 the drafter's replay gives {e.tau_float32:.2f}" if by_dtype else ""
    return Finding(
        "precision",
        f"{e.n_unequal} of {e.n_texts} texts are not those of plain decoding, {e.n_other_steps} more took other verify "
        f"steps than their replay: {e.tau_decoded or 0:.2f} tokens a step decoded, {e.tau_replayed or 0:.2f} replayed"
        f"{drafter}",
        "where it matters evaluate in float32 (target.dtype, drafter.compute_dtype): rounding decides near ties",
    )


def _differ(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and abs(one - other) > ROUNDING * other


def unexplained(evidence: Evidence, found: list[Finding]) -> str | None:
    """Said of a drafter that does much worse on the evaluated text than on its data where no cause for it shows."""
    data, path = evidence.tau_data, evidence.tau_path
    explained = {"template mismatch", "thinking mismatch", "data not from the target"}
    if data is None or path is None or path - 1 >= DROP * (data - 1) or explained & {one.cause for one in found}:
        return None
    return (
        f"teacher-forced it has {data:.2f} tokens a step right on its data, {path:.2f} on these texts, and no known "
        "cause shows: other topics than it was trained on, or prompts unlike its conversations"
    )
