"""Raw conversations to a tokenised store, by several processes; the verb prepare.

In: `Preparation`, the target whose tokenizer and template are taken, a seed. Out: a store in `prepare.out`, and an exit
code. While it is made, the folder holds `prepare.json`, what was asked for, and `parts/`, one for each chunk of the
input: the same command goes on from those that are there, another one is refused.
"""

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_exp.begun import begun_alike
from dflash_exp.console import LastingConsole
from dflash_exp.data.assemble import Store, assemble
from dflash_exp.data.part import Recipe, is_whole, part_path
from dflash_exp.data.preparation import Preparation
from dflash_exp.data.report import document, lines, preview
from dflash_exp.data.sources import CHUNK_BYTES, CHUNK_ROWS, Chunk, Source, chunks, find_sources, share_read
from dflash_exp.data.store import TooLong, read_split
from dflash_exp.data.template import Encoder
from dflash_exp.durable import remove_unfinished, write_whole
from dflash_exp.launch.children import DONE, STOPPED
from dflash_exp.models import known_shape, located
from dflash_exp.part_workers import PartMaker, Tokens, load_tokenizer, made
from dflash_exp.stop import StopSignals
from dflash_exp.target import TargetConfig
from dflash_exp.telemetry.input_progress import InputProgress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ASKED, PARTS, MANIFEST = "prepare.json", "parts", "manifest.json"
NO_MATTER = ("workers", "out", "source")
"""Keys of `prepare` that may differ when it goes on; the sources are compared file by file."""


@dataclass(frozen=True)
class Job:
    """A store to be made, everything found and loaded."""

    settings: Preparation
    folder: Path
    sources: Sequence[Source]
    left_out_files: Sequence[str]
    tokens: Tokens
    tokenizer: "PreTrainedTokenizerBase"
    vocab_size: int
    seed: int


def prepare(settings: Preparation, target: TargetConfig, seed: int, stop: StopSignals) -> int:
    """Make the store, or go on with it. Raises ValueError, one line, for what the user got wrong."""
    job, console = _job(settings, target, seed), LastingConsole()
    if (job.folder / MANIFEST).is_file() and begun_alike(job.folder / ASKED, _asked(job), "prepare"):
        console.say(f"{job.folder} is finished; to make it anew choose another prepare.out, or remove it")
        return DONE
    _begin(job)
    with stop, InputProgress(console, f"prepare {job.folder}", time.monotonic) as progress:
        n_parts = _make_parts(job, stop, progress)
    if n_parts is None:
        console.say(f"stopped ({stop.requested}); the same command goes on")
        return STOPPED
    _finish(job, n_parts, console)
    return DONE


def _job(settings: Preparation, target: TargetConfig, seed: int) -> Job:
    if not settings.source or not settings.out:
        key = "prepare.out" if settings.source else "prepare.source"
        raise ValueError(f"{key} must be given; say prepare.source=FILE_OR_FOLDER prepare.out=STORE")
    sources, left_out_files = find_sources(settings.source)
    target = located(target)
    tokens = Tokens(target.path, target.trust_remote_code)
    tokenizer = load_tokenizer(tokens)
    Encoder(tokenizer, settings.last_turn_only).check()
    shape = known_shape(target) if (Path(target.path) / "config.json").is_file() else None
    vocab_size = len(tokenizer) if shape is None else shape.vocab_size
    return Job(settings, Path(settings.out), sources, left_out_files, tokens, tokenizer, vocab_size, seed)


def _asked(job: Job) -> dict[str, Any]:
    """All that decides what is in the store, as JSON holds it."""
    tokenizer: Any = job.tokenizer
    said = f"{tokenizer.backend_tokenizer.to_str()}{tokenizer.chat_template}{tokenizer.special_tokens_map}"
    return {
        "prepare": {name: value for name, value in asdict(job.settings).items() if name not in NO_MATTER},
        "target": {"tokenizer_sha256": hashlib.sha256(said.encode()).hexdigest(), "vocab_size": job.vocab_size},
        "seeds": {"data": job.seed},
        "chunks": {"bytes": CHUNK_BYTES, "rows": CHUNK_ROWS},
        "sources": [asdict(source) for source in job.sources],
    }


def _begin(job: Job) -> None:
    """A folder that says what was asked for before the first part is made."""
    alike = begun_alike(job.folder / ASKED, _asked(job), "prepare")
    (job.folder / PARTS).mkdir(parents=True, exist_ok=True)
    remove_unfinished(job.folder)
    remove_unfinished(job.folder / PARTS)
    if not alike:
        write_whole(job.folder / ASKED, json.dumps(_asked(job), indent=1) + "\n")


def _make_parts(job: Job, stop: StopSignals, progress: InputProgress) -> int | None:
    """How many parts there are in the end; None where a stop came first. Parts that are whole are not made again."""
    parts, n_parts = job.folder / PARTS, 0

    def missing() -> Iterator[Chunk]:
        nonlocal n_parts
        for chunk in chunks(job.sources):
            n_parts = chunk.index + 1
            if not is_whole(part_path(parts, chunk.index)):
                yield chunk

    make = PartMaker(parts, job.tokens, Recipe(job.settings, job.vocab_size))
    n_workers = job.settings.workers or n_cores()
    share = share_read(job.sources)
    for chunk in made(make, missing(), n_workers, lambda: stop.requested is not None):
        progress.update(share(chunk))
    return None if stop.requested else n_parts


def n_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _finish(job: Job, n_parts: int, console: LastingConsole) -> None:
    parts = job.folder / PARTS
    tally = assemble(Store(job.folder, parts, n_parts, job.vocab_size, job.settings, job.seed))
    write_whole(job.folder / "report.json", json.dumps(document(tally, job.left_out_files), indent=1) + "\n")
    tokenizer: Any = job.tokenizer
    shown = preview(read_split(job.folder, "train", None, TooLong.error), tokenizer.decode)
    write_whole(job.folder / "preview.txt", shown + "\n")
    shutil.rmtree(parts)
    for line in [*lines(tally, job.left_out_files), "", shown, "", f"wrote {job.folder}"]:
        console.say(line)
