"""Saying so when kernels are compiled: once a machine, some seconds in which nothing else would be seen.

The plan prints nothing; the caller hands in what does. Numba tells of every compilation, not of a load from its cache,
so a warm start is silent. Nothing here imports numba (.4 s): a module of kernels, which has, calls `listen`, so that
a plan without kernels pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LINE = "compiling the plan kernels (once)"

_say: ContextVar[Callable[[str], None] | None] = ContextVar("dflash_exp.plan.compiling.say", default=None)


@contextmanager
def announced(say: Callable[[str], None]) -> Iterator[None]:
    """Inside, in the calling thread, `say(LINE)` is called as the first kernel begins to compile, and not at all where
    none has to."""
    token = _say.set(say)
    try:
        yield
    finally:
        _say.reset(token)


def listen() -> None:
    """Hear of this process's compilations; a second call changes nothing, for what was said once is not said again."""
    from numba.core.event import Event, Listener, register

    class FirstCompilation(Listener):
        def on_start(self, event: Event) -> None:
            say = _say.get()
            if say is not None:
                _say.set(None)
                say(LINE)

        def on_end(self, event: Event) -> None:
            pass

    register("numba:compile", FirstCompilation())
