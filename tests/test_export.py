"""A drafter on disk is what it was, bit for bit, in the published layout, whole or not there."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_exp.drafter.model import Drafter, parameter_names
from dflash_exp.durable import write_folder, write_whole
from dflash_exp.export import LATEST, drafter_state, find_drafter, layout_config, write_drafter
from dflash_exp.published import load_weights, read_shape
from tests.tiny_drafter import SHAPE, drafter_of


def save_drafter(run_dir: Path, step: int, drafter: Drafter, max_position_embeddings: int) -> Path:
    """As a checkpoint holds it."""
    parent = run_dir / "checkpoints"
    parent.mkdir(exist_ok=True)
    folder = parent / f"step-{step:08d}"
    layout = layout_config(drafter.shape, max_position_embeddings)
    write_folder(folder, lambda unfinished: write_drafter(unfinished, drafter_state(drafter), layout))
    write_whole(parent / LATEST, folder.name)
    return folder


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_drafter(tmp_path, 7, drafter_of(), 256)


def test_what_is_read_is_what_was_saved_bit_for_bit(tmp_path: Path, saved: Path) -> None:
    shape = read_shape(find_drafter(tmp_path, None))
    assert shape == SHAPE
    other = drafter_of(shape, seed=1)
    load_weights(other, saved)
    for (name, one), (_, two) in zip(drafter_of().named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(one, two), name


def test_a_checkpoint_is_two_files_with_exactly_a_drafter_s_keys_in_fp32(tmp_path: Path, saved: Path) -> None:
    assert saved == tmp_path / "checkpoints" / "step-00000007"
    assert sorted(p.name for p in saved.iterdir()) == ["config.json", "model.safetensors"]
    state = load_file(saved / "model.safetensors")
    assert sorted(state) == parameter_names(2)
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    assert not any("embed" in name or "head" in name for name in state)


def test_the_configuration_states_what_engines_read(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["dflash_config"] == {"mask_token_id": 1, "target_layer_ids": [0, 2]}
    assert (config["block_size"], config["num_target_layers"], config["num_hidden_layers"]) == (4, 4, 2)
    assert config["max_position_embeddings"] == 256


def test_latest_names_the_newest_and_any_other_can_be_asked_for(tmp_path: Path, saved: Path) -> None:
    newest = save_drafter(tmp_path, 12, drafter_of(seed=1), 256)
    assert find_drafter(tmp_path, None) == newest
    assert find_drafter(tmp_path, "step-00000007") == saved
    assert find_drafter(saved, None) == saved
    with pytest.raises(ValueError, match=r"one of the run's, step-00000007, step-00000012; got step-3"):
        find_drafter(tmp_path, "step-3")


def test_a_run_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="a run must have a checkpoint to be evaluated, got none"):
        find_drafter(tmp_path, None)


def test_weights_that_are_missing_or_cut_short_are_refused_in_one_line(saved: Path) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"model\.safetensors must be whole, it is not") as caught:
        load_weights(drafter_of(), saved)
    assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(ValueError, match=r"must hold a drafter's model\.safetensors"):
        load_weights(drafter_of(), saved)


def test_wrong_keys_are_refused_in_one_line_that_names_one(saved: Path) -> None:
    path = saved / "model.safetensors"
    state = load_file(path)
    state["lm_head.weight"] = state.pop("norm.weight")
    save_file(state, path)
    with pytest.raises(ValueError, match=r"lacks 1, first norm\.weight and has 1 that are none, first lm_") as caught:
        load_weights(drafter_of(), saved)
    assert "\n" not in str(caught.value)


def test_a_wrong_shape_is_refused_in_one_line_and_nothing_is_loaded(saved: Path) -> None:
    drafter = drafter_of(replace(SHAPE, intermediate_size=16), seed=1)
    before = drafter.fc.weight.detach().clone()
    with pytest.raises(ValueError, match=r"mlp\.\w+\.weight must have shape .*16.*, got .*12") as caught:
        load_weights(drafter, saved)
    assert "\n" not in str(caught.value)
    assert torch.equal(drafter.fc.weight, before)


def test_a_folder_that_holds_no_drafter_is_refused(tmp_path: Path, saved: Path) -> None:
    with pytest.raises(ValueError, match=r"must hold a drafter's config\.json"):
        read_shape(tmp_path)
    config = json.loads((saved / "config.json").read_text())
    del config["block_size"]
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="must state block_size"):
        read_shape(saved)


def test_a_small_file_is_written_whole_or_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "latest"
    write_whole(path, "one\n")
    write_whole(path, "two\n")
    assert path.read_text() == "two\n" and [p.name for p in tmp_path.iterdir()] == ["latest"]

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_whole(path, "three\n")
    assert path.read_text() == "two\n" and [p.name for p in tmp_path.iterdir()] == ["latest"]
