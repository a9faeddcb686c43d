"""The five sentences that a comparison opens with: what was compared, what is equal, the verdict, speed, cost.

In: arms, contrasts, measures. Out: pairs of a lead word and a sentence. Each says what is not known, too.
"""

from collections.abc import Sequence
from typing import Any

from dflash_exp.compare.arms import Arm
from dflash_exp.compare.judged import Contrast, Question, Values
from dflash_exp.compare.measures import Measure

Sentence = tuple[str, str]
VERDICTS = {
    "better": "is better than",
    "worse": "is worse than",
    "equivalent": "is equivalent to",
    "undecided": "is not yet told apart from",
}


def shown(kind: Measure, value: float | None, signed: bool = False) -> str:
    """A figure with its digits and unit, `-` for none."""
    if value is None or value != value:
        return "-"
    rounded = round(value * kind.scale, kind.digits) + 0.0  # and not -0
    text = f"{rounded:{'+' if signed else ''},.{kind.digits}f}".replace("-", "−")
    return f"{text} {kind.unit}".strip()


def between(kind: Measure, interval: tuple[float, float] | None, signed: bool = False) -> str:
    """An interval in words, `-` for none."""
    return "-" if interval is None else f"{shown(kind, interval[0], signed)} to {shown(kind, interval[1], signed)}"


def compared(arms: Sequence[Arm], group: str) -> Sentence:
    """How many settings, seeds and runs."""
    runs = [run for arm in arms for run in arm.runs.values()]
    n_finished = sum(run.finished for run in runs)
    seeds = sorted({sum(run.finished for run in arm.runs.values()) for arm in arms})
    each = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    labels = listed([arm.label for arm in arms])
    of_all = "" if n_finished == len(runs) else f" of {len(runs)}"
    return "Compared", (
        f"{counted(len(arms), 'setting')} ({labels}) of {group}, {each} {'seed' if each == '1' else 'seeds'} each: "
        f"{counted(n_finished, 'finished run')}{of_all}."
    )


def equal(hashes: dict[str, Any], differ: Sequence[str]) -> Sentence:
    """What the hashes say, and what differs by the configurations."""
    if not hashes["known"]:
        return "Equal", f"not known, since no run has left its hashes; the configurations differ in {listed(differ)}."
    if not hashes["seeds"]:
        return "Equal", f"nothing to say, since no seed has runs of two arms; they differ in {keys_of(differ)}."
    words = ("trained batches", "anchors", "first weights", "probe")
    same = [word for word in words if hashes[word.replace(" ", "_")]]
    odd = [word for word in words if word not in same]
    keys = keys_of(differ)
    if not odd:
        rest = "they differ in order alone" if hashes["orders_differ"] else f"the configurations differ in {keys}"
        return "Equal", f"at every seed all arms share {listed(words)}, by their hashes; {rest}."
    shared = f"at every seed all arms share {listed(same)}; " if same else ""
    return "Equal", f"{shared}they do not share {listed(odd)}; the configurations differ in {keys}."


def keys_of(differ: Sequence[str]) -> str:
    """The keys in which configurations differ, in words."""
    return listed(differ) if differ else "nothing but the seeds"


def verdict(
    contrast: Contrast | None, others: Sequence[Contrast], question: Question, values: Values
) -> Sentence:  # fmt: skip
    """The primary contrast; where there is none, how the arms stand to the baseline, or how far they spread."""
    head = "Exploratory" if question.exploratory else "Verdict"
    if contrast is None:
        return head, _without_contrast(others, values)
    kind, share = values.measure, contrast.difference / contrast.margin * question.margin if contrast.margin else 0.0
    said = "not judged against" if contrast.verdict is None else VERDICTS[contrast.verdict]
    interval = "" if contrast.interval is None else f", 95 % interval {between(kind, contrast.interval, True)}"
    percent = f"{100 * share:+.2f} %".replace("-", "−")
    figures = (
        f"the difference is {shown(kind, contrast.difference, True)} ({percent}){interval}, and up to "
        f"±{shown(kind, contrast.margin)} ({100 * question.margin:g} % of the baseline) counts as equal"
    )
    n_seeds = len(contrast.by_seed)
    if contrast.verdict is None:
        return "Interim look", (
            f"no verdict at {n_seeds} of {question.seeds} seeds on {contrast.a} against {contrast.b} in {kind.title}: "
            f"{figures}."
        )
    found = f"{contrast.a} {said} {contrast.b} in {kind.title}, over {counted(n_seeds, 'seed')}"
    return head, f"{found}: {figures}{_needs(contrast)}."


