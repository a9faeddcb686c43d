"""What a step computes and moves, and how long the machine would take for that at its own best.

In: a step's size. Out: operations of its matrix products, two a multiply-add, without any that a mask throws away;
bytes that must cross memory once; the rates of a large product and of a large copy, measured; and the limit that
follows: the larger of the two times.
"""

from __future__ import annotations

import torch

from dflash_exp.bench.figures import Figure, median_seconds
from dflash_exp.bench.made_up_step import Given

PRODUCT, COPY = 1536, 2**25
"""Side of the large product, and numbers of the large copy."""
ROUNDS = 9


def roofline(on: Given, step_s: float) -> list[Figure]:
    """The limit of a step that took `step_s`, and how many times that it takes."""
    operations, moved = step_operations(on), step_bytes(on)
    rate, bandwidth = product_rate(), copy_rate()
    limit_s = max(operations / rate, moved / bandwidth)
    return [
        Figure("its limit", "operations", operations / 1e9, "GFLOP", None),
        Figure("its limit", "bytes", moved / 1e9, "GB", None),
        Figure("its limit", f"a product of {PRODUCT} x {PRODUCT}", rate / 1e9, "GFLOP/s", None),
        Figure("its limit", "a large copy, read and written", bandwidth / 1e9, "GB/s", None),
        Figure("its limit", "a step at these rates", 1e3 * limit_s, "ms", None),
        Figure("its limit", "a step takes so many times that", step_s / limit_s, "", None),
    ]


def step_operations(on: Given) -> float:
    """Of the products forward and backward; what depends on the anchors' places is counted for these."""
    shape, position_A = on.drafter.shape, on.features.batch.anchor_position_A
    hidden, queries, keys = shape.hidden_size, shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    n_anchors, size = len(position_A), shape.block_size
    context = sum(int(row.max()) for row in on.anchors_BA)
    total = 2 * context * len(shape.target_layer_ids) * hidden**2  # fc, whose input has no gradient
    total += shape.n_layers * 3 * context * hidden * 2 * keys
    for layer in range(shape.n_layers):
        slots = n_anchors * (size - (layer == shape.n_layers - 1))  # slot 0 of the last layer is key and value only
        known = n_anchors + 1 if layer == 0 else n_anchors * size
        total += 3 * hidden * (min(slots, known) * queries + known * 2 * keys + slots * queries)
        total += 6 * queries * slots / n_anchors * (float(position_A.sum()) + n_anchors * size)
        total += 3 * slots * 3 * hidden * shape.intermediate_size
    total += 2 * n_anchors * (size - 1) * hidden * shape.vocab_size  # the head is frozen
    return 2.0 * total


def step_bytes(on: Given) -> float:
    """Weights, their gradients and AdamW's two moments, each read and written; hidden states and the tables' used rows
    read; every layer's input written and read again. Whatever else a step keeps could be computed anew."""
    shape = on.drafter.shape
    parameters = sum(parameter.numel() for parameter in on.drafter.parameters())
    slots = len(on.features.batch.anchor_position_A) * shape.block_size
    activations = 2 * shape.n_layers * slots * shape.hidden_size
    return 4.0 * (8 * parameters + on.features.features_PF.numel() + on.drafter.head_VH.numel() + activations)


def product_rate() -> float:
    """FLOP/s."""
    a, b = torch.randn(2, PRODUCT, PRODUCT)
    return 2 * PRODUCT**3 / median_seconds([lambda: a @ b], ROUNDS)[0]


def copy_rate() -> float:
    """Bytes/s, those read and those written."""
    a, b = torch.zeros(2, COPY)
    return 8 * COPY / median_seconds([lambda: a.copy_(b)], ROUNDS)[0]
