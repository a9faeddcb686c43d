"""Conversations, their assistant turns rewritten by the target; the verb regenerate.

In: `Regeneration`, and the configured target where no server is named. Out: in `regenerate.out` `conversations.jsonl`,
`report.json` and an exit code. The folder says in `regenerate.json` what was asked for; the same command goes on with
the rows that are missing, failed ones too, another one is refused.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dflash_exp.begun import begun_alike
from dflash_exp.config import Config
from dflash_exp.console import LastingConsole
from dflash_exp.data.conversation import Conversation, Empty, Malformed, conversation
from dflash_exp.data.regeneration import ASKED, CONVERSATIONS, JOURNAL, REPORT, Regeneration
from dflash_exp.data.rows import values
from dflash_exp.data.sources import Source, chunks, find_sources, share_read
from dflash_exp.durable import write_whole
from dflash_exp.launch.children import DONE, FAILED, STOPPED
from dflash_exp.regenerate.kept import Kept
from dflash_exp.regenerate.report import Tally, document, lines
from dflash_exp.regenerate.rewriting import Failed, Rewriter, Rewriting, Row
from dflash_exp.regenerate.server import Lost, Server
from dflash_exp.stop import StopSignals
from dflash_exp.telemetry.input_progress import InputProgress

MATTER = ("temperature", "max_tokens", "seed", "last_turn_only")
"""Keys of `regenerate` that decide what is written; in this process `batch`, too."""


@dataclass(frozen=True)
class Job:
    """What is to be rewritten, found."""

    settings: Regeneration
    folder: Path
    sources: Sequence[Source]
    left_out_files: Sequence[str]

    def asked(self, by: object) -> dict[str, Any]:
        """All that decides what is written, as JSON holds it; `by` says who answers."""
        matter = (*MATTER, "batch") if self.settings.server is None else MATTER
        named = {name: value for name, value in asdict(self.settings).items() if name in matter}
        return {"regenerate": named, "by": by, "sources": [asdict(source) for source in self.sources]}


def regenerate(settings: Regeneration, config: Config, stop: StopSignals) -> int:
    """Rewrite, or go on with it. Raises ValueError, one line, for what the user got wrong."""
    job, console = _job(settings), LastingConsole()
    path = job.folder / ASKED
    # before a server is asked or a model is loaded
    is_begun = begun_alike(path, job.asked(_by_before(settings, path)), "regenerate")
    if is_begun and _is_finished(job.folder):
        console.say(f"{job.folder} is finished; to make it anew choose another regenerate.out, or remove it")
        return DONE
    with stop:
        rewriter, by = _server(settings) if settings.server is not None else _in_process(settings, config)
        if not begun_alike(path, job.asked(by), "regenerate"):
            job.folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(job.asked(by), indent=1) + "\n")
        with closing(Kept(job.folder)) as kept:
            if kept.n_bytes_cut:
                console.say(f"the last {kept.n_bytes_cut} bytes of {JOURNAL} are no whole row; that row is made again")
            return _rewrite(job, rewriter, kept, stop, console)


def _job(settings: Regeneration) -> Job:
    if not settings.source or not settings.out:
        key = "regenerate.out" if settings.source else "regenerate.source"
        raise ValueError(f"{key} must be given; say regenerate.source=FILE_OR_FOLDER regenerate.out=FOLDER")
    return Job(settings, Path(settings.out), *find_sources(settings.source, "regenerate.source"))


def _by_before(settings: Regeneration, path: Path) -> object:
    """Who answers where that is said, else who answered when the folder was begun; None where neither is known."""
    if settings.model is not None:
        return {"model": settings.model}
    return json.loads(path.read_text("utf-8"))["by"] if path.is_file() else None


def _is_finished(folder: Path) -> bool:
    """Whether all rows are done."""
    made = [folder / name for name in (REPORT, CONVERSATIONS)]
    if (folder / JOURNAL).exists() or not all(path.is_file() for path in made):
        return False
    report = json.loads(made[0].read_text("utf-8"))
    return report["complete"] and not report["failed"]


def _server(settings: Regeneration) -> tuple[Rewriter, object]:
    key = None if settings.api_key_env is None else os.environ.get(settings.api_key_env)
    if settings.api_key_env is not None and not key:
        raise ValueError("regenerate.api_key_env must name a variable that is set, got one that is not; export it")
    server = Server(settings, key)
    return server, {"model": server.model}


def _in_process(settings: Regeneration, config: Config) -> tuple[Rewriter, object]:
    from transformers.utils import logging as transformers_logging

    from dflash_exp.distributed import device_type, devices_in_a_row
    from dflash_exp.models import eos_ids, located, weights_fingerprint
    from dflash_exp.part_workers import Tokens, load_tokenizer
    from dflash_exp.regenerate.in_process import InProcess
    from dflash_exp.target_loading import load_model

    target = located(config.target)
    tokenizer = load_tokenizer(Tokens(target.path, target.trust_remote_code))
    if not isinstance(tokenizer.chat_template, str):
        raise ValueError(
            f"target.path must have a chat template, {target.path!r} does not; add chat_template.jinja, or name a "
            "regenerate.server"
        )
    transformers_logging.disable_progress_bar()
    model = load_model(target, devices_in_a_row(device_type(config.topology), target.layer_split))
    by = {
        "weights": weights_fingerprint(model),
        "dtype": target.dtype.value,
        "chat_template_sha256": hashlib.sha256(tokenizer.chat_template.encode()).hexdigest(),
    }
    return InProcess(settings, model, tokenizer, eos_ids(model, tokenizer)), by


def _rewrite(job: Job, rewriter: Rewriter, kept: Kept, stop: StopSignals, console: LastingConsole) -> int:
    tally, lost = Tally(), None

    def take(outcome: Rewriting | Failed) -> None:
        if isinstance(outcome, Failed):
            tally.failed.append(outcome)
        else:
            kept.add(outcome.record())

    with InputProgress(console, f"regenerate {job.folder}", time.monotonic) as progress:
        try:
            rewriter.rewrite(_rows(job, tally, kept, progress), take, lambda: stop.requested is not None)
        except Lost as error:
            lost = str(error)
    report = document(tally, kept, job.left_out_files)
    if report["complete"]:
        kept.assemble()
    write_whole(job.folder / REPORT, json.dumps(report, indent=1) + "\n")
    return _say(job, report, f"stopped ({stop.requested})" if lost is None else lost, lost is not None, console)


def _rows(job: Job, tally: Tally, kept: Kept, progress: InputProgress) -> Iterator[Row]:
    """Every conversation of the input; what is none is skipped, with the reason."""
    share, share_before = share_read(job.sources), 0.0
    for chunk in chunks(job.sources):
        read = list(values(chunk))
        for i, (where, value) in enumerate(read):
            progress.update(share_before + (share(chunk) - share_before) * i / len(read))
            number, tally.n_rows = tally.n_rows, tally.n_rows + 1
            try:
                yield Row(number, where, _conversation(value), number in kept)
            except (Malformed, Empty) as error:
                tally.skipped.append((where, str(error)))
        share_before = share(chunk)
    tally.is_read = True


def _conversation(value: object) -> Conversation:
    """Raises Malformed or Empty."""
    if isinstance(value, ValueError):
        raise value
    found = conversation(value)
    if not found.turns:
        raise Malformed("a row must have an assistant turn to rewrite, got a text")
    return found


def _say(job: Job, report: dict[str, Any], why: str, is_lost: bool, console: LastingConsole) -> int:
    """Say how it ended; the exit code for it."""
    for line in lines(report):
        console.say(line)
    if not report["complete"]:
        console.say(f"{why}; the same command goes on")
        return FAILED if is_lost else STOPPED
    if report["failed"]:
        console.say("the same command tries the failed rows again")
    made = job.folder / CONVERSATIONS
    console.say(f"wrote {made}; next: dflash-exp prepare prepare.source={made} prepare.out=STORE")
    return FAILED if report["failed"] else DONE
