"""The loopback W&B server with what is read and what reports are made by: runs of a group, their history, views."""

import json
from typing import Any

from tests.telemetry.fake_wandb import PROJECT, Answer, FakeRun, FakeWandb

NO_MORE = {"endCursor": None, "hasNextPage": False}


class FakeWandbApi(FakeWandb):
    """Its reports are what the client has sent, in their order."""

    def __init__(self, status: int = 200, delay_s: float = 0.0, troubled: str = "") -> None:
        super().__init__(status, delay_s, troubled)
        self.reports: list[dict[str, Any]] = []

    def answers(self) -> dict[str, Answer]:
        return super().answers() | {
            "GetDefaultEntity": lambda _: {"viewer": {"id": "V", "entity": "me"}},
            "Runs": self._runs,
            "RunHistoryKeys": lambda sent: _of_run(historyKeys={"lastStep": len(self._history(sent["name"])) - 1}),
            "RunParquetHistory": lambda sent: _of_run(
                parquetHistory={"parquetUrls": [], "liveData": self._history(sent["runName"])}
            ),
            "HistoryPage": lambda sent: _of_run(
                history=[json.dumps(row) for row in self._history(sent["run"])[sent["minStep"] : sent["maxStep"]]]
            ),
            "GetProjects": lambda _: {"models": {"edges": [{"cursor": "c", "node": _project()}], "pageInfo": NO_MORE}},
            "ProjectInternalId": lambda _: {"project": PROJECT},
            "upsertView": self._upsert_view,
        }

    def spec(self) -> dict[str, Any]:
        """Of the only report."""
        (report,) = self.reports
        return json.loads(report["spec"])

    def _history(self, name: str) -> list[dict[str, Any]]:
        return self.runs[name].history

    def _runs(self, sent: dict[str, Any]) -> dict[str, Any]:
        """All in one page; the only filter is by group."""
        wanted = json.loads(sent["filters"])["group"]
        found = [run for run in self.runs.values() if run.group == wanted]
        edges = [{"node": self._node(run), "cursor": run.name} for run in found]
        runs = {"edges": edges, "pageInfo": NO_MORE}
        return {"project": {"internalId": "1", "runCount": len(found), "readOnly": False, "runs": runs}}

    def _node(self, run: FakeRun) -> dict[str, Any]:
        state = {None: "running", 0: "finished"}.get(run.exit_code, "failed")
        times = {"createdAt": "2026-01-01T00:00:00", "heartbeatAt": "2026-01-01T00:00:00"}
        nothing = dict.fromkeys(("sweepName", "commit", "description", "notes", "historyKeys"))
        labels = {"state": state, "group": run.group, "jobType": run.job_type, "projectId": "1", "readOnly": False}
        user = {"name": "me", "username": "me"}
        return {**(self.bucket(run.name) or {}), **labels, **times, **nothing, "user": user, "systemMetrics": "{}"}

    def _upsert_view(self, sent: dict[str, Any]) -> dict[str, Any]:
        self.reports.append(sent)
        named = {key: sent[key] for key in ("type", "name", "displayName", "description", "spec")}
        project = {"id": "P", "name": sent["projectName"], "entityName": sent["entityName"]}
        times = {"createdAt": "2026-01-01T00:00:00", "updatedAt": "2026-01-01T00:00:00"}
        return {"upsertView": {"inserted": True, "view": {"id": "Vmlldzox", "project": project, **named, **times}}}


def _of_run(**fields: Any) -> dict[str, Any]:
    return {"project": {"run": fields}}


def _project() -> dict[str, Any]:
    return {"id": "P", "name": "dflash", "entityName": "me", "createdAt": "2026", "isBenchmark": False, "user": None}
