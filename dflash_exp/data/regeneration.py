"""What `dflash-exp regenerate` was asked for: sources, who answers, how it is asked.

Plain values, checked once; nothing heavy is imported, since every verb's configuration is composed with these keys.
"""

import re
from dataclasses import dataclass

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SERVER = re.compile(r"https?://[^/@\s?#]+(/[^@\s?#]*)?")
CONVERSATIONS, ASKED, REPORT = "conversations.jsonl", "regenerate.json", "report.json"
"""In `regenerate.out`: the rows, what was asked for, what became of every row."""
JOURNAL = "rows.journal"
"""Beside them until all rows are done; not called .jsonl, so that nobody takes it for conversations."""


@dataclass(frozen=True)
class Regeneration:
    """Conversations, and how the target rewrites their assistant turns."""

    source: list[str] | None
    """As `prepare.source`."""
    out: str | None
    """The folder of conversations.jsonl and report.json."""
    server: str | None
    """Of an OpenAI-compatible endpoint, up to and with its /v1; None: the configured target, in this process."""
    model: str | None
    """What the server calls it; None: the only one that it serves."""
    api_key_env: str | None
    """The environment variable that holds the server's key; None: there is none. The key itself is never written."""
    concurrency: int
    """Conversations that the server is asked for at a time."""
    timeout_s: float
    """Of one request, from its beginning to the end of its answer."""
    retries: int
    """Of one request, after the first attempt."""
    first_wait_s: float
    """Before the first retry, doubled before each further one; a Retry-After that asks for more is given it."""
    batch: int
    """Conversations that the target in this process is asked for at a time."""
    temperature: float
    """0: greedy."""
    max_tokens: int
    """Of one turn; what is cut there is counted under the finish reason `length`."""
    seed: int
    last_turn_only: bool
    """Only the last assistant turn is rewritten; the others stay as they are."""

    def __post_init__(self) -> None:
        self._check_server()
        least = {"concurrency": 1, "retries": 0, "batch": 1, "max_tokens": 1, "seed": 0, "temperature": 0}
        for name, bound in least.items():
            if vars(self)[name] < bound:
                raise ValueError(f"regenerate.{name} must be >= {bound}, got {vars(self)[name]}; {bound} is the least")
        for name in ("timeout_s", "first_wait_s"):
            if not 0 < vars(self)[name] < float("inf"):
                raise ValueError(f"regenerate.{name} must be > 0 and finite, got {vars(self)[name]}; give seconds")

    def _check_server(self) -> None:
        if self.server is not None and not SERVER.fullmatch(self.server):
            raise ValueError(
                f"regenerate.server must be http://HOST:PORT/v1 or https://..., without user or query, got "
                f"{self.server if '@' not in self.server else 'one with @'}; a key belongs in regenerate.api_key_env"
            )
        if self.api_key_env is not None and not NAME.fullmatch(self.api_key_env):
            raise ValueError(
                "regenerate.api_key_env must be the name of an environment variable, got what is none; "
                "say regenerate.api_key_env=OPENAI_API_KEY, not the key"
            )
        if self.server is None and (self.model is not None or self.api_key_env is not None):
            raise ValueError(
                "regenerate.model and regenerate.api_key_env must be null without regenerate.server, got one of them; "
                "the target in this process is chosen by target=hf target.path=DIR"
            )
