"""The verb prepare."""

from typing import TYPE_CHECKING

from dflash_exp.stop import StopSignals
from dflash_exp.verbs.verb import Verb, from_one_job

if TYPE_CHECKING:
    from dflash_exp.compose import Job


def prepare(arguments: list[str]) -> int:
    """Make a store of raw conversations."""
    return from_one_job(arguments, "prepare makes one store", _make)


def _make(job: "Job") -> int:
    from dflash_exp.preparing import prepare as make_store

    assert job.preparation is not None, "composed with every job"
    return make_store(job.preparation, job.config.target, job.config.seeds.data, StopSignals())


VERB = Verb(
    "prepare",
    "OVERRIDES",
    "raw conversations to a tokenised store, with the target's own chat template",
    (
        "dflash-exp prepare prepare.source=chats.jsonl prepare.out=store",
        "dflash-exp prepare target=hf target.path=DIR 'prepare.source=[data/*.parquet,b.jsonl.gz]' prepare.out=store",
    ),
    prepare,
)
