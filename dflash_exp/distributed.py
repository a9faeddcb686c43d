"""Topology: how many ranks there are, and which devices each has.

In: the configured topology and what is there. Out: the devices of one rank. It changes how fast a run is, never what
it computes beyond the order in which floats are added.
"""

import os
import platform
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch


class Device(Enum):
    """Where target and drafter run."""

    auto = "auto"
    """CUDA where there is one."""
    cpu = "cpu"
    cuda = "cuda"


@dataclass(frozen=True)
class Topology:
    """Ranks and devices."""

    name: str
    """The option's own, for messages."""
    nodes: int
    ranks_per_node: int
    target_workers: int
    """Target loops of a rank."""
    device: Device
    target_devices: int
    """Devices of a rank that hold the target alone, each a copy of it, or `target.layer_split` of them one; 0: it
    shares the drafter's."""
    timeout_s: float
    """How long a rank waits for the others before it takes them for lost."""

    def __post_init__(self) -> None:
        counts = {"nodes": self.nodes, "ranks_per_node": self.ranks_per_node, "target_workers": self.target_workers}
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"topology.{name} must be >= 1, got {count}; 1 is one of them")
        if self.target_devices < 0:
            raise ValueError(
                f"topology.target_devices must be >= 0, got {self.target_devices}; 0 is the drafter's own device"
            )
        if self.target_devices and self.device is not Device.cuda:
            raise ValueError(
                f"topology.target_devices must be 0 without CUDA devices, got {self.target_devices} with "
                f"device={self.device.value}; say topology.device=cuda"
            )
        if not self.timeout_s > 0:
            raise ValueError(f"topology.timeout_s must be > 0, got {self.timeout_s}; 600 is usual")

    def check_split(self, layer_split: int) -> None:
        """ValueError unless target_devices make whole copies of the target, each for as many workers."""
        if self.device is not Device.cuda:
            return
        if (layer_split > 1 and self.target_devices == 0) or self.target_devices % layer_split:
            raise ValueError(
                f"target.layer_split must divide topology.target_devices, got {layer_split} for {self.target_devices}; "
                f"say topology.target_devices={layer_split} topology.target_workers={layer_split}"
            )
        n_copies = self.target_devices // layer_split
        if n_copies and self.target_workers % n_copies:
            raise ValueError(
                "topology.target_workers must be a multiple of the target's copies, topology.target_devices / "
                f"target.layer_split, got {self.target_workers} for {n_copies}; each copy serves as many workers"
            )

    @property
    def n_ranks(self) -> int:
        """Over all nodes."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True)
class RankDevices:
    """Where the models of one rank are."""

    drafter: torch.device
    targets: Sequence[tuple[torch.device, ...]]
    """Of each target loop those that its copy is spread over; the first takes tokens and gives features."""

    @property
    def distinct(self) -> set[torch.device]:
        """Each once."""
        return {self.drafter, *(device for own in self.targets for device in own)}


def grow_segments(environment: MutableMapping[str, str]) -> None:
    """Have CUDA's allocator grow what it has rather than keep blocks of every size that batches of many shapes ask for;
    the user's own words, by either name, stand. Call it before CUDA starts: it reads them once."""
    if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & environment.keys():
        environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


def device_type(topology: Topology) -> str:
    """`cuda` or `cpu`: what the models of all ranks run on."""
    if topology.device is Device.auto:
        return "cuda" if torch.cuda.is_available() else "cpu"
    return topology.device.value


def rank_devices(topology: Topology, layer_split: int, rank: int) -> RankDevices:
    """The devices of this rank. Raises ValueError for what is not there."""
    if device_type(topology) == "cpu":
        return RankDevices(torch.device("cpu"), [(torch.device("cpu"),) * layer_split] * topology.target_workers)
    replace(topology, device=Device.cuda).check_split(layer_split)
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    needed = topology.ranks_per_node * (1 + topology.target_devices)
    if found < needed:
        raise ValueError(
            f"topology {topology.name} needs {needed} CUDA {'device' if needed == 1 else 'devices'}, found {found}; "
            "use topology=cpu, topology=auto to take what is there, or hydra/launcher=slurm_8gpu to submit it"
        )
    first = rank % topology.ranks_per_node * (1 + topology.target_devices)
    beside = [torch.device("cuda", first + 1 + i) for i in range(topology.target_devices)]
    beside = beside or [torch.device("cuda", first)]
    copies = [tuple(beside[begin : begin + layer_split]) for begin in range(0, len(beside), layer_split)]
    targets = [copies[i % len(copies)] for i in range(topology.target_workers)]
    return RankDevices(torch.device("cuda", first), targets)


def devices_in_a_row(kind: str, n_devices: int) -> tuple[torch.device, ...]:
    """The first devices of this machine, of kind `cuda` or `cpu`, which is as many as are asked for. ValueError where
    there are fewer."""
    if kind == "cpu":
        return (torch.device("cpu"),) * n_devices
    if torch.cuda.device_count() < n_devices:
        raise ValueError(
            f"target.layer_split must be at most the CUDA devices that are there, got {n_devices} for "
            f"{torch.cuda.device_count()}; lower it, or find more"
        )
    return tuple(torch.device("cuda", i) for i in range(n_devices))


def visible_devices() -> list[str]:
    """Ids of the CUDA devices that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [str(i) for i in range(torch.cuda.device_count())]
    return [gpu for gpu in listed.split(",") if gpu]


def whereabouts(topology: Topology, rank: int, device: str) -> dict[str, object]:
    """Where a rank runs, as environment.json says it: host, Slurm's node, the target's device, its share of the GPUs
    that this job may see, by their ids."""
    visible = visible_devices()
    share, place = len(visible) // topology.ranks_per_node, rank % topology.ranks_per_node
    return {
        "host": platform.node(),
        "node": os.environ.get("SLURMD_NODENAME"),
        "device": device,
        "gpus": visible[share * place : share * (place + 1)],
    }


def check_topology(topology: Topology, batches_per_step: int, *, overlapped: bool) -> None:
    """ValueError for a topology that the rest of the configuration does not go with."""
    if topology.target_workers != 1 and not overlapped:
        raise ValueError(
            f"topology.target_workers must be 1 with pipeline=lockstep, got {topology.target_workers}; "
            "pipeline=overlapped takes more"
        )
    if batches_per_step < topology.n_ranks:
        raise ValueError(
            f"batches_per_step must be >= the number of ranks, got {batches_per_step} for {topology.n_ranks}; "
            f"say batches_per_step={topology.n_ranks}"
        )


def check_memory(topology: Topology, devices: RankDevices, wanted_bytes: int) -> None:
    """ValueError where the fullest device of a rank cannot hold what is predicted for it.

    Of a CPU it is this rank's share of the machine's memory.
    """
    there = [device_bytes(device) for device in devices.distinct]
    least = min(there) // (topology.ranks_per_node if devices.drafter.type == "cpu" else 1)
    if wanted_bytes > least:
        raise ValueError(
            f"topology {topology.name} must hold a rank's peak, predicted {wanted_bytes / 1e9:.1f} GB on its fullest "
            f"device, which has {least / 1e9:.1f} GB; lower batches.budget_tokens, drafter.slots_per_pass or "
            "pipeline.features_bytes"
        )


def device_bytes(device: torch.device) -> int:
    """Memory of a device; of a CPU, the machine's."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
