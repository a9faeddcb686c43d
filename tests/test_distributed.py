"""Which devices a rank has, and which topologies are refused."""

import pytest
import torch

from dflash_exp import distributed
from dflash_exp.compose import compose
from dflash_exp.distributed import (
    Device,
    Topology,
    check_memory,
    check_topology,
    devices_in_a_row,
    grow_segments,
    rank_devices,
)
from dflash_exp.ranks import Alone, lead, place_of, share_out, together
from dflash_exp.suggest import ConfigError


def topology(option: str) -> Topology:
    return compose([f"topology={option}", "batches_per_step=8", "steps=1", "epochs=null"]).topology


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        ({"PYTORCH_ALLOC_CONF": "x"}, {"PYTORCH_ALLOC_CONF": "x"}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "x"}, {"PYTORCH_CUDA_ALLOC_CONF": "x"}),
    ],
)
def test_segments_grow_unless_the_user_has_told_the_allocator_something_by_either_name(
    before: dict[str, str], after: dict[str, str]
) -> None:
    grow_segments(before)
    assert before == after


@pytest.mark.usefixtures("eight_gpus")
@pytest.mark.parametrize(
    ("option", "drafters", "targets"),
    [
        ("gpu1", [0], [[0]]),
        ("colocated8", list(range(8)), [[i] for i in range(8)]),
        ("node8", [0, 2, 4, 6], [[1], [3], [5], [7]]),
        ("node8_large_target", [0, 4], [[1, 2, 3], [5, 6, 7]]),
    ],
)
def test_every_rank_has_devices_of_its_own(option: str, drafters: list[int], targets: list[list[int]]) -> None:
    chosen = topology(option)
    assert chosen.n_ranks == len(drafters)
    found = [rank_devices(chosen, 1, rank) for rank in range(chosen.n_ranks)]
    assert [devices.drafter.index for devices in found] == drafters
    assert [[device.index for (device,) in devices.targets] for devices in found] == targets
    on_the_second_node = rank_devices(chosen, 1, chosen.n_ranks)
    assert on_the_second_node == found[0]


@pytest.mark.parametrize(
    ("option", "n_devices"),
    [("gpu1", "1 CUDA device,"), ("node8", "8 CUDA devices,"), ("colocated8", "8 CUDA devices,")],
)
def test_a_topology_whose_devices_are_not_there_is_refused(
    option: str, n_devices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"^topology {option} needs {n_devices} found 0; use topology=cpu"):
        rank_devices(topology(option), 1, 0)


def cuda(target_devices: int, target_workers: int, n_ranks: int = 1) -> Topology:
    return Topology("mine", 1, n_ranks, target_workers, Device.cuda, target_devices, 600.0)


@pytest.mark.usefixtures("eight_gpus")
@pytest.mark.parametrize(
    ("chosen", "layer_split", "targets"),
    [
        (cuda(3, 3, n_ranks=2), 3, [(5, 6, 7)] * 3),
        (cuda(3, 1, n_ranks=2), 3, [(5, 6, 7)]),
        (cuda(4, 4), 2, [(1, 2), (3, 4), (1, 2), (3, 4)]),
    ],
)
def test_a_target_that_is_spread_has_as_many_devices_and_its_workers_share_them(
    chosen: Topology, layer_split: int, targets: list[tuple[int, ...]]
) -> None:
    devices = rank_devices(chosen, layer_split, chosen.ranks_per_node - 1)
    assert [tuple(device.index for device in own) for own in devices.targets] == targets
    assert len(devices.distinct) == 1 + chosen.target_devices


