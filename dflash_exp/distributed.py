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


def choose_device(topology: Topology) -> torch.device:
    """The device of this process's target and drafter; ValueError for what is not there or not built."""
    several = {
        "nodes": topology.nodes,
        "ranks_per_node": topology.ranks_per_node,
        "target_workers": topology.target_workers,
    }
    for name, count in several.items():
        if count != 1:
            raise ValueError(
                f"topology.{name} must be 1 with pipeline=lockstep, got {count}; one rank trains the whole plan"
            )
    found = torch.cuda.is_available()
    if topology.device is Device.cuda and not found:
        raise ValueError(
            "topology gpu1 needs 1 CUDA device, found 0; use topology=cpu, or topology=auto to take what is there"
        )
    return torch.device("cuda" if found and topology.device is not Device.cpu else "cpu")
