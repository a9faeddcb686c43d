"""Train the embedded target: a small Qwen3 on whole conversations, with Muon, for a stated time.

In: token sequences. Out: a `Qwen3ForCausalLM` in float32 and its loss curve. The schedule runs in the share of the time
that is spent, so the same recipe uses 45 minutes of two cores or five of a GPU; every held-out figure is on files that
were not trained on.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash_exp.embedded.tokenizer import END_ID, PAD_ID
from dflash_exp.optim import Muon, build_optimizer

# B sequences, T padded tokens, V vocabulary


@dataclass(frozen=True)
class Training:
    """How long, on what, and how much a step."""

    minutes: float
    budget_tokens: int
    device: str
    seed: int
    optim: Muon
    report_every_s: float


@dataclass(frozen=True)
class CurvePoint:
    """One line of the loss curve; losses are mean nats a token over all tokens of a conversation."""

    step: int
    minutes: float
    tokens: int
    train_loss: float
    held_out_loss: float


def build_language_model(vocab_size: int, seed: int) -> Qwen3ForCausalLM:
    """3.6M parameters: 8 layers of 192, 4 heads and 2 KV heads of 48, tied embeddings."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=48,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        eos_token_id=END_ID,
        bos_token_id=None,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def train_language_model(
    model: Qwen3ForCausalLM, train: list[np.ndarray], held_out: list[np.ndarray], training: Training
) -> list[CurvePoint]:
    """Train in place until the time is spent; a last line of the curve is taken at the end."""
    device = torch.device(training.device)
    nn.Module.to(model, device)
    model.train()
    optimizer = build_optimizer(training.optim, model.named_parameters())
    held_out_batches = list(batches(held_out, training.budget_tokens, np.random.default_rng(0)))
    rng = np.random.default_rng(training.seed)
    curve: list[CurvePoint] = []
    started = reported = time.monotonic()
    step = tokens = 0
    recent: list[Tensor] = []
    share = 0.0
    while share < 1:
        for batch in batches(train, training.budget_tokens, rng):
            share = (time.monotonic() - started) / (60 * training.minutes)
            optimizer.set_share(share)
            loss = batch_loss(model, batch, device)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), training.optim.max_grad_norm)
            optimizer.step()
            model.zero_grad(set_to_none=False)
            recent.append(loss.detach())
            step, tokens = step + 1, tokens + sum(len(s) for s in batch)
            if time.monotonic() - reported > training.report_every_s or share >= 1:
                curve.append(_point(model, recent, held_out_batches, device, (step, tokens, started)))
                recent, reported = [], time.monotonic()
                print(curve[-1], flush=True)
            if share >= 1:
                break
    return curve


def batches(sequences: list[np.ndarray], budget_tokens: int, rng: np.random.Generator) -> Iterator[list[np.ndarray]]:
    """One shuffled pass; sequences of like length share a batch of at most `budget_tokens` padded tokens."""
    order = rng.permutation(len(sequences))
    found: list[list[np.ndarray]] = []
    for pool in np.array_split(order, max(1, len(order) // 2048)):
        held: list[np.ndarray] = []
        for i in sorted(pool, key=lambda i: len(sequences[i])):
            if held and len(sequences[i]) * (len(held) + 1) > budget_tokens:
                found.append(held)
                held = []
            held.append(sequences[i])
        found.append(held)
    for i in rng.permutation(len(found)):
        yield found[i]


def batch_loss(model: Qwen3ForCausalLM, batch: list[np.ndarray], device: torch.device) -> Tensor:
    """Mean next-token loss over the real tokens of a right-padded batch; no mask is needed under causal attention."""
    tokens_BT = torch.nn.utils.rnn.pad_sequence(
        [torch.from_numpy(s.astype(np.int64)) for s in batch], batch_first=True, padding_value=-100
    ).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        logits_BTV = model(tokens_BT.clamp(min=PAD_ID), use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), tokens_BT[:, 1:].flatten())


@torch.no_grad()
def _point(
    model: Qwen3ForCausalLM,
    recent: list[Tensor],
    held_out: list[list[np.ndarray]],
    device: torch.device,
    done: tuple[int, int, float],
) -> CurvePoint:
    model.eval()
    weights = [sum(len(s) - 1 for s in batch) for batch in held_out]
    losses = [float(batch_loss(model, batch, device)) for batch in held_out]
    model.train()
    step, tokens, started = done
    return CurvePoint(
        step=step,
        minutes=round((time.monotonic() - started) / 60, 2),
        tokens=tokens,
        train_loss=round(float(torch.stack(recent).mean()), 4),
        held_out_loss=round(float(np.average(losses, weights=weights)), 4),
    )