@pytest.mark.parametrize(
    ("chosen", "layer_split", "rule"),
    [
        (cuda(3, 3), 2, r"^target\.layer_split must divide topology\.target_devices, got 2 for 3; say topology"),
        (cuda(0, 1), 2, r"^target\.layer_split must divide topology\.target_devices, got 2 for 0; say topology"),
        (cuda(2, 3), 1, r"^topology\.target_workers must be a multiple of the target's copies, .* got 3 for 2; each"),
        (cuda(4, 3), 2, r"^topology\.target_workers must be a multiple of the target's copies, .* got 3 for 2; each"),
    ],
)
def test_devices_that_make_no_whole_copies_are_refused(chosen: Topology, layer_split: int, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        chosen.check_split(layer_split)


def test_a_copy_s_devices_are_asked_for_as_a_configuration_is_read_and_again_where_auto_finds_cuda(
    eight_gpus: None,
) -> None:
    with pytest.raises(ConfigError, match=r"target\.layer_split must divide topology\.target_devices, got 2 for 1"):
        compose(["topology=node8", "target.layer_split=2", "batches_per_step=8"])
    with pytest.raises(ValueError, match=r"target\.layer_split must divide topology\.target_devices, got 2 for 0"):
        rank_devices(topology("auto"), 2, 0)


def test_a_target_without_a_topology_is_spread_over_the_first_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices_in_a_row("cuda", 2) == (torch.device("cuda", 0), torch.device("cuda", 1))
    assert devices_in_a_row("cpu", 3) == (torch.device("cpu"),) * 3
    with pytest.raises(ValueError, match=r"target\.layer_split must be at most the CUDA devices .*, got 3 for 2"):
        devices_in_a_row("cuda", 3)


def test_auto_takes_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert rank_devices(topology("auto"), 1, 0).drafter == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert rank_devices(topology("auto"), 1, 0).drafter == torch.device("cuda", 0)
    assert rank_devices(topology("cpu"), 1, 0).drafter == torch.device("cpu")


def test_what_cannot_fit_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Topology("cpu", 1, 2, 1, Device.cpu, 0, 600.0)
    monkeypatch.setattr(distributed, "device_bytes", lambda device: 8 * 10**9)
    check_memory(two, rank_devices(two, 1, 0), 4 * 10**9)
    with pytest.raises(ValueError, match=r"predicted 4\.1 GB on its fullest device, which has 4\.0 GB; lower batches"):
        check_memory(two, rank_devices(two, 1, 0), 41 * 10**8)


def test_a_step_must_hold_a_batch_for_every_rank() -> None:
    four = Topology("cpu", 2, 2, 1, Device.cpu, 0, 600.0)
    check_topology(four, 4, overlapped=True)
    with pytest.raises(ValueError, match="batches_per_step must be >= the number of ranks, got 3 for 4"):
        check_topology(four, 3, overlapped=True)


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"target_devices": -1}, "target_devices must be >= 0, got -1"),
        ({"target_devices": 1, "device": Device.cpu}, "must be 0 without CUDA devices, got 1"),
        ({"timeout_s": 0.0}, "timeout_s must be > 0"),
        ({"ranks_per_node": 0}, "ranks_per_node must be >= 1"),
    ],
)
def test_what_no_machine_could_be_is_refused(values: dict[str, object], rule: str) -> None:
    plain = {
        "name": "odd", "nodes": 1, "ranks_per_node": 1, "target_workers": 1, "device": Device.cuda,
        "target_devices": 0, "timeout_s": 1.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match=rule):
        Topology(**(plain | values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        ({"RANK": "3", "WORLD_SIZE": "4"}, (3, 4)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "8"}, (1, 8)),
        ({"SLURM_PROCID": "0"}, None),
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}, (0, 2)),
    ],
)
def test_a_launcher_says_in_the_environment_which_rank_this_is(
    environment: dict[str, str], place: tuple[int, int] | None
) -> None:
    assert place_of(environment) == place


class Elsewhere(Alone):
    """The second of two ranks, whose first has said this."""

    rank, n_ranks = 1, 2

    def __init__(self, *said: object) -> None:
        self.said = list(said)

    def exchange(self, own: object) -> list[object]:
        return [self.said.pop(0), own]


def test_the_first_rank_decides_for_all() -> None:
    assert lead(Elsewhere(None, "there"), lambda: "here") == "there"
    assert lead(Alone(), lambda: "here") == "here"


def test_what_one_rank_refuses_is_refused_by_all() -> None:
    with pytest.raises(ValueError, match="no such run"):
        together(Elsewhere("no such run"), lambda: 1)
    assert together(Elsewhere(None), lambda: 1) == 1

    def refuse() -> int:
        raise ValueError("not here")

    ranks = Elsewhere(None)
    with pytest.raises(ValueError, match="not here"):
        together(ranks, refuse)
    assert ranks.said == [], "the others have been told"


def test_items_are_shared_out_and_all_come_back_in_order() -> None:
    done: list[int] = []

    def square(i: int) -> int:
        done.append(i)
        return i * i

    assert share_out(Elsewhere([[0, 0], [2, 4], [4, 16]]), 5, square) == [0, 1, 4, 9, 16]
    assert done == [1, 3]
    assert share_out(Alone(), 3, square) == [0, 1, 4]
