"""flex_attention over packed rows: its mask square by square against the dense one, and the drafter under it against
the groups and the dense oracle. torch refuses the kernel's backward on a CPU, so gradients go through its own dense
reading of the same mask, and only measuring is compiled for real."""

import shutil
import threading
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from dflash_exp.drafter.flex import SQUARE, Flex, PaddedShape, block_mask, compiled_flex, padded_shape
from dflash_exp.drafter.layout import locate_anchors
from dflash_exp.drafter.model import AttentionKind, Drafter
from dflash_exp.drafter.passes import GroupedPasses, PackedPasses, n_compiled

LENGTHS = [9, 23, 40, 17, 4, 31, 5, 61]
CASES = [
    ([300], 30, 8),
    ([130, 7, 400, 128, 256, 1], 70, 16),
    ([50] * 9, 40, 10),
    ([700], 60, 3),
    ([260, 40], 5, 200),
    ([200, 300], [127, 128, 129, 200, 255, 256, 384], 200),
]
"""Documents, how many anchors or where, block size: K that divides 128 and not, K beyond 128; anchors at the first
token of a document and around the edges of squares."""


@pytest.fixture
def backward_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's flex in eager mode is dense arithmetic that has a backward; only a check keeps it from running."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)


def dense(q, k, v, mask):
    """The same scores from the mask's own rule, evaluated everywhere."""
    seen = create_mask(mask.mask_mod, None, None, q.shape[2], k.shape[2], device="cpu")
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=1.0, enable_gqa=True)


def eager(q, k, v, mask):
    """torch's flex, not compiled."""
    out = torch_flex.flex_attention(q, k, v, block_mask=mask, scale=1.0, enable_gqa=True)
    assert isinstance(out, torch.Tensor)
    return out


def shape_of(documents: list[int], anchors: int | list[int], size: int) -> PaddedShape:
    return padded_shape(sum(documents), anchors if isinstance(anchors, int) else len(anchors), size)


