"""The verb evaluate decodes with a run, its export and speculators' layout alike, and shows thinking off and on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3Config

from dflash_exp.cli import main
from dflash_exp.drafter.session import DraftSession
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.export import drafter_state, layout_config, write_drafter
from tests.test_prompt_files import NO_THOUGHT
from tests.tiny_drafter import drafter_of
from tests.world import World, make_world

SAME = ("tau_pooled", "tau_macro", "accepted_at", "prompts", "tokens", "lossless")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = make_world(tmp_path_factory.mktemp("world"))
    rows = [{"question": "return a + b", "answer": "b"}, {"turns": ["class Point:", "print(x)"]}]
    (world.root / "prompts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return world


@pytest.fixture(scope="module")
def run_dir(world: World) -> Path:
    """A run from a drafter whose weights are so large that its drafts are not all one token."""
    shape = DrafterShape(32, 48, 4, 2, 8, 1, 4, 288, 1, (0, 2), 1e4, 1e-6, n_target_layers=4)
    state = {name: 15 ** (w.ndim - 1) * w for name, w in drafter_state(drafter_of(shape)).items()}
    (world.root / "first").mkdir()
    write_drafter(world.root / "first", state, layout_config(shape, 256))
    short = ("epochs=null", "steps=1", "evaluate=false", "probe.every_steps=0", "probe.prompts=0")
    return world.train("run", *short, "target.dtype=float32", f"drafter.init_from={world.root / 'first'}")


def evaluated(world: World, path: Path, *more: str) -> dict[str, Any]:
    prompts = ["--prompts", str(world.root / "prompts.jsonl"), "--max-new-tokens", "12"]
    assert main(["evaluate", str(path), *prompts, *more]) == 0
    return json.loads((path / "evaluation.json").read_text())


def as_speculators_has_it(exported: Path, folder: Path) -> Path:
    """The same drafter under speculators' configuration, with the target's tables beside it."""
    folder.mkdir()
    stated = json.loads((exported / "config.json").read_text())
    own = ("block_size", "num_target_layers", "dflash_config", "architectures", "is_causal", "rope_theta")
    layers = Qwen3Config(**{name: value for name, value in stated.items() if name not in own}).to_diff_dict()
    state = load_file(exported / "model.safetensors")
    told = {
        "speculators_model_type": "dflash", "block_size": stated["block_size"], "transformer_layer_config": layers,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in stated["dflash_config"]["target_layer_ids"]],
        "mask_token_id": stated["dflash_config"]["mask_token_id"], "draft_vocab_size": stated["vocab_size"],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(told))
    save_file(state | {"verifier_norm.weight": state["norm.weight"].clone()}, folder / "model.safetensors")
    return folder


def test_a_run_its_export_and_speculators_layout_draft_the_same(
    world: World, run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drafts: list[list[int]] = []
    propose = DraftSession.propose

    def noted(self: DraftSession, bonus: int) -> Tensor:
        drafts.append(propose(self, bonus).tolist())
        return torch.tensor(drafts[-1])

    monkeypatch.setattr(DraftSession, "propose", noted)
    exported, target = world.root / "exported", ("--target", str(world.root / "target"))
    assert main(["export", str(run_dir), str(exported)]) == 0
    converted = as_speculators_has_it(exported, world.root / "converted")
    of_run = evaluated(world, run_dir)
    assert "WARNING data not from the target: " in " ".join(capsys.readouterr().out.split())
    by_run = drafts.copy()
    assert len({tuple(draft) for draft in by_run}) > 5, "a drafter that says something"
    for other in (exported, converted):
        drafts.clear()
        figures = evaluated(world, other, *target)
        assert drafts == by_run and {name: figures[name] for name in SAME} == {name: of_run[name] for name in SAME}
    assert of_run["prompts"] == 2 and of_run["lossless"] == "2/2" and "thinking_on" not in of_run
    told, of_export = of_run["doctor"], figures["doctor"]
    assert told["tau_replayed"] == of_run["tau_pooled"] == told["tau_decoded"] == of_export["tau_decoded"]
    assert [one["cause"] for one in told["findings"]] == ["data not from the target"], "the store's tokens are random"
    assert of_export["tau_data"] is None and of_export["findings"] == [], "an export does not know its data"
    assert of_run["thinking"] is None and of_run["prompts_file"] == str(world.root / "prompts.jsonl")


def test_a_run_whose_store_is_elsewhere_decodes_a_file_s_prompts_all_the_same(
    world: World, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, elsewhere = world.root / "store", world.root / "elsewhere"
    there.rename(elsewhere)
    try:
        before = set(run_dir.glob("evaluation*"))
        prompts = ["--prompts", str(world.root / "prompts.jsonl"), "--max-new-tokens", "4"]
        assert main(["evaluate", str(run_dir), *prompts]) == 0
        (written,) = set(run_dir.glob("evaluation*")) - before
        doctor = json.loads(written.read_text())["doctor"]
        assert doctor["tau_data"] is None and doctor["tau_path"] is not None
        assert f"{there} is not here" in " ".join(capsys.readouterr().out.split())
    finally:
        elsewhere.rename(there)


def test_a_target_that_thinks_is_decoded_with_it_off_and_on(
    world: World, run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    target, one = world.root / "thinking", world.root / "for_thinking"
    shutil.copytree(world.root / "target", target)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(target)
    tokenizer.chat_template = str(tokenizer.chat_template) + NO_THOUGHT
    tokenizer.save_pretrained(target)
    assert main(["export", str(run_dir), str(one)]) == 0
    capsys.readouterr()
    found = evaluated(world, one, "--target", str(target))
    assert (found["thinking"], found["thinking_on"]["thinking"]) == (False, True)
    assert found["prompts"] == found["thinking_on"]["prompts"] == 2
    assert found["per_prompt"] != found["thinking_on"]["per_prompt"]
    shown = capsys.readouterr().out
    assert "thinking off: all" in shown and "thinking on: all" in shown
