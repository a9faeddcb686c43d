"""A running server, asked for continuations and for what it accepts of its drafts."""
