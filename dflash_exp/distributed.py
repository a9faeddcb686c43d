"""Ranks: how many there are, and on which devices."""

from dataclasses import dataclass
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
    """Ranks and devices; it changes the speed of a run, never its plan."""

    nodes: int
    ranks_per_node: int
    target_workers: int
    """Per rank."""
    device: Device

    def __post_init__(self) -> None:
        counts = {"nodes": self.nodes, "ranks_per_node": self.ranks_per_node, "target_workers": self.target_workers}
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"topology.{name} must be >= 1, got {count}; 1 is one of them")


def choose_device(topology: Topology, *, overlapped: bool) -> torch.device:
    """The device of this process's target and drafter; ValueError for what is not there or not built."""
    for name, count in {"nodes": topology.nodes, "ranks_per_node": topology.ranks_per_node}.items():
        if count != 1:
            raise ValueError(f"topology.{name} must be 1, got {count}; one rank trains the whole plan")
    if topology.target_workers != 1 and not overlapped:
        raise ValueError(
            f"topology.target_workers must be 1 with pipeline=lockstep, got {topology.target_workers}; "
            "pipeline=overlapped takes more"
        )
    found = torch.cuda.is_available()
    if topology.device is Device.cuda and not found:
        raise ValueError(
            "topology gpu1 needs 1 CUDA device, found 0; use topology=cpu, or topology=auto to take what is there"
        )
    return torch.device("cuda" if found and topology.device is not Device.cpu else "cpu")