def _needs(contrast: Contrast) -> str:
    if contrast.verdict != "undecided" or contrast.n_for_margin is None:
        return ""
    n, (low, high) = contrast.n_for_margin["n"], contrast.n_for_margin["interval"]
    return (
        f"; to find a difference of that size with 80 % power takes {_seeds(n)} seeds ({_seeds(low)} to {_seeds(high)})"
    )


def _seeds(n: int | None) -> str:
    return "over a million" if n is None else f"{n:,}"


def _without_contrast(others: Sequence[Contrast], values: Values) -> str:
    kind = values.measure
    if others:
        said = [
            f"{each.a} {'not judged' if each.verdict is None else each.verdict} ({shown(kind, each.difference, True)})"
            for each in others
        ]
        return f"in {kind.title}, against {others[0].b}: {listed(said)}."
    figures = [(arm.label, values.figure(arm)) for arm in values.arms]
    spread = [f"{label} {shown(kind, own.sd)} around {shown(kind, own.mean)}" for label, own in figures]
    return f"no arm is the baseline, so none is judged; {kind.title} has standard deviations of {listed(spread)}."


def decoding(contrast: Contrast | None, tau: Values, speed: Values) -> Sentence:
    """What it means for a user who waits for text: one contrast in τ, and the speed-ups."""
    name = tau.measure.title
    if contrast is None:
        known = [(arm.label, tau.figure(arm).mean) for arm in tau.arms]
        held = [f"{label} {shown(tau.measure, mean)}" for label, mean in known if mean is not None]
        return (
            "Decoding",
            f"{name} is {listed(held)}." if held else "nothing was decoded or replayed, so it is not known.",
        )
    arms = {arm.label: arm for arm in tau.arms}
    interval = "" if contrast.interval is None else f", 95 % interval {between(tau.measure, contrast.interval, True)}"
    one, two = (tau.figure(arms[label]).mean for label in (contrast.a, contrast.b))
    said = (
        f"{contrast.a} emits {shown(tau.measure, one)} tokens a verify step, {contrast.b} {shown(tau.measure, two)} "
        f"({name}; difference {shown(tau.measure, contrast.difference, True)} over "
        f"{counted(len(contrast.by_seed), 'seed')}{interval})"
    )
    fast, base = (speed.figure(arms[label]).mean for label in (contrast.a, contrast.b))
    if fast is None or base is None:
        return "Decoding", f"{said}; the speed-up was not measured."
    return (
        "Decoding",
        f"{said}; the speed-up over plain decoding is {shown(speed.measure, fast)} and {shown(speed.measure, base)}.",
    )


def cost(hours: float, n_runs: int, commands: Sequence[str]) -> Sentence:
    """Device-hours, and what to type."""
    amount = f"{hours:.3g} device-hours" if hours >= 0.1 else f"{60 * hours:.2g} device-minutes"
    runs = f"{commands[0]} trains it, " if len(commands) > 1 else ""
    return "Cost", f"{amount} of training in {counted(n_runs, 'run')}; {runs}{commands[-1]} makes this page."


def counted(n: int, what: str) -> str:
    """1 run, 2 runs."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def listed(words: Sequence[str]) -> str:
    """a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "nothing"
