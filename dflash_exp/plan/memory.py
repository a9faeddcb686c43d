"""Shapes and a plan's batches to the memory that a rank takes at its peak.

In: the sizes of target and drafter, what a batch holds, how much the line keeps under way. Out: bytes, term by term.
Nothing is measured or loaded. Against allocations measured on a CPU, with the embedded models, budgets of 2k and 8k
tokens and passes of 512 and 4096 slots, the drafter in fp32: weights and optimizer exact, the drafter's activations
9 % low to 15 % high, the target's within 4 % (`tests/test_memory.py` holds 25 %, for a drafter in bf16, too). What a
device's library keeps for itself comes on top.
"""

# N batches

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from dflash_exp.plan.cost import Sizes, Work

FLOAT_BYTES = 4
"""The drafter's weights, their gradients and the optimizer are kept in 32 bits, whatever it computes in."""
GROUP_ANCHORS = 12
"""Anchors of a sequence whose attention is computed at once (`drafter/attention.py`)."""
CHUNK_LOGITS, CHUNK_ROWS = 2**20, 128
"""Logits alive at once: so many, or so many rows of them where that is more (`drafter/loss.py`)."""


@dataclass(frozen=True)
class Models:
    """What is in memory, and in which formats."""

    sizes: Sizes
    """Of the target, and so of the drafter."""
    n_target_layers: int
    """All of them, also those above the deepest tap: they are loaded."""
    tied_embeddings: bool
    target_width: int
    """Bytes of a number of the target."""
    compute_width: int
    """Bytes of a number that the drafter computes with: an activation, its embedding and head."""
    shares_tables: bool
    """Whether the drafter computes in the target's own format, and so has embedding and head in common with it."""
    n_drafter_layers: int
    n_taps: int
    block_size: int
    slots_per_pass: int
    matrix_state_width: int
    """Bytes that the optimizer keeps for a number of a matrix: 4 (Muon), 8 (AdamW). Of a norm it keeps 8."""
    keeps_probabilities: bool
    """Whether attention keeps its probabilities for the backward: `grouped` does, `flex` keeps its keys instead."""


