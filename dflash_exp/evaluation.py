"""What decoding says of a drafter: the figures of evaluation.json.

In: a target, a drafter, prompts. Out: tau, acceptance by slot, the speed-up and how many texts equal plain decoding,
for all prompts and apart for those on which the target repeats itself, which flatter a drafter (tau 4.9 against 2.6).
The rates include reading the prompt, on both sides: it is what a user waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

from torch import Tensor

from dflash_exp.decode import DecodeConfig, Decoded, Drafting, Verifying, decode
from dflash_exp.messages import ShareOut
from dflash_exp.stop import Stopped

LOOPING_BELOW = 0.5
"""A text loops when fewer than this share of its 3-grams are distinct."""
WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class DecodedPair:
    """One prompt, decoded both ways."""

    plain: Decoded
    speculative: Decoded


@dataclass(frozen=True)
class DecodeFigures:
    """What decoding says of a drafter over some prompts; None where nothing was decoded, or a server does not tell."""

    tau_pooled: float | None
    """Tokens per verify step; the first token of a text comes from no verify step and is not counted."""
    tau_macro: float | None
    """Mean over the prompts of each prompt's own tau."""
    accepted_at: list[float] | None
    """Share of the verify steps whose slot k was accepted, k = 1 .. B - 1."""
    speedup: float | None
    plain_tokens_per_s: float | None
    dflash_tokens_per_s: float | None
    lossless: str | None
    """Texts equal to plain decoding, token for token, of all: "24/24"."""
    prompts: int
    tokens: int
    """New tokens of the speculative texts."""


def repeats_itself(tokens: Sequence[int]) -> bool:
    """Whether fewer than half of the 3-grams are distinct; a text without any does not loop."""
    grams = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
    return len(set(grams)) < LOOPING_BELOW * len(grams)


def figures(pairs: Sequence[DecodedPair], block_size: int) -> DecodeFigures:
    """Sum up decoded prompts. Rates are sums over sums, prompt reading included on both sides."""
    texts = [pair.speculative for pair in pairs]
    accepted = [n for text in texts for n in text.accepted]
    emitted = [n for text in texts for n in text.emitted]
    taus = [sum(text.emitted) / len(text.emitted) for text in texts if text.emitted]
    plain_rate = _tokens_per_s([pair.plain for pair in pairs])
    dflash_rate = _tokens_per_s(texts)
    n_equal = sum(pair.plain.tokens == pair.speculative.tokens for pair in pairs)
    slots = range(1, block_size)
    return DecodeFigures(
        tau_pooled=sum(emitted) / len(emitted) if emitted else None,
        tau_macro=sum(taus) / len(taus) if taus else None,
        accepted_at=[sum(n >= k for n in accepted) / len(accepted) for k in slots] if accepted else None,
        speedup=dflash_rate / plain_rate if plain_rate and dflash_rate else None,
        plain_tokens_per_s=plain_rate,
        dflash_tokens_per_s=dflash_rate,
        lossless=f"{n_equal}/{len(pairs)}",
        prompts=len(pairs),
        tokens=sum(len(text.tokens) for text in texts),
    )


def _tokens_per_s(texts: Sequence[Decoded]) -> float | None:
    """New tokens per second over all texts."""
    seconds = sum(text.seconds for text in texts)
    return sum(len(text.tokens) for text in texts) / seconds if seconds > 0 else None


@dataclass(frozen=True)
class Hosts:
    """Who does the work, who watches, who may end it."""

    clock: Callable[[], float]
    progress: Callable[[int, int], None]
    """Called with the prompts this rank has done, and those of all."""
    asked_to_stop: Callable[[], bool]
    share_out: ShareOut


def decode_pairs(
    target: Verifying,
    start_drafting: Callable[[], Drafting],
    prompts: Sequence[Tensor],
    config: DecodeConfig,
    hosts: Hosts,
) -> list[DecodedPair]:
    """Decode every prompt both ways, each on one rank. Raises Stopped, on all ranks, where one is asked to stop.

    What only a first forward pays is paid before, and which way goes first alternates, so neither is favoured.
    """
    ways: list[Callable[[], Drafting | None]] = [lambda: None, start_drafting]
    warm_up = replace(config, max_new_tokens=min(WARM_UP_TOKENS, config.max_new_tokens))
    for start in ways if prompts else []:
        decode(target, prompts[0], start(), warm_up, 0, hosts.clock)
    n_done = 0

    def decoded(number: int) -> list[list[Any]]:
        nonlocal n_done
        texts: dict[int, list[Any]] = {}
        for way in (0, 1) if number % 2 == 0 else (1, 0):
            texts[way] = list(astuple(decode(target, prompts[number], ways[way](), config, number, hosts.clock)))
        n_done += 1
        hosts.progress(n_done, len(prompts))
        return [texts[0], texts[1]]

    told = until_stopped(hosts.asked_to_stop, hosts.share_out, len(prompts), decoded)
    return [DecodedPair(_text(plain), _text(speculative)) for plain, speculative in told]


def until_stopped(
    asked_to_stop: Callable[[], bool], share_out: ShareOut, n_items: int, do: Callable[[int], Any]
) -> list[Any]:
    """`share_out`, but raises Stopped, on all ranks, where one is asked to stop between two items."""
    told = share_out(n_items, lambda i: None if asked_to_stop() else do(i))
    if None in told:
        raise Stopped
    return told


def _text(told: Sequence[Any]) -> Decoded:
    tokens, emitted, accepted, seconds = told
    return Decoded(tuple(tokens), tuple(emitted), tuple(accepted), seconds)


def prompt_row(pair: DecodedPair) -> dict[str, float | int | bool]:
    """One prompt of `per_prompt`: tau is emitted / verify_steps. It loops when its plain continuation does."""
    plain, speculative = pair.plain, pair.speculative
    return {
        "loops": repeats_itself(plain.tokens),
        "equal": plain.tokens == speculative.tokens,
        "tokens": len(speculative.tokens),
        "emitted": sum(speculative.emitted),
        "verify_steps": len(speculative.emitted),
        "plain_s": plain.seconds,
        "dflash_s": speculative.seconds,
    }


def evaluation(pairs: Sequence[DecodedPair], block_size: int, temperature: float, checkpoint: str) -> dict[str, object]:
    """The content of evaluation.json, from decoded prompts."""
    rows = [prompt_row(pair) for pair in pairs]
    looping = [pair for pair, row in zip(pairs, rows, strict=True) if row["loops"]]
    not_looping = [pair for pair, row in zip(pairs, rows, strict=True) if not row["loops"]]
    return {
        **asdict(figures(pairs, block_size)),
        "looping": asdict(figures(looping, block_size)),
        "not_looping": asdict(figures(not_looping, block_size)),
        "per_prompt": rows,
        "temperature": temperature,
        "checkpoint": checkpoint,
    }
