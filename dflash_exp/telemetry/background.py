"""A client on a thread of its own: the run waits for a mirror only where it says how long.

In: how the client starts, then calls on it. A mirror may fail or hang; the run goes on, and one line says so. The
trade-off: a mirror that keeps failing is silent from its second failure on, and one that hangs loses what stands behind
the call.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Full, Queue
from typing import Generic, TypeVar

Client = TypeVar("Client")
Result = TypeVar("Result")

ROOM = 10_000
"""Calls that may wait. A record is a few kilobytes, and a client takes one in about a millisecond."""
LOAD_S = 60.0
"""The longest wait for a client's modules."""


class Background(Generic[Client]):
    """Starts a client, then makes calls on it one after the other, in their order, on a daemon thread."""

    def __init__(
        self, name: str, load: Callable[[], object], start: Callable[[], Client], say: Callable[[str], None]
    ) -> None:
        """Waits for `load`, which imports: two threads that import at once may see half a module.

        `name` begins the warning; `say` is called from either thread.
        """
        self._name = name
        self._say = say
        self._calls: Queue[Callable[[Client], object] | None] = Queue(ROOM)
        self._loaded = threading.Event()
        self._unsaid = threading.Lock()
        self._thread = threading.Thread(target=self._work, args=(load, start), name=name, daemon=True)
        self._thread.start()
        self._loaded.wait(LOAD_S)

    def submit(self, call: Callable[[Client], object]) -> None:
        """Make the call when its turn comes. Returns at once; where ROOM calls wait already, this one is dropped."""
        try:
            self._calls.put_nowait(call)
        except Full:
            self.warn(f"does not keep up, {ROOM} calls wait")

    def close(self, limit_s: float) -> None:
        """Make the calls that still wait, for at most so long, and end the thread."""
        deadline_s = time.monotonic() + limit_s
        try:
            self._calls.put(None, timeout=limit_s)
        except Full:
            pass
        else:
            self._thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._thread.is_alive():
            self.warn(f"has not answered for {limit_s:.0f} s")

    def warn(self, what: str) -> None:
        """Say what is wrong, the first time only."""
        if self._unsaid.acquire(blocking=False):  # never released: once is once, whichever thread comes first
            self._say(f"{self._name} {what}; the run goes on, metrics.jsonl holds every record")

    def _work(self, load: Callable[[], object], start: Callable[[], Client]) -> None:
        self._guarded(load)
        self._loaded.set()
        client = self._guarded(start)
        while (call := self._calls.get()) is not None:
            if client is not None:
                self._guarded(partial(call, client))

    def _guarded(self, call: Callable[[], Result]) -> Result | None:
        """The call's result; None where it fails, which is said. The one place where any error of a client ends."""
        try:
            return call()
        except (Exception, SystemExit) as error:
            self.warn(f"failed ({described(error)})")
            return None


def described(error: BaseException) -> str:
    """An error in one line: its class, and the first line of what it says."""
    said = str(error).strip()
    return f"{type(error).__name__}: {said.splitlines()[0]}" if said else type(error).__name__