def bounds_of(documents: list[int], anchors: int | list[int], shape: PaddedShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Begin and end of the contexts of these anchors, or of so many random ones, sorted, padded."""
    draw = torch.Generator().manual_seed(len(documents))
    starts = [sum(documents[:i]) for i in range(len(documents))]
    if isinstance(anchors, int):
        places = torch.randperm(sum(documents), generator=draw)[:anchors].sort().values.tolist()
    else:
        places = anchors
    begin = [max(start for start in starts if start <= place) for place in places]
    bounds = torch.zeros(2, shape.anchors, dtype=torch.int32)
    bounds[:, : len(places)] = torch.tensor([begin, places])
    return bounds[0], bounds[1]


def passes_for(drafter: Drafter, most_tokens: int, slots: int, flex: Flex) -> PackedPasses:
    size = drafter.shape.block_size
    return PackedPasses(slots, padded_shape(most_tokens, min(slots // size, most_tokens), size), flex)


def gradient(kit, drafter, features, passes):
    sums = kit.step_of(drafter, passes=passes).accumulate(features)
    return sums, kit.gradients_of(drafter)


@pytest.mark.parametrize(("documents", "anchors", "size"), CASES)
def test_a_slot_sees_its_documents_tokens_before_the_anchor_and_its_own_block(documents, anchors, size):
    shape = shape_of(documents, anchors, size)
    mask = block_mask(*bounds_of(documents, anchors, shape), shape)
    begin_A, end_A = bounds_of(documents, anchors, shape)
    expected = torch.zeros(shape.slots, shape.context + shape.slots, dtype=torch.bool)
    for slot in range(shape.slots):
        anchor = slot // size
        expected[slot, begin_A[anchor] : end_A[anchor]] = True
        expected[slot, shape.context + anchor * size : shape.context + (anchor + 1) * size] = True
    assert torch.equal(create_mask(mask.mask_mod, None, None, *expected.shape, device="cpu")[0, 0], expected)


@pytest.mark.parametrize(("documents", "anchors", "size"), CASES)
def test_squares_are_empty_partial_or_full_exactly_as_the_dense_mask_is(documents, anchors, size):
    shape = shape_of(documents, anchors, size)
    ours = block_mask(*bounds_of(documents, anchors, shape), shape)
    seen = create_mask(ours.mask_mod, None, None, shape.slots, shape.context + shape.slots, device="cpu")[0, 0]
    squares = seen.unflatten(0, (-1, SQUARE)).unflatten(2, (-1, SQUARE)).sum((1, 3))
    n_context = shape.context // SQUARE
    full = squares == SQUARE**2
    full[:, n_context:] = False  # a block's own slots are never counted as full, which only a block of 128 could be
    assert torch.equal(listed(ours.kv_num_blocks, ours.kv_indices), (squares > 0) & ~full)
    assert ours.full_kv_num_blocks is not None and ours.full_kv_indices is not None
    assert torch.equal(listed(ours.full_kv_num_blocks, ours.full_kv_indices), full)
    # the transposed lists, which the backward goes by
    assert ours.q_num_blocks is not None and ours.q_indices is not None
    assert torch.equal(listed(ours.q_num_blocks, ours.q_indices), ((squares > 0) & ~full).T)


def listed(counts, indices) -> torch.Tensor:
    """bool [rows, squares] from a `BlockMask`'s lists."""
    there = torch.zeros(indices.shape[2:], dtype=torch.bool)
    for row, count in enumerate(counts[0, 0].tolist()):
        there[row, indices[0, 0, row, :count].long()] = True
    return there


def test_the_mask_is_the_one_that_torch_makes_by_evaluating_every_score():
    documents, anchors, size = CASES[1]
    shape = shape_of(documents, anchors, size)
    ours = block_mask(*bounds_of(documents, anchors, shape), shape)
    theirs = create_block_mask(ours.mask_mod, None, None, shape.slots, shape.context + shape.slots, device="cpu")
    assert ours.shape == theirs.shape and ours.sparsity() == theirs.sparsity()
    assert torch.equal(ours.to_dense(), theirs.to_dense())


def test_the_mask_is_made_on_the_device_of_the_anchors_and_asks_nothing_of_it():
    """On `meta` there is nothing to ask: whatever would wait for a device raises."""
    shape = padded_shape(1000, 70, 16)
    bounds = torch.zeros(2, shape.anchors, dtype=torch.int32, device="meta")
    mask = block_mask(bounds[0], bounds[1], shape)
    assert {tensor.device.type for tensor in mask.as_tuple() if isinstance(tensor, torch.Tensor)} == {"meta"}


def test_most_scores_of_a_batch_of_several_documents_are_skipped():
    shape = padded_shape(8192, 512, 16)
    mask = block_mask(*bounds_of([1024] * 8, 512, shape), shape)
    assert mask.sparsity() > 90  # percent; a block sees 1/16 of the context on average, and a square of slots


@pytest.mark.parametrize("flex", [dense, eager])
@pytest.mark.parametrize(("n_layers", "slots"), [(1, 800), (3, 800), (2, 72)])
def test_the_drafters_gradient_is_that_of_the_groups(kit, backward_on_a_cpu, n_layers, slots, flex):
    drafter = kit.drafter(replace(kit.shape, n_layers=n_layers))
    features = kit.batch_of([kit.sequence(row, n) for row, n in enumerate(LENGTHS)], padding=3)
    expected_sums, expected = gradient(kit, drafter, features, GroupedPasses(10_000))
    sums, ours = gradient(kit, drafter, features, passes_for(drafter, 200, slots, flex))
    assert float(sums.loss) == pytest.approx(float(expected_sums.loss), rel=1e-12)
    assert (int(sums.correct), int(sums.accepted)) == (int(expected_sums.correct), int(expected_sums.accepted))
    assert kit.relative_difference(ours, expected) < 1e-12


@pytest.mark.parametrize("size", [3, 10])
def test_a_block_size_that_does_not_divide_128_gives_the_same_gradient(kit, backward_on_a_cpu, size):
    drafter = kit.drafter(replace(kit.shape, block_size=size))
    features = kit.batch_of([kit.sequence(row, n) for row, n in enumerate(LENGTHS)])
    _, expected = gradient(kit, drafter, features, GroupedPasses(10_000))
    _, ours = gradient(kit, drafter, features, passes_for(drafter, 200, 1_000, eager))
    assert kit.relative_difference(ours, expected) < 1e-12


def test_hidden_states_are_those_of_the_dense_oracle(kit):
    drafter = kit.drafter()
    features = kit.batch_of([kit.sequence(row, n) for row, n in enumerate(LENGTHS)])
    anchors, passes = locate_anchors(features.batch, kit.shape.block_size), passes_for(drafter, 200, 800, dense)
    blocks = passes.layout(drafter, anchors, 0, len(anchors.position_A))
    hidden = drafter(passes.context(drafter, features, anchors), blocks)
    torch.testing.assert_close(hidden, kit.dense_hidden(drafter, features), atol=1e-11, rtol=0)


def test_what_each_sequence_costs_is_measured_alike(kit):
    drafter = kit.drafter()
    features = kit.batch_of([kit.sequence(row, n) for row, n in enumerate((30, 4, 21))])  # the second has no anchor
    with torch.no_grad():
        expected = kit.step_of(drafter).measure_each(features)
        ours = kit.step_of(drafter, passes=passes_for(drafter, 60, 24, eager)).measure_each(features)
    assert [float(own.loss) for own in ours] == pytest.approx([float(own.loss) for own in expected], rel=1e-12)


@pytest.mark.parametrize(
    ("dtype", "loss_within", "gradient_within"), [(torch.float32, 2e-6, 1e-6), (torch.bfloat16, 5e-3, 0.05)]
)
def test_the_golden_step_holds_under_flex(kit, golden, backward_on_a_cpu, dtype, loss_within, gradient_within):
    of = golden.drafter
    drafter = Drafter(of.shape, of.embed_VH.to(dtype), of.head_VH.to(dtype))
    drafter.load_state_dict(of.state_dict())
    sums, ours = gradient(kit, drafter, golden.features, passes_for(drafter, 48, 64, eager))
    assert abs(float(sums.loss) / sums.weight - float(golden.expected["loss"])) < loss_within
    for name, expected in golden.expected.items():
        if name.startswith("grad."):
            apart = ours[f"{name.removeprefix('grad.')}.weight"] / sums.weight - expected
            assert float(apart.norm() / expected.norm()) < gradient_within, name


def test_a_run_compiles_twice_whatever_its_batches_hold(kit, backward_on_a_cpu):
    drafter = kit.drafter()
    passes = passes_for(drafter, 200, 96, compiled_flex("aot_eager"))
    assert passes.compile(drafter) == 2  # with gradients and without
    before, step = n_compiled(), kit.step_of(drafter, passes=passes)
    for lengths in ([40], LENGTHS, [4, 70, 6], [12] * 7):
        features = kit.batch_of([kit.sequence(row, n) for row, n in enumerate(lengths)])
        step.accumulate(features)
        step.measure(features)
    threads = torch.get_num_threads()
    loop = threading.Thread(target=lambda: (torch.set_num_threads(threads), step.accumulate(features)))
    loop.start()
    loop.join()
    assert n_compiled() == before


def test_runs_of_one_process_do_not_use_up_one_anothers_compilations(kit, backward_on_a_cpu):
    limit = torch._dynamo.config.recompile_limit
    for n in range(limit // 2 + 1):
        drafter = kit.drafter()
        assert passes_for(drafter, 128 * (n + 1), 96, compiled_flex("eager")).compile(drafter) == 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_compiled_kernel_measures_as_the_groups_do(kit, golden):
    """In fp32; of float64 torch compiles none for a CPU."""
    before = n_compiled()
    step = kit.step_of(golden.drafter, passes=passes_for(golden.drafter, 48, 64, compiled_flex()))
    sums, expected = step.measure(golden.features), kit.step_of(golden.drafter).measure(golden.features)
    assert float(sums.loss) == pytest.approx(float(expected.loss), rel=1e-6)
    assert (int(sums.correct), int(sums.accepted)) == (int(expected.correct), int(expected.accepted))
    assert n_compiled() == before + 1


def test_auto_is_flex_on_cuda_where_the_kernel_takes_the_heads_and_grouped_elsewhere():
    assert AttentionKind.auto.on("cuda", 128) is AttentionKind.flex
    assert AttentionKind.auto.on("cuda", 8) is AttentionKind.grouped
    assert AttentionKind.auto.on("cpu", 128) is AttentionKind.grouped
    assert AttentionKind.grouped.on("cuda", 128) is AttentionKind.grouped
    assert AttentionKind.flex.on("cuda", 16) is AttentionKind.flex


@pytest.mark.parametrize(("device", "head_dim"), [("cpu", 128), ("cuda", 8)])
def test_flex_where_it_cannot_be_is_refused_in_one_line(device, head_dim):
    with pytest.raises(
        ValueError, match=rf"^drafter\.attention=flex must have .*got {device} and {head_dim}: .*=auto$"
    ):
        AttentionKind.flex.on(device, head_dim)


def test_shapes_are_padded_to_whole_squares():
    assert padded_shape(1000, 30, 10) == PaddedShape(1024, 384, 10)
    assert padded_shape(1024, 8, 16) == PaddedShape(1024, 128, 16)
    assert (PaddedShape(128, 384, 10).anchors, PaddedShape(128, 128, 16).anchors) == (39, 8)
