"""Another program's OpenAI-compatible server on loopback, for as long as a test asks it."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen


@contextmanager
def serving(
    command: Callable[[str], Sequence[str | Path]],
    log: Path,
    start_s: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Its address once it lists its models; `command` takes a free port, `log` what it prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with log.open("wb") as said:
        server = subprocess.Popen(command(port), stdout=said, stderr=said, env=environment)
    try:
        deadline = time.monotonic() + start_s
        while not _answers(f"http://127.0.0.1:{port}/v1/models"):
            on_time = server.poll() is None and time.monotonic() < deadline
            assert on_time, f"the server did not start: {log.read_text()[-3000:]}"
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):
            return True
    except (URLError, TimeoutError, ConnectionError):
        return False
