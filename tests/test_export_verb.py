"""The verb export: what an engine would load is the trained drafter, and its card says what the run has, no more."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from dflash_exp import exporting
from dflash_exp.cli import main
from dflash_exp.drafter.model import Drafter
from dflash_exp.export import find_drafter, write_drafter
from dflash_exp.published import load_weights, read_shape
from tests.tiny_drafter import block_logits
from tests.world import World, make_world
from tests.z_lab import from_pretrained

SHORT = ("epochs=null", "steps=2", "prompts.limit=2", "probe.prompts=0", "checkpoint.every_steps=1")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def run_dir(world: World) -> Path:
    return world.train("run", *SHORT)


@pytest.fixture(scope="module")
def exported(world: World, run_dir: Path) -> Path:
    assert main(["export", str(run_dir), str(world.root / "out" / "drafter")]) == 0
    return world.root / "out" / "drafter"


def test_an_export_is_three_files_with_the_newest_checkpoint_s_weights(run_dir: Path, exported: Path) -> None:
    assert sorted(path.name for path in exported.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    checkpoint = load_file(find_drafter(run_dir, None) / "model.safetensors")
    state = load_file(exported / "model.safetensors")
    assert state.keys() == checkpoint.keys() and all(torch.equal(state[name], checkpoint[name]) for name in state)


def test_z_lab_s_loader_drafts_what_the_trained_drafter_drafts(world: World, run_dir: Path, exported: Path) -> None:
    target: PreTrainedModel = AutoModelForCausalLM.from_pretrained(world.root / "target").eval()
    table_VH = target.get_input_embeddings().get_parameter("weight").detach()
    tokens, theirs = torch.arange(7, 20), from_pretrained(exported)
    with torch.no_grad():
        hidden_states = target(tokens[None, :-1], output_hidden_states=True).hidden_states
    features_TF = theirs.context_feature(hidden_states)
    block = torch.tensor([int(tokens[-1]), *[theirs.config["dflash_config"]["mask_token_id"]] * 3])
    their_logits = theirs.forward(features_TF, table_VH[block])[1:] @ table_VH.T
    trained = find_drafter(run_dir, None)
    ours = Drafter(read_shape(trained), table_VH, table_VH)
    load_weights(ours, trained)
    our_logits = block_logits(ours, features_TF, int(tokens[-1]))
    assert torch.allclose(their_logits, our_logits, atol=1e-5) and our_logits.std() > 0.01
    assert torch.equal(their_logits.argmax(-1), our_logits.argmax(-1))


def test_transformers_reads_the_configuration_as_the_engines_do(exported: Path) -> None:
    told = Qwen3Config.from_pretrained(exported).to_dict()
    stated = json.loads((exported / "config.json").read_text())
    assert told["rope_parameters"]["rope_theta"] == stated["rope_theta"]
    assert told["dflash_config"] == stated["dflash_config"] and stated["dflash_config"]["target_layer_ids"] == [0, 2]
    assert (told["block_size"], told["num_target_layers"], told["tie_word_embeddings"]) == (4, 4, False)
    assert "sample_from_anchor" not in stated and "draft_vocab_size" not in stated


def test_the_card_says_what_the_run_has_of_these_weights(run_dir: Path, exported: Path) -> None:
    card = (exported / "README.md").read_text()
    evaluation = json.loads((run_dir / "evaluation.json").read_text())
    row = next(line for line in card.splitlines() if line.startswith("| evaluation.json"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:5] == ["2", str(evaluation["tokens"]), "0", f"{evaluation['tau_pooled']:.2f}"]
    assert cells[8] == "2/2"
    assert "taps layers [0, 2] of the target's 4, counted from 0: entries [1, 3] of" in card
    assert '"num_speculative_tokens": 3' in card and "--speculative-num-draft-tokens 4" in card
    assert "24 conversations" in card and "at its optimizer step 2; it finished after step 2" in card
    assert "base_model" not in card, "a directory of this machine is no model of the hub"


def test_an_older_checkpoint_s_card_has_no_figures_of_the_newest(world: World, run_dir: Path) -> None:
    out = world.root / "older"
    assert main(["export", str(run_dir), str(out), "--checkpoint", "step-00000001"]) == 0
    card = (out / "README.md").read_text()
    assert "Nothing was decoded with these weights (`step-00000001`)" in card and "| evaluation" not in card
    assert "at its optimizer step 1; it finished after step 2" in card and "held-out loss" not in card


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["export", *arguments]) == 2
    return capsys.readouterr().err


def test_what_cannot_be_exported_is_one_line_and_nothing_is_written(
    world: World, run_dir: Path, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "OUT must not be there yet" in refused(capsys, str(run_dir), str(exported))
    out = world.root / "never"
    assert "RUN must be a run's directory" in refused(capsys, str(exported), str(out))
    assert "--checkpoint must be one of" in refused(capsys, str(run_dir), str(out), "--checkpoint", "step-9")
    assert not out.exists()


@pytest.mark.parametrize("spoilt", ["norm.weight", "fc.weight"])
def test_what_is_not_read_back_as_it_was_written_is_not_there(
    world: World, run_dir: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    def writes_badly(folder: Path, state: dict[str, torch.Tensor], config: dict[str, object]) -> None:
        write_drafter(folder, state | {spoilt: state[spoilt] + 1e-6}, config)

    monkeypatch.setattr(exporting, "write_drafter", writes_badly)
    with pytest.raises(RuntimeError, match="read back as another drafter"):
        main(["export", str(run_dir), str(world.root / "spoilt")])
    assert not (world.root / "spoilt").exists() and not list(world.root.glob(".spoilt*"))
