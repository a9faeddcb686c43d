"""vLLM and SGLang on loopback, as far as they tell of their drafting: scripted answers, and what they were asked."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="a \\"tiny\\" one"}} {drafts}.0
vllm:spec_decode_num_drafts_total{{engine="1",model_name="a \\"tiny\\" one"}} 100.0
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{{engine="0",model_name="a \\"tiny\\" one"}} 1.7960508845890813e+09
{positions}
vllm:generation_tokens_total{{engine="0",model_name="a \\"tiny\\" one"}} {generated}.0
vllm:generation_tokens_total{{engine="1",model_name="a \\"tiny\\" one"}} 2.5e+02
"""
POSITION = """\
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="a \\"tiny\\" one",position="{k}"}} {n}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="1",model_name="a \\"tiny\\" one",position="{k}"}} 30.0"""


@dataclass(frozen=True)
class Answer:
    """One continuation: how many drafted tokens each of its verify steps accepted."""

    accepted: tuple[int, ...]
    n_cut: int = 0
    """Accepted tokens beyond the end of the text."""
    lag: int = 0
    """How often /metrics is read before it counts this answer."""
    others: int = 0
    """Tokens that another request gets meanwhile, in one step that accepts nothing each."""

    @property
    def n_tokens(self) -> int:
        return 1 + sum(n + 1 for n in self.accepted) - self.n_cut


@dataclass
class Engine:
    """One server; `script` has the answer to the warm-up first."""

    owner: str
    script: Sequence[Answer]
    n_slots: int = 3
    speculates: bool = True
    key: str | None = None
    counts_usage: bool = True
    address: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    drafts: int = 7
    """Of what it served before, as the other counters."""
    at: list[int] = field(default_factory=lambda: [5, 4, 3, 2, 2, 2, 2])
    generated: int = 19
    late: list[list[Any]] = field(default_factory=list)

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.script[len(self.asked)]
        self.asked.append(body)
        self.late.append([answer.lag, answer])
        held: dict[str, Any] = {"choices": [{"text": "x" * answer.n_tokens, "finish_reason": "length"}]}
        if self.owner == "vllm":
            held["choices"][0]["token_ids"] = list(range(answer.n_tokens))
        elif self.speculates:
            histogram = [answer.accepted.count(n) for n in range(1 + max(answer.accepted))]
            held["sglext"] = {"spec_tokens_details": {"spec_correct_drafts_histogram": histogram}}
        return held | ({"usage": {"completion_tokens": answer.n_tokens}} if self.counts_usage else {})

    def metrics(self) -> str:
        for waiting in list(self.late):
            waiting[0] -= 1
            if waiting[0] < 0:
                self.late.remove(waiting)
                self._count(waiting[1])
        if not self.speculates:
            return f'vllm:generation_tokens_total{{engine="0"}} {self.generated}.0\n'
        positions = "\n".join(POSITION.format(k=k, n=self.at[k]) for k in range(self.n_slots))
        return METRICS.format(drafts=self.drafts, positions=positions, generated=self.generated)

    def _count(self, answer: Answer) -> None:
        self.drafts += len(answer.accepted) + answer.others
        self.generated += answer.n_tokens + answer.others
        self.at = [n + sum(one > k for one in answer.accepted) for k, n in enumerate(self.at)]


class Handler(BaseHTTPRequestHandler):
    """One connection to the server whose `engine` it is."""

    def do_GET(self) -> None:
        engine = self.server.engine  # type: ignore[attr-defined]
        listed = {"data": [{"id": "tiny", "owned_by": engine.owner}]}
        if self.path == "/metrics" and engine.owner == "vllm":
            self._give(200, engine.metrics().encode())
        else:
            self._give(*((200, json.dumps(listed).encode()) if self.path == "/v1/models" else (404, b"Not Found")))

    def do_POST(self) -> None:
        engine = self.server.engine  # type: ignore[attr-defined]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers.get("Authorization")
        if engine.key is not None and key != f"Bearer {engine.key}":
            self._give(401, f'{{"error": "no such key: {key}"}}'.encode())
        else:
            self._give(200, json.dumps(engine.complete(body)).encode())

    def _give(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@contextmanager
def serving(engine: Engine) -> Iterator[Engine]:
    """On a free port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    server.engine = engine  # type: ignore[attr-defined]
    engine.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()
