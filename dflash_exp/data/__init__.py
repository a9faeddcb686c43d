"""Conversations as tokens: the store and the collator."""
