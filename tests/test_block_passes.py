"""A run's attention: chosen, compiled before the first step, and the same results; the path of CUDA, dry on a CPU."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch.nn.attention import flex_attention as torch_flex

from dflash_exp import block_passes
from dflash_exp.block_passes import AttentionMade, compiled, most_tokens
from dflash_exp.cli import main
from dflash_exp.drafter.flex import compiled_flex, padded_shape
from dflash_exp.drafter.model import AttentionKind
from dflash_exp.drafter.passes import PackedPasses, n_compiled
from dflash_exp.plan.batches import FixedSize, TokenBudget
from dflash_exp.telemetry.sinks import read_records
from tests.tiny_drafter import drafter_of
from tests.world import World, make_world

SHORT = ("evaluate=false", "probe.prompts=0")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def attention_in(run_dir: Path) -> dict[str, object]:
    return json.loads((run_dir / "environment.json").read_text())["attention"]


def test_a_run_under_flex_has_the_losses_of_the_groups_and_compiles_nothing_after_its_first_line(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grouped = world.train("grouped", *SHORT)
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)  # which refuses a backward that is there
    monkeypatch.setattr(AttentionKind, "on", lambda *_: AttentionKind.flex)
    monkeypatch.setattr(block_passes, "compiled_flex", lambda: compiled_flex("eager"))
    before = n_compiled()
    capsys.readouterr()
    flex = world.train("flex", *SHORT)
    assert n_compiled() == before + 2
    assert "flex attention compiled 2 times in " in " ".join(capsys.readouterr().out.split())
    assert attention_in(flex)["compilations"] == 2 and attention_in(flex)["kind"] == "flex"
    assert attention_in(grouped) == {"kind": "grouped", "compilations": 0, "compile_s": 0.0}
    for name in ("train/loss", "train/grad_norm", "probe/loss"):
        ours, theirs = (
            [record[name] for record in read_records(run / "metrics.jsonl") if name in record]
            for run in (flex, grouped)
        )
        assert len(ours) == len(theirs) > 0
        np.testing.assert_allclose(ours, theirs, rtol=2e-5)


def test_flex_on_a_cpu_is_refused_before_anything_is_begun(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "refused"
    assert main(["train", *world.overrides("x", "drafter.attention=flex"), f"run_dir={run_dir}"]) == 2
    assert "drafter.attention=flex must have a CUDA device" in capsys.readouterr().err and not run_dir.exists()


def test_a_run_that_is_older_than_the_choice_goes_on_as_it_began(world: World) -> None:
    run_dir = world.train("older", *SHORT, "drafter.attention=grouped", "drafter.compute_dtype=float32")
    path = run_dir / "config.yaml"
    config = yaml.safe_load(path.read_text())
    del config["drafter"]["attention"], config["drafter"]["compute_dtype"]
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    (run_dir / "result.json").unlink()
    assert main(["resume", str(run_dir)]) == 0
    assert json.loads((run_dir / "result.json").read_text())["status"] == "finished"


def test_a_batch_holds_its_budget_or_so_many_of_the_longest() -> None:
    trained, held_out = np.array([5, 7]), np.array([30])
    assert most_tokens(TokenBudget(2048, pool=0, max_sequences=9, frozen=False), trained, held_out) == 2048
    assert most_tokens(FixedSize(6, pool=0, frozen=False), trained, held_out) == 180


def test_what_fails_to_compile_says_what_does_without() -> None:
    def no_compiler(*_: object) -> torch.Tensor:
        raise RuntimeError("no compiler")

    drafter = drafter_of()
    with pytest.raises(RuntimeError) as caught:
        compiled(PackedPasses(64, padded_shape(64, 8, 4), no_compiler), drafter, threads=None)
    assert caught.value.__notes__ == ["drafter.attention=grouped needs no compiler"]


def test_a_first_line_says_nothing_of_what_was_not_compiled() -> None:
    assert AttentionMade("grouped", 0, 0.0).shown() == ""
    assert AttentionMade("flex", 2, 31.4).shown() == ", flex attention compiled 2 times in 31 s"
