"""What the ranks of a run do together.

In: this process's place among them. Out: `Ranks`, alone or in a group. A group has one collective an optimizer step,
`add_up`; everything else that ranks tell one another goes through `exchange`, between steps, as JSON, over gloo.
Every collective is called by all ranks in the same order.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

CAUSE_S = 5.0
"""How long the ranks that are left wait for a word from the one that failed."""
FAILURE = "failure"
Made = TypeVar("Made")


class RankFailed(RuntimeError):
    """Another rank failed, died or did not come; the message says which and why."""


class Ranks(Protocol):
    """The processes that train one drafter, as one of them sees them."""

    rank: int
    n_ranks: int

    def exchange(self, own: Any) -> list[Any]:
        """What every rank has to say, by rank; JSON can hold it."""
        ...

    def add_up(self, flat: Tensor) -> None:
        """Replace a tensor by its sum over the ranks, the same bits on each."""
        ...

    def fail(self, why: str) -> None:
        """Leave word for the others, who wait for this rank."""
        ...


def together(ranks: Ranks, make: Callable[[], Made]) -> Made:
    """`make()` of every rank; a ValueError of one of them is raised on all."""
    made, error = None, None
    try:
        made = make()
    except ValueError as raised:
        error = raised
    told = ranks.exchange(None if error is None else str(error))
    if error is not None:
        raise error
    refused = next((one for one in told if one is not None), None)
    if refused is not None:
        raise ValueError(refused)
    return made  # type: ignore[return-value]


def lead(ranks: Ranks, decide: Callable[[], Any]) -> Any:
    """What the first rank decides, on all of them: it alone calls `decide`, whose answer JSON can hold.

    A ValueError of it is raised on every rank.
    """
    decided = together(ranks, lambda: decide() if ranks.rank == 0 else None)
    return ranks.exchange(decided)[0]


def share_out(ranks: Ranks, n_items: int, do: Callable[[int], Any]) -> list[Any]:
    """`do(i)` of every item, each by one rank, on all ranks and in the order of the items; JSON can hold it."""
    own = [[i, do(i)] for i in range(ranks.rank, n_items, ranks.n_ranks)]
    told = {i: done for one in ranks.exchange(own) for i, done in one}
    return [told[i] for i in range(n_items)]


class Alone:
    """One rank."""

    rank, n_ranks = 0, 1

    def exchange(self, own: Any) -> list[Any]:
        """The one answer there is."""
        return [own]

    def add_up(self, flat: Tensor) -> None:
        """Nothing to add."""

    def fail(self, why: str) -> None:
        """Nobody waits."""


class Group:
    """Several ranks, joined when it is made. Its collectives are called by one thread at a time."""

    def __init__(self, rank: int, n_ranks: int, device: torch.device, timeout_s: float) -> None:
        """MASTER_ADDR and MASTER_PORT say where they meet. Raises RankFailed where not all come within `timeout_s`."""
        self.rank, self.n_ranks = rank, n_ranks
        self._timeout_s = timeout_s
        limit = timedelta(seconds=timeout_s)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        try:
            self._store, _, _ = next(rendezvous("env://", rank, n_ranks, timeout=limit))
            dist.init_process_group(backend, store=self._store, rank=rank, world_size=n_ranks, timeout=limit)
        except RuntimeError as error:
            raise RankFailed(f"not all of {n_ranks} ranks came within topology.timeout_s={timeout_s:g} s") from error

    def exchange(self, own: Any) -> list[Any]:
        """See `Ranks`: bytes, padded to the longest. Raises RankFailed."""
        said = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.n_ranks)]
        self._together(lambda: dist.all_gather(lengths, torch.tensor([len(said)])))
        padded = torch.zeros(max(int(length) for length in lengths), dtype=torch.uint8)
        padded[: len(said)] = said
        heard = [torch.empty_like(padded) for _ in range(self.n_ranks)]
        self._together(lambda: dist.all_gather(heard, padded))
        pairs = zip(heard, lengths, strict=True)
        return [json.loads(words[: int(length)].numpy().tobytes()) for words, length in pairs]

    def add_up(self, flat: Tensor) -> None:
        """See `Ranks`. Raises RankFailed."""
        self._together(lambda: dist.all_reduce(flat))

    def fail(self, why: str) -> None:
        """See `Ranks`."""
        with suppress(RuntimeError):  # whoever kept the store is gone, and so nobody reads it
            self._store.set(FAILURE, f"rank {self.rank}: {why}")

    def close(self) -> None:
        """Leave the group, when all is over."""
        dist.destroy_process_group()

    def _together(self, collective: Callable[[], object]) -> None:
        try:
            collective()
        except RuntimeError as error:
            raise RankFailed(self._cause()) from error

    def _cause(self) -> str:
        """Who is to blame: the rank that left word, or those that do not answer."""
        with suppress(RuntimeError):
            self._store.set(f"here/{self.rank}", "")
            self._store.wait([FAILURE], timedelta(seconds=CAUSE_S))
            return f"another rank failed: {self._store.get(FAILURE).decode()}"
        try:
            silent = [rank for rank in range(self.n_ranks) if not self._store.check([f"here/{rank}"])]
        except RuntimeError:
            return "rank 0 is gone without a word, and the store of the ranks with it"
        named = ", ".join(map(str, silent)) or "none that is silent"
        return (
            f"rank {named} died without a word, or did not come within topology.timeout_s={self._timeout_s:g} s; "
            "see logs/"
        )


def place_of(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """(rank, ranks) that a launcher left in the environment, under torchrun's names or Slurm's; None outside one."""
    for rank, n_ranks in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")):
        if rank in environment and n_ranks in environment:
            return int(environment[rank]), int(environment[n_ranks])
    return None
