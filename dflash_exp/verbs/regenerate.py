"""The verb regenerate."""

from dflash_exp.launch.children import DONE
from dflash_exp.stop import StopSignals
from dflash_exp.suggest import ConfigError, one_line
from dflash_exp.verbs.verb import Verb


def regenerate(arguments: list[str]) -> int:
    """Have the target rewrite the assistant turns of conversations."""
    from dflash_exp.compose import compose_jobs

    jobs = compose_jobs(arguments)
    if not jobs:
        return DONE
    if jobs[0].in_sweep:
        raise ConfigError("regenerate makes one folder, got a sweep; leave out -m and sweeps=")
    from dflash_exp.regenerating import regenerate as rewrite

    job = jobs[0]
    assert job.regeneration is not None, "composed with every job"
    try:
        return rewrite(job.regeneration, job.config, StopSignals())
    except ValueError as error:
        raise ConfigError(one_line(str(error))) from error


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
