"""Responses sampled from the target itself, cut where a loop begins.

In: prompts as ids. Out: responses as ids with how each ended: `eos`, `cap` (the generation limit) or `loop`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from dflash_exp.embedded.tokenizer import END_ID, MASK_ID, PAD_ID


class Ending(str, Enum):
    """Why a response stops."""

    eos = "eos"
    cap = "cap"
    loop = "loop"


@dataclass(frozen=True)
class Response:
    """Token ids (eos included where there is one) and the reason for the end."""

    tokens: list[int]
    ending: Ending


def loop_start(tokens: list[int], max_period: int = 64, min_tokens: int = 24) -> int | None:
    """First token of the first repetition of a loop, or None.

    A loop of period p is a stretch in which every token equals the one p before, for at least two further periods and
    `min_tokens` in all: three copies of a long phrase, more of a short one.
    """
    ids = np.asarray(tokens)
    first: int | None = None
    for period in range(1, min(max_period, len(ids) // 3) + 1):
        same = ids[period:] == ids[:-period]
        needed = max(2 * period, min_tokens - period)
        edges = np.flatnonzero(np.diff(np.concatenate([[0], same.astype(np.int8), [0]])))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            if end - start >= needed:
                begin = int(start) + period
                first = begin if first is None else min(first, begin)
                break
    return first


def cut(tokens: list[int], cap: int) -> Response:
    """End a sampled response by the first of: a loop, eos, the cap."""
    ended = tokens[: tokens.index(END_ID) + 1] if END_ID in tokens else tokens[:cap]
    begin = loop_start(ended)
    if begin is not None:
        return Response(ended[:begin], Ending.loop)
    return Response(ended, Ending.eos if ended[-1] == END_ID else Ending.cap)


@torch.no_grad()
def sample_responses(
    model: Qwen3ForCausalLM, prompts: list[list[int]], cap: int, temperature: float, batch_tokens: int, seed: int
) -> list[Response]:
    """One response a prompt; like lengths share a left-padded batch of `batch_tokens`, new tokens included."""
    torch.manual_seed(seed)
    generator: Any = model.eval()  # transformers annotates `generate` in a way that its own models do not satisfy
    device = model.device
    responses: list[Response | None] = [None] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    while order:
        longest = len(prompts[order[-1]]) + cap
        rows = order[-max(1, batch_tokens // longest) :]
        order = order[: -len(rows)]
        width = max(len(prompts[i]) for i in rows)
        tokens_BT = torch.tensor([[PAD_ID] * (width - len(prompts[i])) + prompts[i] for i in rows], device=device)
        out = generator.generate(
            tokens_BT,
            attention_mask=(tokens_BT != PAD_ID).long(),
            max_new_tokens=cap,
            do_sample=temperature > 0,
            temperature=temperature if temperature > 0 else None,
            top_k=0 if temperature > 0 else None,
            suppress_tokens=[MASK_ID, PAD_ID],
            pad_token_id=PAD_ID,
            eos_token_id=END_ID,
        )
        for i, row in zip(rows, out[:, width:].tolist(), strict=True):
            responses[i] = cut(row, cap)
    return [r for r in responses if r is not None]
