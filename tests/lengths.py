"""How long soaks and simulations are: short in every run of the tests, whole with `FULL_TESTS=1`."""

import os
from typing import TypeVar

Length = TypeVar("Length")


def full_or(whole: Length, short: Length) -> Length:
    """What is claimed, or what is checked every time."""
    return whole if os.environ.get("FULL_TESTS") == "1" else short
