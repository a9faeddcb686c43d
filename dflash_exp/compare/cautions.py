"""What must be said before any figure: where the arms are not what the sweep says they are.

In: arms and the question. Out: lines, the gravest first: arms of a sweep over order that differ in more, unequal
budgets and learning rates, runs that are missing, failed, diverged or began anew, other code.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dflash_exp.compare.arms import Arm, Block, block_names
from dflash_exp.compare.judged import Question, blocks_of, judged_by
from dflash_exp.compare.runs import Run

SAME = {
    "trained_batches_sha256": "trained batches",
    "anchors_sha256": "anchors",
    "init_sha256": "first weights",
    "probe_sha256": "probe",
}
"""Hashes that arms of one seed share when they differ in order alone."""
LR_SHARE = 0.02
"""Arms whose buckets get learning rates further apart than this are said."""


def cautions(arms: Sequence[Arm], question: Question) -> list[str]:
    """Every line that a reader should see first."""
    found = [
        *_more_than_order(arms, question), *_unequal_budgets(arms), *_unequal_lr(arms),
        *_missing(arms, question), *_trouble(arms, question), *_other_code(arms),
    ]  # fmt: skip
    return found


def hashes(arms: Sequence[Arm]) -> dict[str, Any]:
    """`hashes` of compare.json: at how many seeds two arms or more have finished, whether they share each there, and
    whether their orders differ."""
    shared = {name: not _differing_blocks(arms, key) for key, name in SAME.items()}
    orders = [[run.result.get("trained_order_sha256") for run in runs] for runs in _by_block(arms).values()]
    differ = all(len(set(own)) == len(own) for own in orders)
    known = any(SAME.keys() <= run.result.keys() for arm in arms for run in arm.runs.values())
    n_held = sum(len(runs) > 1 for runs in _by_block(arms).values())
    by_name = {name.replace(" ", "_"): same for name, same in shared.items()}
    return {"known": known, "seeds": n_held, **by_name, "orders_differ": differ}


def _by_block(arms: Sequence[Arm]) -> dict[Block, list[Run]]:
    """Finished runs of each seed."""
    return {
        block: [arm.runs[block] for arm in arms if block in arm.runs and arm.runs[block].finished]
        for block in blocks_of(arms)
    }


def _differing_blocks(arms: Sequence[Arm], key: str) -> list[Block]:
    return [block for block, runs in _by_block(arms).items() if len({run.result.get(key) for run in runs}) > 1]


def _more_than_order(arms: Sequence[Arm], question: Question) -> Iterator[str]:
    if question.differs_in != "order":
        return
    for key, name in SAME.items():
        blocks = _differing_blocks(arms, key)
        if blocks:
            yield f"more than the order differs: arms do not share their {name} at {_seeds(blocks, arms)}"
    same = [block for block, runs in _by_block(arms).items() if len(_orders(runs)) < len(runs)]
    if same:
        yield f"the order does not differ: two arms trained in the same order at {_seeds(same, arms)}"


def _orders(runs: Sequence[Run]) -> set[object]:
    return {run.result.get("trained_order_sha256") for run in runs}


def _unequal_budgets(arms: Sequence[Arm]) -> Iterator[str]:
    for key in ("tokens", "steps"):
        blocks = _differing_blocks(arms, key)
        if blocks:
            held = [sorted({run.result[key] for run in runs}) for runs in _by_block(arms).values() if len(runs) > 1]
            low, high = min(each[0] for each in held), max(each[-1] for each in held)
            yield f"budgets are unequal: {low:,} to {high:,} {key} trained at {_seeds(blocks, arms)}"


def _unequal_lr(arms: Sequence[Arm]) -> Iterator[str]:
    worst, where = 0.0, ""
    for runs in _by_block(arms).values():
        shares = [run.plan["lr_share"] for run in runs if run.plan.get("lr_share")]
        if len({run.plan.get("batches_sha256") for run in runs}) > 1 or len(shares) < max(2, len(runs)):
            continue  # other buckets: their shares are not of the same tokens
        spread = np.array([[share or 0.0 for share in own] for own in shares])
        off = spread.max(axis=0) - spread.min(axis=0)
        if off.max() > worst:
            worst, where = float(off.max()), f"bucket {int(off.argmax())}"
    if worst > LR_SHARE:
        yield (
            f"learning rates are unequal: the share that {where} gets differs by {100 * worst:.1f} % between arms "
            "(lr_share in plan.json), so a difference may be the schedule's"
        )


def _missing(arms: Sequence[Arm], question: Question) -> Iterator[str]:
    n_done = {arm.label: sum(run.finished for run in arm.runs.values()) for arm in arms}
    short = {label: n for label, n in n_done.items() if n < question.seeds}
    if short:
        said = ", ".join(f"{label} {n}" for label, n in short.items())
        yield f"seeds are missing: {question.seeds} finished runs an arm were planned, there are {said}"
    blocks = blocks_of(arms)
    gaps = [block for block in blocks if 0 < len(_by_block(arms)[block]) < len(arms)]
    if gaps and question.baseline is not None:
        yield f"not every arm has finished at {_seeds(gaps, arms)}: only seeds that two arms share are compared"
    most = max(n_done.values())
    if most > question.seeds and not question.exploratory:
        yield (
            f"{most} seeds are there and {question.seeds} were planned: where seeds were added after a look, verdicts "
            "err more often than they say"
        )


def _trouble(arms: Sequence[Arm], question: Question) -> Iterator[str]:
    runs = [run for arm in arms for run in arm.runs.values()]
    for run in runs:
        if run.word == "failed":
            yield f"{run.name} failed: {run.error or 'no error was left'}"
    for word, said in (("running", "still at work"), ("stopped", "stopped before the end"), ("missing", "not begun")):
        names = [run.name for run in runs if run.word == word]
        if names:
            yield f"{said}: {_listed(names)}"
    wanted = judged_by(question)
    without = [run.name for run in runs if run.finished and wanted.of(run) is None]
    if without:
        yield f"no finite {wanted.name}: {_listed(without)}"
    restarted = {run.name: run.result["restarts"] for run in runs if run.result.get("restarts")}
    if restarted:
        yield f"began anew from a checkpoint: {_listed([f'{name} ({n} times)' for name, n in restarted.items()])}"


def _other_code(arms: Sequence[Arm]) -> Iterator[str]:
    runs = [run for arm in arms for run in arm.runs.values() if run.environment]
    git = [run.environment.get("git") or {} for run in runs]
    revisions = sorted({each.get("revision", "none")[:10] for each in git})
    if len(revisions) > 1:
        yield f"runs are of different code: revisions {', '.join(revisions)}"
    if len({each.get("diff", "") for each in git}) > 1:
        yield "runs are of different code: their uncommitted changes differ"
    packages = [run.environment.get("packages") or {} for run in runs]
    for name in sorted({name for each in packages for name in each}):
        versions = sorted({str(each.get(name)) for each in packages})
        if len(versions) > 1:
            yield f"runs are of different versions of {name}: {', '.join(versions)}"


def _seeds(blocks: Sequence[Block], arms: Sequence[Arm]) -> str:
    every = blocks_of(arms)
    names = dict(zip(every, block_names(every), strict=True))
    said = [names[block] for block in blocks]
    return (
        ("every seed" if len(said) > 1 else f"seed {said[0]}")
        if len(blocks) == len(every)
        else f"seed {', '.join(said)}"
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
