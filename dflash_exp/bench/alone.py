"""What only a process of its own can measure: the first compilation, and the peak of memory."""

import os
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from dflash_exp.bench.corpus import build_epoch, made_up_lengths
from dflash_exp.bench.figures import Figure, Timed, timed
from dflash_exp.plan.batches import COMPILED_FROM
from dflash_exp.plan.interleave import Interleave
from dflash_exp.plan.seeds import named_rng

Result = TypeVar("Result")


def alone(measure: Callable[..., Result], *arguments: object) -> Result:
    """What `measure` returns in a new process that has imported nothing yet."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(measure, *arguments).result()


def first_calls_s(strategies: Sequence[Interleave]) -> float:
    """Seconds of the first order of every strategy and the first epoch on a machine that has compiled no kernel yet.

    The import of numba is in it. To be run `alone`: where kernels are kept is settled when numba is imported.
    """
    with TemporaryDirectory() as empty:
        os.environ["NUMBA_CACHE_DIR"] = empty
        lengths = made_up_lengths(COMPILED_FROM)
        began_s = time.perf_counter()
        for strategy in strategies:
            strategy.order([2, 1], named_rng("bench", 0, 0))
        build_epoch(lengths)
        return time.perf_counter() - began_s


def large_epoch(group: str, n_lengths: int, rounds: int) -> list[Figure]:
    """An epoch's time and the peak of memory, lengths and ids included. To be run `alone`: it is the process's peak."""
    lengths = made_up_lengths(n_lengths)
    figures = timed([Timed(group, "time", lambda: build_epoch(lengths), "s", 10.0)], rounds)
    return [*figures, Figure(group, "peak of memory", peak_memory_bytes() / 1e9, "GB", 2.0)]


def peak_memory_bytes() -> int:
    """The most memory that this process has held.

    On Linux `getrusage` would give the parent's peak where that is higher; elsewhere its unit is bytes.
    """
    status = Path("/proc/self/status")
    if not status.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (peak,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(peak.split()[1])
