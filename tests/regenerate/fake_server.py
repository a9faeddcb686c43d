"""A chat endpoint on loopback that answers as it is told, and notes what it was asked."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One answer; `hangs_s` before it is given."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hangs_s: float = 0.0


@dataclass
class Asked:
    """What the server was asked, in the order in which it was."""

    address: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    n_at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


Script = Callable[[dict[str, Any], int], Answer]
"""The body of a request, and how often its last message was asked before -> the answer."""


def said(content: str | None, finish_reason: str = "stop", **message: str) -> Answer:
    """A completion of three tokens."""
    choice = {"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish_reason}
    return Answer(body=json.dumps({"choices": [choice], "usage": {"completion_tokens": 3}}).encode())


def echo(body: dict[str, Any], _: int) -> Answer:
    """`<last message>!<number of messages>`."""
    return said(f"{body['messages'][-1]['content']}!{len(body['messages'])}")


class FakeServer(ThreadingHTTPServer):
    """On a free port."""

    daemon_threads, block_on_close = True, False

    def __init__(self, script: Script, models: tuple[str, ...]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.models = script, models
        self.asked = Asked(f"http://127.0.0.1:{self.server_port}/v1")

    def handle_error(self, *_: object) -> None:
        """A client that has gone."""

    @contextmanager
    def noted(self, body: dict[str, Any], key: str | None) -> Iterator[int]:
        """While a request is answered; how often the same was asked before."""
        asked = self.asked
        with asked.lock:
            before = sum(one["messages"] == body["messages"] for one in asked.bodies)
            asked.bodies.append(body)
            asked.at_s.append(time.monotonic())
            asked.keys.add(key)
            asked.n_at_once += 1
            asked.most_at_once = max(asked.most_at_once, asked.n_at_once)
        yield before
        with asked.lock:
            asked.n_at_once -= 1


class Handler(BaseHTTPRequestHandler):
    """One connection to a `FakeServer`."""

    server: FakeServer

    def do_GET(self) -> None:
        self._give(Answer(body=json.dumps({"data": [{"id": model} for model in self.server.models]}).encode()))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.noted(body, self.headers.get("Authorization")) as before:
            answer = self.server.script(body, before)
            time.sleep(answer.hangs_s)
        self._give(answer)

    def _give(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@contextmanager
def serving(script: Script, models: tuple[str, ...] = ("tiny",)) -> Iterator[Asked]:
    """A server with these models."""
    server = FakeServer(script, models)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server.asked
    finally:
        server.shutdown()
        server.server_close()