@dataclass(frozen=True)
class UnderWay:
    """What the line of one rank keeps at once."""

    batches: int
    """Batches whose features are under way, the one in training too."""
    features_bytes: int | None
    """The most that they may take; one batch passes whatever its size. None: no bound."""
    target_workers: int
    """Target forwards at once."""
    target_devices: int
    """Devices that hold the target alone; 0: it shares the drafter's."""
    layer_split: int
    """Of those, devices that a copy of the target is spread over."""

    @property
    def target_copies(self) -> int:
        """On devices of their own, else one."""
        return max(1, self.target_devices // self.layer_split)


@dataclass(frozen=True)
class PeakMemory:
    """Bytes of one rank."""

    target_weights: int
    drafter_weights: int
    gradients: int
    optimizer: int
    features: int
    target_activations: int
    drafter_activations: int

    def as_json(self, models: Models, line: UnderWay) -> dict[str, int]:
        """The terms by name, their `total`, and `largest_device`: what the fullest device of the rank holds.

        All forwards of a copy that is spread may be on the same of its devices.
        """
        terms = asdict(self)
        total = sum(terms.values())
        if line.target_devices == 0:
            return terms | {"total": total, "largest_device": total}
        beside = fullest_part(models, line.layer_split) + self.target_activations // line.target_copies
        own = total - self.target_weights - self.target_activations
        copies = (line.target_copies - 1) * self.target_weights
        return terms | {"total": total + copies, "largest_device": max(own, beside)}


def peak_memory(models: Models, work: Work, n_sequences: np.ndarray, line: UnderWay) -> PeakMemory:
    """The peak, for the work of each batch and its sequences int [N]; each term is that of its largest batch.

    H hidden, I intermediate, Q and M the widths of all query and of all key heads, V vocabulary, L layers, F taps:

        target_weights       width x (L_target layer + V H (2 V H where the head is not tied) + H),
                             layer = H (2 Q + 2 M + 3 I) and its norms
        drafter_weights      4 (L layer + F H^2 + 2 H), and compute width x V H (2 V H where the head is not tied) for
                             copies of embedding and head, unless the target beside it has them in that format
        gradients            4 x the drafter's parameters
        optimizer            4 (Muon) or 8 (AdamW) a parameter of a matrix, 8 of a norm
        features             width x F H tokens, of as many batches as may be under way within pipeline.features_bytes
        target_activations   width x padded tokens x (3 I + (F + 3) H), of each forward at once
        drafter_activations  the context's and one pass's: see `drafter_activations`
    """
    sizes, inner = models.sizes, models.n_drafter_layers * _matrices(models.sizes)
    matrices = inner + models.n_taps * sizes.hidden_size**2
    norms = models.n_drafter_layers * _norms(sizes) + 2 * sizes.hidden_size
    shares = models.shares_tables and line.target_devices == 0
    copies = 0 if shares else models.compute_width * _tables(models)
    wide = 3 * sizes.intermediate_size + (models.n_taps + 3) * sizes.hidden_size
    forward = models.target_width * int(work.padded_tokens.max()) * wide
    return PeakMemory(
        target_weights=target_weights(models),
        drafter_weights=FLOAT_BYTES * (matrices + norms) + copies,
        gradients=FLOAT_BYTES * (matrices + norms),
        optimizer=models.matrix_state_width * matrices + 8 * norms,
        features=features_under_way(models, int(work.tokens.max()), line),
        target_activations=line.target_workers * forward,
        drafter_activations=int(drafter_activations(models, work, n_sequences).max()),
    )


def target_weights(models: Models) -> int:
    """Bytes of the whole decoder, embedding and head; biases, and experts beyond one, are not known of."""
    return models.target_width * (models.n_target_layers * _layer(models.sizes) + _around(models))


def fullest_part(models: Models, layer_split: int) -> int:
    """Bytes of weights on the fullest of the devices that a copy of the target is spread over: the first, which has
    all but the layers and the fewer of those, or the last."""
    first = models.n_target_layers // layer_split * _layer(models.sizes) + _around(models)
    last = -(-models.n_target_layers // layer_split) * _layer(models.sizes)
    return models.target_width * max(first, last)


def features_under_way(models: Models, most_tokens: int, line: UnderWay) -> int:
    """Bytes of the features that may wait at once, no batch having more than `most_tokens` real tokens."""
    one = models.target_width * models.n_taps * models.sizes.hidden_size * most_tokens
    bound = one * line.batches if line.features_bytes is None else max(one, line.features_bytes)
    return min(one * line.batches, bound)


def drafter_activations(models: Models, work: Work, n_sequences: np.ndarray) -> np.ndarray:
    """Bytes at the peak of each batch's forward and backward, float64 [N]; in numbers of the compute width:

    Of every token of the rectangle F H (features), 2 H (fused context), 5 M a layer (keys, values, their gradients) and
    2 M. Of every slot of the largest pass, of which a batch has min(slots_per_pass, its own):

        kept       L (4 H + 4 Q + 3 M + 3 I) - (2 H + Q + M), for the first layer projects one mask token for all;
                   L heads (longest + 2 block_size) probabilities of attention, a block's with itself twice
        and then   the largest of: 3 I, in the MLP's backward; 4 H and up to 2^20 logits in all, or 128 rows of them
                   where that is more, at the head; 2 x one layer's probabilities of a group of 12 anchors less 3 I, in
                   attention's backward

    Attention also computes at places without an anchor, where one of a batch's sequences has fewer than another in the
    last of their groups: not counted, and the largest part where sequences have a few anchors each.

    Under flex attention nothing is gathered (no F H) and no probabilities are kept: instead 2 M of every token a layer,
    keys and values beside the slots', and their gradients with the queries' in the backward (counted, not measured).

    So a larger bucket changes the context and attention's span, `drafter.slots_per_pass` everything else. Where the
    drafter does not compute in fp32, every matrix is there once more, cast, and the context's gradients (2 M of its 5
    a layer) and logits are in fp32 all the same.
    """
    sizes, layers = models.sizes, models.n_drafter_layers
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    queries, keys = sizes.n_heads * sizes.head_dim, sizes.n_kv_heads * sizes.head_dim
    wider = FLOAT_BYTES / models.compute_width
    gathered = models.n_taps * hidden if models.keeps_probabilities else 0
    context = work.padded_tokens * (gathered + 2 * hidden + ((3 + 2 * wider) * layers + 2) * keys)
    a_pass = max(models.block_size, models.slots_per_pass // models.block_size * models.block_size)
    slots = np.minimum(work.slots, a_pass)
    longest = work.padded_tokens / n_sequences
    kept = slots * sizes.n_heads * (longest + 2 * models.block_size)
    per_slot = layers * (4 * hidden + 4 * queries + 3 * keys + 3 * inner) - (2 * hidden + queries + keys)
    group = np.minimum(1.0, GROUP_ANCHORS * models.block_size * n_sequences / np.maximum(work.slots, 1))
    at_head = slots * 4 * hidden + wider * np.minimum(
        slots * sizes.vocab_size, max(CHUNK_LOGITS, CHUNK_ROWS * sizes.vocab_size)
    )
    in_attention = 2 * group * kept - slots * 3 * inner
    if not models.keeps_probabilities:
        kept = 2 * keys * work.padded_tokens
        in_attention = kept + slots * (2 * keys + queries - 3 * inner)
    transient = np.maximum(np.maximum(slots * 3 * inner, at_head), in_attention)
    cast = 0 if wider == 1 else layers * _matrices(sizes) + models.n_taps * hidden**2
    return models.compute_width * (cast + context + slots * per_slot + layers * kept + transient)


def _tables(models: Models) -> int:
    """Numbers in embedding and head."""
    return (1 if models.tied_embeddings else 2) * models.sizes.vocab_size * models.sizes.hidden_size


def _around(models: Models) -> int:
    """Numbers in all of the target but its layers: embedding, head and final norm."""
    return _tables(models) + models.sizes.hidden_size


def _layer(sizes: Sizes) -> int:
    """Numbers in a layer."""
    return _matrices(sizes) + _norms(sizes)


def _matrices(sizes: Sizes) -> int:
    """Numbers in the matrices of a layer."""
    queries, keys = sizes.n_heads * sizes.head_dim, sizes.n_kv_heads * sizes.head_dim
    return sizes.hidden_size * (2 * queries + 2 * keys + 3 * sizes.intermediate_size)


def _norms(sizes: Sizes) -> int:
    """Numbers in the norms of a layer: Qwen3's four."""
    return 2 * sizes.hidden_size + 2 * sizes.head_dim
