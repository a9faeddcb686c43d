"""The script for a GPU runs to its end on a CPU, so that it is whole on the day there is a GPU."""

import json

import pytest
import torch

from tests.gpu.check import main


def figures_of(printed: str) -> dict[tuple[str, str], float]:
    """Values of the last line's JSON, by group and what they are of."""
    (line,) = (line for line in printed.splitlines() if line.startswith("{"))
    return {(figure["group"][:4], figure["what"]): figure["value"] for figure in json.loads(line)["figures"]}


def test_the_dry_check_finds_golden_parity_and_the_same_losses_overlapped_repeated_and_in_lockstep(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--dry"]) == 0
    figures = figures_of(capsys.readouterr().out)
    assert figures["gold", "bf16: worst gradient, cosine"] > 0.999
    assert figures["atte", "flex against grouped, gradient"] < 1e-5
    assert figures["line", "run-to-run spread of loss, worst step"] == 0.0
    assert figures["line", "overlapped against lockstep, worst step"] == 0.0
    assert figures["line", "overlapped"] > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_check_holds_on_a_gpu() -> None:
    assert main([]) == 0
