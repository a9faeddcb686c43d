"""Conversations whose assistant turns are rewritten by the target."""
