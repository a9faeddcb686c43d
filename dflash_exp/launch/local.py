"""One process per rank on this machine: started, told to stop and ended together.

In: the command of one rank. Out: one exit code for all. The ranks find their place in the environment, under torchrun's
names, and each other through a store that lives here, so that it outlives any of them. Not torch's elastic launcher: it
takes exit code 75 for a failure and ends the other ranks before the first one has saved.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import Empty, Queue
from threading import Thread

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dflash_exp.launch.children import (
    DONE,
    FAILED,
    FORWARDED,
    LIFELINE,
    STOPPED,
    WRONG_INPUT,
    forwarding,
    lifeline,
    threads_each,
)


def run_ranks(
    command: Sequence[str], n_ranks: int, grace_s: float, asked_to_stop: Callable[[], bool] = lambda: False
) -> int:
    """Run `command` once for each rank and wait for all: 0 or 75 where all agree, else the code of the first to fail.

    A signal goes to every rank, which begins with these signals blocked: it lets them through when it can answer.
    After a failure the others have `grace_s` to notice and to say so; then they are killed. `asked_to_stop`: whether a
    signal came before there were ranks.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    children: list[subprocess.Popen] = []
    ended: Queue[int] = Queue()
    with lifeline() as given, forwarding(lambda number: [child.send_signal(number) for child in children]):
        environment = {**os.environ, **_shared(n_ranks, store.port), LIFELINE: str(given)}
        with _blocked():
            for rank in range(n_ranks):
                of_rank = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                children.append(subprocess.Popen(command, env=of_rank, pass_fds=[given], start_new_session=True))
        for child in children:
            Thread(target=lambda child=child: ended.put(child.wait()), daemon=True).start()
            if asked_to_stop():
                child.send_signal(signal.SIGTERM)
        try:
            codes = _wait(children, ended, grace_s)
        finally:
            for child in children:
                child.kill()
    failed = [code for code in codes if code not in (DONE, STOPPED)]
    if failed:
        return WRONG_INPUT if failed[0] == WRONG_INPUT else FAILED
    return STOPPED if STOPPED in codes else DONE


def _shared(n_ranks: int, port: int) -> Mapping[str, str]:
    """What torchrun leaves in the environment of every rank; ranks on a CPU share its cores out."""
    return {
        "WORLD_SIZE": str(n_ranks),
        "LOCAL_WORLD_SIZE": str(n_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": threads_each(n_ranks),
    }


@contextmanager
def _blocked() -> Iterator[None]:
    """Signals wait meanwhile, and in the processes begun meanwhile until these unblock them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(children: list[subprocess.Popen], ended: "Queue[int]", grace_s: float) -> list[int]:
    """Exit codes in the order in which the processes ended."""
    codes: list[int] = []
    killed_at_s = float("inf")
    while len(codes) < len(children):
        try:
            codes.append(ended.get(timeout=min(max(0.0, killed_at_s - time.monotonic()), 1e6)))
        except Empty:
            killed_at_s = float("inf")
            for child in children:
                child.kill()
        if codes and codes[-1] not in (DONE, STOPPED):
            killed_at_s = min(killed_at_s, time.monotonic() + grace_s)
    return codes
