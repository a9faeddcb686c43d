"""What a server answered -> the figures of evaluation.json, in the form that our own decoding has.

In: completions. Out: tau and acceptance by slot from the server's verify steps, rates from its clock as its user sees
it. What only plain decoding tells (speed-up, texts that are equal) is null: a server decodes in one way.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from dflash_exp.evaluation import DecodeFigures, repeats_itself
from dflash_exp.served.counts import total
from dflash_exp.served.engines import Completion


def figures(completions: Sequence[Completion]) -> DecodeFigures:
    """As of our own decoding: the first token of a text comes from no verify step, so tau leaves it out. Where other
    requests are in a prompt's counts, tau, slots and rates leave the prompt out."""
    own = [one for one in completions if not one.others_tokens]
    counts = total([one.counts for one in own])
    taus = [_emitted(one) / one.counts.steps for one in own if one.counts.steps]
    seconds = sum(one.seconds for one in own)
    return DecodeFigures(
        tau_pooled=sum(_emitted(one) for one in own) / counts.steps if counts.steps else None,
        tau_macro=sum(taus) / len(taus) if taus else None,
        accepted_at=[n / counts.steps for n in counts.accepted_at] if counts.steps else None,
        speedup=None,
        plain_tokens_per_s=None,
        dflash_tokens_per_s=sum(one.n_tokens for one in own) / seconds if seconds > 0 else None,
        lossless=None,
        prompts=len(completions),
        tokens=sum(one.n_tokens for one in completions),
    )


def _emitted(completion: Completion) -> int:
    return max(0, completion.n_tokens - 1)


def served_evaluation(completions: Sequence[Completion], encode: Callable[[str], list[int]]) -> dict[str, Any]:
    """The content of evaluation.json; `encode` gives tokens of a text where the server told none."""
    loops = [repeats_itself(one.tokens or encode(one.text)) for one in completions]
    parts = {
        name: asdict(figures([one for one, does in zip(completions, loops, strict=True) if does is wanted]))
        for name, wanted in (("looping", True), ("not_looping", False))
    }
    rows = [
        {
            "loops": does, "equal": None, "tokens": one.n_tokens, "emitted": _emitted(one),
            "verify_steps": None if one.others_tokens else one.counts.steps, "plain_s": None, "dflash_s": one.seconds,
        }
        for one, does in zip(completions, loops, strict=True)
    ]  # fmt: skip
    spoilt = [one.others_tokens for one in completions if one.others_tokens]
    others = {"tokens": sum(spoilt), "prompts": len(spoilt)}
    return asdict(figures(completions)) | parts | {"per_prompt": rows, "other_traffic": others}
