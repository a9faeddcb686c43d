"""Processes that make parts: a chunk goes out, a part file comes to be.

In: chunks. Out: the chunks whose parts are done, as they are done; no more than two a process are on their way, so that
memory does not follow the input. One worker is this process itself. Workers leave stopping to the process that started
them, and end with it, however it ends.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_exp.data.part import Recipe, write_part
from dflash_exp.data.sources import Chunk
from dflash_exp.data.template import Encoder
from dflash_exp.stop import SIGNALS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

AHEAD = 2
"""Chunks on their way, for each process."""


@dataclass(frozen=True)
class Tokens:
    """Whose tokenizer; a key to the one that each process loads once."""

    path: str
    trust_remote_code: bool


@dataclass(frozen=True)
class PartMaker:
    """All that a process needs beside a chunk."""

    parts: Path
    tokens: Tokens
    recipe: Recipe

    def __call__(self, chunk: Chunk) -> None:
        write_part(self.parts, chunk, _encoder(self.tokens, self.recipe.settings.last_turn_only), self.recipe)


def load_tokenizer(tokens: Tokens) -> "PreTrainedTokenizerBase":
    """Raises ValueError, one line, where there is none."""
    from transformers import AutoTokenizer

    is_local = Path(tokens.path).is_dir()
    try:
        return AutoTokenizer.from_pretrained(
            tokens.path, local_files_only=is_local, trust_remote_code=tokens.trust_remote_code
        )
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"target.path must hold a tokenizer, {tokens.path!r} does not: {reason}") from error


def made(
    make: Callable[[Chunk], None], chunks: Iterable[Chunk], n_workers: int, stop: Callable[[], bool]
) -> Iterator[Chunk]:
    """Each chunk once its part is there, in the order in which they are done; after `stop` none is begun."""
    if n_workers > 1:
        yield from _made_by_processes(make, chunks, n_workers, stop)
        return
    for chunk in chunks:
        if stop():
            return
        make(chunk)
        yield chunk


def _made_by_processes(
    make: Callable[[Chunk], None], chunks: Iterable[Chunk], n_workers: int, stop: Callable[[], bool]
) -> Iterator[Chunk]:
    # spawn: a fork of a process with threads (pyarrow's, torch's) may hang
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(n_workers, context, initializer=_become_worker)
    under_way: dict[Future[None], Chunk] = {}
    try:
        for chunk in chunks:
            if stop():
                break
            under_way[pool.submit(make, chunk)] = chunk
            if len(under_way) >= AHEAD * n_workers:
                yield from _finished(under_way)
        while under_way:
            yield from _finished(under_way)
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a worker of prepare was killed, perhaps for want of memory; the same command goes on, fewer "
            "prepare.workers take less"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _finished(under_way: dict["Future[None]", Chunk]) -> list[Chunk]:
    """Take those out that are done, at least one; raises what their process raised."""
    done, _ = wait(under_way, return_when=FIRST_COMPLETED)
    for future in done:
        future.result()
    return [under_way.pop(future) for future in done]


def _become_worker() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@cache
def _encoder(tokens: Tokens, last_turn_only: bool) -> Encoder:
    """One a process: it takes seconds to load."""
    return Encoder(load_tokenizer(tokens), last_turn_only)
