"""The verb regenerate."""

from typing import TYPE_CHECKING

from dflash_exp.stop import StopSignals
from dflash_exp.verbs.verb import Verb, from_one_job

if TYPE_CHECKING:
    from dflash_exp.compose import Job


def regenerate(arguments: list[str]) -> int:
    """Have the target rewrite the assistant turns of conversations."""
    return from_one_job(arguments, "regenerate makes one folder", _rewrite)


def _rewrite(job: "Job") -> int:
    from dflash_exp.regenerating import regenerate as rewrite

    assert job.regeneration is not None, "composed with every job"
    return rewrite(job.regeneration, job.config, StopSignals())


VERB = Verb(
    "regenerate",
    "OVERRIDES",
    "conversations with the responses rewritten by the target, for prepare",
    (
        "dflash-exp regenerate regenerate.source=chats.jsonl regenerate.out=own regenerate.server=http://HOST:8000/v1",
        "dflash-exp regenerate target=hf target.path=DIR regenerate.source=chats.jsonl regenerate.out=own",
    ),
    regenerate,
)
