"""The figures of `bench step`: which there are, and the values of those that no clock decides."""

import json
from pathlib import Path

import pytest
import torch

from dflash_exp.bench.step import Growth, dimensions, new_step, operations, resized, show_step, size_figures
from dflash_exp.bench.step_made import Size
from dflash_exp.bench.step_parts import ATTENTION, HEAD, MLP, NORMS, PROJECTIONS, recorded, step_parts
from dflash_exp.cli import main

CPU = torch.device("cpu")
TINY = Size("tiny", (64, 40), 4, 4, 4.0, 32)


def test_a_step_of_parts_and_its_growth_are_figures_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_exp.bench.step.SQUARE", 32)
    assert show_step(2, as_json=True, plot=tmp_path / "growth.svg", sizes=[TINY]) == 0
    found = json.loads(capsys.readouterr().out)["figures"]
    shares = {one["what"]: one["value"] for one in found if one["unit"] == "share"}
    assert sum(shares.values()) == pytest.approx(1) and len(shares) == 8
    assert [one["what"] for one in found if one["unit"] == ""] == [
        "tokens 32 .. 256", "anchors 2 .. 16", "vocabulary 16 .. 128", "layers 1 .. 8",
    ]  # fmt: skip
    assert "tokens: exponent" in (tmp_path / "growth.svg").read_text()


def test_the_exponent_is_that_of_the_power_law() -> None:
    assert Growth("x", (1, 2, 4, 8), (3.0, 12.0, 48.0, 192.0)).exponent == pytest.approx(2)
    assert Growth("x", (1, 2, 4), (5.0, 5.0, 5.0)).exponent == pytest.approx(0)


def test_a_dimension_is_changed_alone() -> None:
    assert resized(TINY, "tokens", 128).lengths == (128, 80)
    changed = [resized(TINY, what, values[-1]) for what, values in dimensions(TINY).items()]
    assert [(one.anchors, one.vocabulary, one.n_layers) for one in changed] == [
        (4, 32, 2), (16, 32, 2), (4, 128, 2), (4, 32, 8),
    ]  # fmt: skip


def test_the_operations_are_those_of_the_products_worked_out_by_hand() -> None:
    step, features = new_step(TINY, CPU)
    hidden, inner, kv, n_anchors, size, vocabulary = 192, 512, 96, 8, 4, 32
    context = 2 * int(features.batch.anchor_position_A.max())  # both sequences' in a rectangle
    fc = context * 2 * hidden * hidden * 2  # its input wants no gradient: forward, and the weight's
    keys_values = 2 * context * hidden * 2 * kv * 3
    first = (n_anchors + 1) * hidden * (hidden + 2 * kv) * 3
    last = n_anchors * (size - 1) * hidden * hidden * 3 + n_anchors * size * hidden * 2 * kv * 3
    outputs = (n_anchors * size + n_anchors * (size - 1)) * hidden * hidden * 3
    mlp = (n_anchors * size + n_anchors * (size - 1)) * hidden * inner * 3 * 3
    head = n_anchors * (size - 1) * hidden * vocabulary * 2
    by_hand = 2 * (fc + keys_values + first + last + outputs + mlp + head)
    attention = operations(step, features) - by_hand
    least = 2 * n_anchors * (2 * size - 1) * hidden * size * (2 + 4 + 1) // 2  # the blocks alone
    assert least < attention < 0.2 * by_hand


def test_every_module_of_a_step_is_in_one_part_and_the_step_is_left_as_it_was() -> None:
    step, features = new_step(TINY, CPU)
    passes, before = step.passes, [parameter.clone() for parameter in step.drafter.parameters()]
    with recorded(step) as recorder:
        step.accumulate(features)
    step.discard()
    assert step.passes is passes and not any(m._forward_pre_hooks for m in step.drafter.modules())
    counted = {part: len(calls) for part, calls in recorder.calls.items()}
    # a layer: q, k, v, o of the block, k, v of the context; norms of q, k, k; two in front; three of the drafter
    assert counted == {ATTENTION: 2, MLP: 2, PROJECTIONS: 2 * 6 + 1, NORMS: 2 * 5 + 2}
    parts = step_parts(step, features)
    assert list(parts)[:5] == [ATTENTION, MLP, PROJECTIONS, NORMS, HEAD]
    assert all(torch.equal(a, b) for a, b in zip(step.drafter.parameters(), before, strict=True))


def test_a_size_s_figures_are_of_this_device_and_positive() -> None:
    figures = {one.what: one.value for one in size_figures(TINY, 1, CPU)}
    assert figures["a step"] > 0 and figures["its products, operations"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench", "step", "--plot", "growth.doc"], "--plot must be a .png or .svg file"),
        (["bench", "step", "--plot", "nowhere/growth.png"], "in a folder that is there, got nowhere/growth.png"),
        (["bench", "line", "--plot", "growth.png"], "--plot must go with bench step, got it with bench line"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
