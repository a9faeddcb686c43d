"""Exchanges as token ids, with the length law that makes six quantile buckets as uneven as real traffic.

In: the corpus and its tokenizer. Out: `Conversation` records. Wanted lengths are lognormal; a prompt takes as much of
its file's earlier code as fits the length drawn. Exchanges whose response is longer than `max_response_tokens`, or
whose shortest prompt is longer than `max_prompt_tokens`, are left out and counted.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerFast

from dflash_exp.embedded.corpus import Exchange, Function, exchange
from dflash_exp.embedded.tokenizer import END_ID, prompt_ids


@dataclass(frozen=True)
class LengthLaw:
    """Lognormal law of the wanted prompt length, in tokens."""

    median: float
    sigma: float
    max_prompt_tokens: int
    max_response_tokens: int
    chars_per_token: float


@dataclass(frozen=True)
class Conversation:
    """One exchange as ids: the prompt with its role marks, the library's own response with eos."""

    file: str
    prompt: list[int]
    response: list[int]


def make_conversations(
    functions: list[Function],
    lines: dict[str, list[str]],
    tokenizer: PreTrainedTokenizerFast,
    law: LengthLaw,
    rng: np.random.Generator,
) -> tuple[list[Conversation], Counter[str]]:
    """One conversation a function, and how many were left out for which reason."""
    wanted = np.exp(rng.normal(np.log(law.median), law.sigma, len(functions)))
    made: list[Conversation] = []
    left_out: Counter[str] = Counter()
    for function, n_tokens in zip(functions, wanted, strict=True):
        text = _with_context(lines[function.file], function, min(n_tokens, law.max_prompt_tokens) * law.chars_per_token)
        response = [*tokenizer.encode(text.response, add_special_tokens=False), END_ID]
        prompt = prompt_ids(tokenizer, text.prompt)
        if len(response) > law.max_response_tokens:
            left_out["response too long"] += 1
        elif len(prompt) > law.max_prompt_tokens:
            left_out["prompt too long"] += 1
        else:
            made.append(Conversation(function.file, prompt, response))
    return made, left_out


def _with_context(lines: list[str], function: Function, n_chars: float) -> Exchange:
    """The exchange whose prompt has at most `n_chars`, or the bare function if nothing fits."""
    opening = function.start
    size = sum(len(line) + 1 for line in lines[function.start : function.body])
    for earlier in reversed(function.openings):
        size += sum(len(line) + 1 for line in lines[earlier:opening])
        if size > n_chars:
            break
        opening = earlier
    return exchange(lines, function, opening)
