"""A W&B server on the loopback device: what the real client needs for runs, resume, alerts, files and artifacts.

It keeps what it was sent, and can be slow or refuse. Enough for wandb 0.31, and no more: an operation that it does not
know is answered with nothing and kept in `unknown`.
"""

import gzip
import json
import re
import threading
import zlib
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlparse

KEY = "local-" + "0123456789" * 4
"""What opens this server, and nothing else."""
PROJECT = {"id": "P", "internalId": "1", "name": "dflash", "entity": {"id": "E", "name": "me"}, "entityName": "me"}

Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""Variables of an operation -> its `data`."""


@dataclass
class FakeRun:
    """One run, as its client has told it."""

    name: str
    display_name: str = ""
    group: str = ""
    job_type: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    preempting: bool = False
    n_sessions: int = 0


@dataclass
class FakeArtifact:
    """One version of an artifact."""

    name: str
    kind: str
    aliases: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    committed: bool = False


class FakeWandb:
    """A context manager. `status` and `delay_s` are for requests whose path ends with `troubled`."""

    def __init__(self, status: int = 200, delay_s: float = 0.0, troubled: str = "") -> None:
        self.status, self.delay_s, self.troubled = status, delay_s, troubled
        self.runs: dict[str, FakeRun] = {}
        self.artifacts: list[FakeArtifact] = []
        self.alerts: list[tuple[str, str]] = []
        self.files: dict[str, bytes] = {}
        self.n_requests = 0
        self.unknown: list[str] = []
        self._closed = threading.Event()
        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler_for(self))
        self._httpd.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._httpd.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._httpd.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._httpd.shutdown()
        self._httpd.server_close()

    def trouble(self, path: str) -> int:
        """Wait as long as such a request waits here, and say with which status it is answered."""
        self.n_requests += 1
        if not path.endswith(self.troubled):
            return 200
        self._closed.wait(self.delay_s)
        return self.status

    def file_stream(self, name: str, sent: dict[str, Any]) -> None:
        """Take lines of a run's history and summary, and how it ended."""
        run = self.runs[name]
        files = sent.get("files") or {}
        if "wandb-history.jsonl" in files:
            chunk = files["wandb-history.jsonl"]
            lines = [json.loads(line) for line in chunk["content"]]
            run.history[chunk["offset"] : chunk["offset"] + len(lines)] = lines
        if "wandb-summary.json" in files:
            run.summary = json.loads(files["wandb-summary.json"]["content"][-1])
        run.preempting = run.preempting or bool(sent.get("preempting"))
        if sent.get("complete"):
            run.exit_code = sent["exitcode"]

    def graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Answer by the operation's name; what it selects is never parsed."""
        found = re.search(r"\b(?:query|mutation)\s+(\w+)", query)
        operation = found[1] if found else query
        answers = self.answers()
        if operation not in answers:
            self.unknown.append(operation)
            return {}
        return answers[operation](variables)

    def answers(self) -> dict[str, Answer]:
        """What is known here, by the operation's name."""
        return {
            "RunResumeStatus": lambda sent: {"model": {**PROJECT, "bucket": self.bucket(sent["name"])}},
            "UpsertBucket": self._upsert_run,
            "CreateRunFiles": self._run_files,
            "NotifyScriptableRunAlert": self._alert,
            "Viewer": lambda _: {"viewer": {"id": "V", "entity": "me", "username": "me", "teams": {"edges": []}}},
            "ArtifactType": lambda _: {"project": {"artifact": None}},
            "CreateArtifact": self._create_artifact,
            "CreateArtifactManifest": self._manifest,
            "CreateArtifactFiles": self._artifact_files,
            "CommitArtifact": self._commit_artifact,
            "ArtifactByID": self._artifact_by_id,
        }

    def _upsert_run(self, sent: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.setdefault(sent["name"], FakeRun(sent["name"]))
        run.n_sessions += sent.get("displayName") is not None
        run.display_name = sent.get("displayName") or run.display_name
        run.group = sent.get("groupName") or run.group
        run.job_type = sent.get("jobType") or run.job_type
        run.tags = sent.get("tags") or run.tags
        run.config |= {key: entry["value"] for key, entry in json.loads(sent.get("config") or "{}").items()}
        return {"upsertBucket": {"bucket": self.bucket(run.name), "inserted": True}}

    def bucket(self, name: str) -> dict[str, Any] | None:
        """A run as GraphQL gives it."""
        if name not in self.runs:
            return None
        run = self.runs[name]
        return {
            "id": b64encode(f"Run:v1:{name}".encode()).decode(),
            "name": name,
            "displayName": run.display_name,
            "project": PROJECT,
            "config": json.dumps({key: {"value": value} for key, value in run.config.items()}),
            "historyLineCount": len(run.history),
            "eventsLineCount": 0,
            "logLineCount": 0,
            "historyTail": json.dumps([json.dumps(line) for line in run.history[-1:]]),
            "eventsTail": "[]",
            "summaryMetrics": json.dumps(run.summary),
            "wandbConfig": json.dumps({"t": 1}),
            "tags": run.tags,
        }

    def _run_files(self, sent: dict[str, Any]) -> dict[str, Any]:
        files = [{"name": file, "uploadUrl": f"{self.url}/storage/{sent['run']}/{file}"} for file in sent["files"]]
        return {"createRunFiles": {"runID": "R", "uploadHeaders": [], "files": files}}

    def _alert(self, sent: dict[str, Any]) -> dict[str, Any]:
        self.alerts.append((sent["title"], sent["text"]))
        return {"notifyScriptableRunAlert": {"success": True}}

    def _create_artifact(self, sent: dict[str, Any]) -> dict[str, Any]:
        told = sent["input"]
        aliases = [alias["alias"] for alias in told["aliases"]]
        self.artifacts.append(FakeArtifact(told["artifactCollectionName"], told["artifactTypeName"], aliases))
        made = {"id": str(len(self.artifacts) - 1), "state": "PENDING", "artifactSequence": {"latestArtifact": None}}
        return {"createArtifact": {"artifact": made}}

    def _manifest(self, sent: dict[str, Any]) -> dict[str, Any]:
        manifest = {"id": "M", "file": self._upload_of(sent["artifactID"], "manifest")}
        return {"createArtifactManifest": {"artifactManifest": manifest}}

    def _artifact_files(self, sent: dict[str, Any]) -> dict[str, Any]:
        edges = [{"node": self._upload_of(file["artifactID"], file["name"])} for file in sent["input"]["artifactFiles"]]
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def _upload_of(self, artifact: str, file: str) -> dict[str, Any]:
        place = {"uploadUrl": f"{self.url}/storage/artifact/{artifact}/{file}", "uploadHeaders": []}
        return {"id": file, "name": file, "displayName": file, "artifact": {"id": artifact}, **place}

    def _commit_artifact(self, sent: dict[str, Any]) -> dict[str, Any]:
        artifact, place = self.artifacts[int(sent["artifactID"])], f"artifact/{sent['artifactID']}/"
        kept = {name.removeprefix(place): body for name, body in self.files.items() if name.startswith(place)}
        artifact.files = {name: body for name, body in kept.items() if name != "manifest"}
        artifact.committed = True
        return {"commitArtifact": {"artifact": {"id": sent["artifactID"], "digest": "d"}}}

    def _artifact_by_id(self, sent: dict[str, Any]) -> dict[str, Any]:
        artifact = self.artifacts[int(sent["id"])]
        collection = {"__typename": "ArtifactSequence", "name": artifact.name, "project": PROJECT}
        aliases = [{"id": alias, "alias": alias, "artifactCollection": collection} for alias in artifact.aliases]
        described = {"artifactSequence": collection, "artifactType": {"name": artifact.kind}, "aliases": aliases}
        numbers = {"versionIndex": 0, "size": 0, "fileCount": len(artifact.files), "ttlDurationSeconds": -2}
        times = {"createdAt": "2026-01-01T00:00:00", "updatedAt": "2026-01-01T00:00:00", "ttlIsInherited": False}
        nothing = {"description": None, "metadata": "{}", "tags": [], "historyStep": None, "commitHash": "c"}
        state = {"id": sent["id"], "state": "COMMITTED", "digest": "d", "digestAlgorithm": "MANIFEST_MD5"}
        return {"artifact": {**state, **described, **numbers, **times, **nothing}}


def handler_for(fake: FakeWandb) -> type[BaseHTTPRequestHandler]:
    """The request handler of one server: http.server makes one for each connection, from a class."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:  # the client drops idle connections
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on the terminal."""

        def do_GET(self) -> None:
            self._answer({})

        def do_PUT(self) -> None:
            fake.files[unquote(urlparse(self.path).path).removeprefix("/storage/")] = self._body()
            self._answer({})

        def do_POST(self) -> None:
            path, body = urlparse(self.path).path, self._body()
            status = fake.trouble(path)
            stream = re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", path)
            if status != 200:
                self._answer({"errors": [{"message": "no"}]}, status)
            elif stream:
                fake.file_stream(unquote(stream[1]), json.loads(body))
                self._answer({"exitcode": None, "limits": {}})
            elif path == "/graphql":
                sent = json.loads(body)
                self._answer({"data": fake.graphql(sent["query"], sent.get("variables") or {})})
            else:
                fake.unknown.append(path)
                self._answer({})

        def _body(self) -> bytes:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            encoding = self.headers.get("content-encoding")
            return {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(encoding or "", bytes)(body)

        def _answer(self, answer: dict[str, Any], status: int = 200) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
