"""Hypothesis without a clock: a slow machine, or kernels that load in the first example, are no failures."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
