"""Responses sampled from the target itself, cut where a loop begins.

In: prompts as ids. Out: responses as ids with how each ended: `eos`, `cap` (the generation limit) or `loop`.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, Qwen3ForCausalLM

from dflash_exp.embedded.tokenizer import END_ID, MASK_ID, PAD_ID

LOOK_FOR_LOOPS_EVERY = 16
"""Tokens between two looks at whether a response has begun to loop."""


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
    """One response a prompt. Prompts of like length share a left-padded batch of at most `batch_tokens` tokens, new
    ones included. A row leaves its batch when it ends: most end long before the cap, and a key-value cache that is
    dragged along costs more than the model."""
    generator = torch.Generator(model.device).manual_seed(seed)
    model.eval()
    tokens: dict[int, list[int]] = {}
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    while order:
        rows = order[-max(1, batch_tokens // (len(prompts[order[-1]]) + cap)) :]
        order = order[: -len(rows)]
        tokens |= dict(
            zip(rows, _continue(model, [prompts[i] for i in rows], cap, temperature, generator), strict=True)
        )
    return [cut(tokens[i], cap) for i in range(len(prompts))]


def _continue(
    model: Qwen3ForCausalLM, prompts: list[list[int]], cap: int, temperature: float, generator: torch.Generator
) -> list[list[int]]:
    """New tokens of each prompt, up to eos, a loop or the cap."""
    width = max(map(len, prompts))
    padded = [[PAD_ID] * (width - len(prompt)) + prompt for prompt in prompts]
    inputs_BT = torch.tensor(padded, device=model.device)
    mask_BT = (inputs_BT != PAD_ID).long()
    positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    new: list[list[int]] = [[] for _ in prompts]
    alive = list(range(len(prompts)))
    for n_new in range(1, cap + 1):
        logits_BV = model(
            inputs_BT, attention_mask=mask_BT, position_ids=positions_BT, past_key_values=cache, logits_to_keep=1
        ).logits[:, -1]
        chosen = _choose(logits_BV.float(), temperature, generator)
        for row, token in zip(alive, chosen.tolist(), strict=True):
            new[row].append(token)
        goes_on = [not _has_ended(new[row], n_new) for row in alive]
        alive = [row for row, on in zip(alive, goes_on, strict=True) if on]
        if not alive:
            break
        kept = torch.tensor(goes_on, device=model.device).nonzero()[:, 0]
        if len(kept) < len(chosen):
            cache.batch_select_indices(kept)
        inputs_BT, positions_BT = chosen[kept, None], positions_BT[kept, -1:] + 1
        mask_BT = torch.cat([mask_BT[kept], mask_BT.new_ones(len(kept), 1)], 1)
    return new


def _has_ended(tokens: list[int], n_new: int) -> bool:
    return tokens[-1] == END_ID or (n_new % LOOK_FOR_LOOPS_EVERY == 0 and loop_start(tokens) is not None)


def _choose(logits_BV: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Argmax at temperature 0, else a sample; the mask and the padding are never said."""
    logits_BV[:, [MASK_ID, PAD_ID]] = float("-inf")
    if temperature == 0:
        return logits_BV.argmax(-1)
    return torch.multinomial((logits_BV / temperature).softmax(-1), 1, generator=generator)[:, 0]
