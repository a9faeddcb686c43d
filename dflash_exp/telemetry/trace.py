"""A trace of some optimizer steps, of every thread of the line: `profile.steps=[first, last]`.

In: how many steps are done. Out: a file that Perfetto (ui.perfetto.dev) and chrome://tracing read.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile


class Trace:
    """Call it with the steps done so far, 0 before the first: between two steps, from any one thread."""

    def __init__(self, first: int, last: int, path: Path, say: Callable[[str], None]) -> None:
        """Steps `first` to `last` of the run, from 1, both traced; `path` is written after `last`, or at `close`. What
        is not traced of them is said."""
        self._first, self._last, self._path, self._say = first, last, path, say
        self._n_done: int | None = None
        self._profile: profile | None = None

    def __call__(self, n_done: int) -> None:
        if self._n_done is None and 1 <= self._first <= n_done:
            self._say(
                f"profile.steps=[{self._first},{self._last}] is not traced: this session begins after step {n_done}"
            )
        self._n_done = n_done
        if n_done == self._first - 1:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            # the stages run in threads that the profiler would not see otherwise
            self._profile = profile(
                activities=activities, experimental_config=_ExperimentalConfig(profile_all_threads=True)
            )
            self._profile.start()
        elif n_done == self._last:
            self.close()

    def close(self) -> None:
        """Write what was traced, if anything."""
        if self._profile is not None:
            self._profile.stop()
            self._profile.export_chrome_trace(str(self._path))
            self._profile = None
            if self._n_done != self._last:
                self._say(
                    f"the trace of profile.steps=[{self._first},{self._last}] ends after step {self._n_done}, as the "
                    f"run does: {self._path}"
                )
