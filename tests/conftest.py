"""For all tests: Hypothesis without a clock, and no word of kernels being compiled."""

from contextlib import nullcontext

import pytest
from hypothesis import settings

from dflash_exp import cli

# A slow machine, or kernels that load in the first example, are no failures.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def compiled_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether kernels must be compiled depends on what ran before; tests/plan/test_compiling.py asks new processes."""
    monkeypatch.setattr(cli, "announced", lambda say: nullcontext())
