"""A checkpoint is whole or not there, verified when read, and written while training goes on."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from dflash_exp import checkpoint as module
from dflash_exp.checkpoint import (
    Checkpoint,
    CheckpointWriter,
    Snapshot,
    folder_name,
    newest_whole,
    read_progress,
    read_state,
    step_folders,
    take_snapshot,
)
from dflash_exp.drafter.model import Drafter
from dflash_exp.optim import Muon, Schedule, build_optimizer
from tests.tiny_drafter import drafter_of

CONFIG = Checkpoint(every_steps=1, keep_last=2, max_failures=1)
OPTIM = Muon(0.02, 0.95, 0.0, 0.02, [0.9, 0.95], Schedule.constant, 0.0, 0.0, 1.0)


def snapshot(step: int, **state: Any) -> Snapshot:
    return take_snapshot(step, drafter_of(), 64, {"optimizer": {"x": torch.arange(3.0)}, **state}, {"step": step})


def saved(run_dir: Path, *steps: int, said: list[str] | None = None, config: Checkpoint = CONFIG) -> CheckpointWriter:
    writer = CheckpointWriter(run_dir, config, [].append if said is None else said.append)
    for step in steps:
        writer.save(snapshot(step))
    writer.wait()
    return writer


def names(run_dir: Path) -> list[str]:
    return sorted(p.name for p in (run_dir / "checkpoints").iterdir())


def test_what_is_read_is_what_was_saved_and_the_newest_few_stay(tmp_path: Path) -> None:
    assert saved(tmp_path, 1, 2, 3).finish() == "step-00000003"
    assert names(tmp_path) == ["latest", "step-00000002", "step-00000003"]
    folder = newest_whole(tmp_path, pytest.fail)
    assert folder is not None and folder.name == "step-00000003"
    assert read_progress(folder) == {"step": 3}
    assert torch.equal(read_state(folder)["optimizer"]["x"], torch.arange(3.0))


def test_an_optimizer_comes_back_bit_for_bit_and_goes_on_the_same(tmp_path: Path) -> None:
    def trained(drafter: Drafter, optimizer: Any, n_steps: int) -> list[torch.Tensor]:
        for _ in range(n_steps):
            for p in drafter.parameters():
                p.grad = torch.sin(p.detach() * 7)
            optimizer.step()
        return [p.detach().clone() for p in drafter.parameters()]

    whole = drafter_of()
    expected = trained(whole, build_optimizer(OPTIM, whole.named_parameters()), 5)
    drafter = drafter_of()
    optimizer = build_optimizer(OPTIM, drafter.named_parameters())
    trained(drafter, optimizer, 2)
    writer = CheckpointWriter(tmp_path, CONFIG, pytest.fail)
    writer.save(take_snapshot(2, drafter, 64, {"optimizer": optimizer.state_dict()}, {}))
    trained(drafter, optimizer, 1)  # training goes on: the snapshot is a copy
    folder = tmp_path / "checkpoints" / str(writer.finish())
    other = drafter_of(seed=1)
    again = build_optimizer(OPTIM, other.named_parameters())
    other.load_state_dict(module_state(folder))
    again.load_state_dict(read_state(folder)["optimizer"])
    for one, two in zip(trained(other, again, 3), expected, strict=True):
        assert torch.equal(one, two)


def module_state(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "progress.json", "checksums.json"])
@pytest.mark.parametrize("how", ["cut", "flipped", "gone"])
def test_a_damaged_newest_falls_back_to_the_one_before_and_says_so(tmp_path: Path, name: str, how: str) -> None:
    saved(tmp_path, 1, 2)
    path = tmp_path / "checkpoints" / "step-00000002" / name
    whole = path.read_bytes()
    middle = len(whole) // 2
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[:middle] + (b"" if how == "cut" else bytes([whole[middle] ^ 1]) + whole[middle + 1 :]))
    said: list[str] = []
    folder = newest_whole(tmp_path, said.append)
    assert folder is not None and folder.name == "step-00000001"
    assert len(said) == 1 and "checkpoint step-00000002 is damaged" in said[0]
    assert "damaged-step-00000002" in names(tmp_path)


@pytest.mark.parametrize("sums", ["[]", "{}", '"text"', '{"state.pt": 1}'])
def test_checksums_that_do_not_name_every_file_that_is_needed_are_damage(tmp_path: Path, sums: str) -> None:
    saved(tmp_path, 1, 2)
    (tmp_path / "checkpoints" / "step-00000002" / "checksums.json").write_text(sums)
    said: list[str] = []
    folder = newest_whole(tmp_path, said.append)
    assert folder is not None and folder.name == "step-00000001"
    assert len(said) == 1 and "checkpoint step-00000002 is damaged (checksums.json" in said[0]


def test_a_folder_of_the_user_s_beside_the_checkpoints_is_neither_gone_on_from_nor_removed(tmp_path: Path) -> None:
    own = ("step-00000009-backup", "step-9", "step-²", "step-")
    for name in own:
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-00000010").touch()
    saved(tmp_path, 1, 2, 3)
    assert names(tmp_path) == sorted(["latest", "step-00000002", "step-00000003", "step-00000010", *own])
    folder = newest_whole(tmp_path, pytest.fail)
    assert folder is not None and folder.name == "step-00000003"


def test_a_hundred_million_steps_are_no_end(tmp_path: Path) -> None:
    for step in (10**8, 99_999_999):
        (tmp_path / folder_name(step)).mkdir()
    assert [path.name for path in step_folders(tmp_path)] == ["step-99999999", "step-100000000"]


def test_latest_names_the_one_that_is_gone_on_from(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    latest = tmp_path / "checkpoints" / "latest"
    latest.write_text("step-00000001\n")  # as a kill before it was written leaves it
    newest_whole(tmp_path, pytest.fail)
    assert latest.read_text() == "step-00000002\n"


def test_where_all_are_damaged_there_is_none(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    (tmp_path / "checkpoints" / "step-00000001" / "state.pt").unlink()
    assert newest_whole(tmp_path, lambda _: None) is None and newest_whole(tmp_path / "new", pytest.fail) is None


FULL = (
    OSError("no space left on device"),
    RuntimeError("unexpected pos: no space left on device"),
    SafetensorError("I/O error: no space left on device"),
)
"""As Python, torch and safetensors say it."""


def fails_at(steps: set[int], monkeypatch: pytest.MonkeyPatch, error: Exception = FULL[0]) -> None:
    plain = module._fill

    def fill(folder: Path, snapshot: Snapshot) -> None:
        (folder / "state.pt").write_bytes(b"half")
        if snapshot.step in steps:
            raise error
        plain(folder, snapshot)

    monkeypatch.setattr(module, "_fill", fill)


@pytest.mark.parametrize("error", FULL)
def test_a_full_disk_leaves_the_old_one_is_said_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fails_at({2}, monkeypatch, error)
    said: list[str] = []
    assert saved(tmp_path, 1, 2, said=said) is not None
    assert names(tmp_path) == ["latest", "step-00000001"]
    assert said == [f"checkpoint of step 2 was not written ({error}): training goes on, 0 more may fail"]
    assert saved(tmp_path, 3).finish() == "step-00000003"


def test_more_failures_in_a_row_than_are_allowed_end_the_run_and_one_success_forgets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_at({2, 4, 5}, monkeypatch)
    writer = saved(tmp_path, 1, 2, 3, 4)
    writer.save(snapshot(5))
    with pytest.raises(OSError, match="no space"):
        writer.wait()
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-00000003\n"


def test_the_last_save_of_a_run_must_not_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_at({2}, monkeypatch)
    with pytest.raises(OSError, match="no space"):
        saved(tmp_path, 1, 2, config=replace(CONFIG, max_failures=9)).finish()


def test_training_waits_for_the_copy_not_for_the_disk_and_one_write_is_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, let_go, running = module._fill, threading.Event(), []

    def fill(folder: Path, snapshot: Snapshot) -> None:
        running.append(snapshot.step)
        let_go.wait(10.0)
        plain(folder, snapshot)

    monkeypatch.setattr(module, "_fill", fill)
    writer = CheckpointWriter(tmp_path, CONFIG, pytest.fail)
    writer.save(snapshot(1))  # returns, though nothing can be written yet
    second = threading.Thread(target=writer.save, args=(snapshot(2),))
    second.start()
    second.join(0.1)
    assert second.is_alive() and running == [1]
    let_go.set()
    second.join(10.0)
    assert writer.finish() == "step-00000002" and running == [1, 2]


def test_state_with_code_in_it_is_not_run(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    folder = tmp_path / "checkpoints" / "step-00000001"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("it ran",))

    torch.save({"optimizer": Evil()}, folder / "state.pt")
    with pytest.raises(Exception, match="weights_only"):
        read_state(folder)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"every_steps": -1}, r"checkpoint\.every_steps must be >= 0, got -1"),
        ({"keep_last": 0}, r"checkpoint\.keep_last must be >= 1, got 0"),
        ({"max_failures": -2}, r"checkpoint\.max_failures must be >= 0, got -2"),
    ],
)
def test_values_out_of_range_are_refused(changed: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changed)


def test_checksums_cover_every_other_file(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    (folder,) = step_folders(tmp_path / "checkpoints")
    stated = json.loads((folder / "checksums.json").read_text())
    assert set(stated) == {p.name for p in folder.iterdir()} - {"checksums.json"}
