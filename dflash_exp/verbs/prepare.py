"""The verb prepare."""

from dflash_exp.launch.children import DONE
from dflash_exp.stop import StopSignals
from dflash_exp.suggest import ConfigError, one_line
from dflash_exp.verbs.verb import Verb


def prepare(arguments: list[str]) -> int:
    """Make a store of raw conversations."""
    from dflash_exp.compose import compose_jobs

    jobs = compose_jobs(arguments)
    if not jobs:
        return DONE
    if jobs[0].in_sweep:
        raise ConfigError("prepare makes one store, got a sweep; leave out -m and sweeps=")
    from dflash_exp.preparing import prepare as make_store

    job = jobs[0]
    assert job.preparation is not None, "composed with every job"
    try:
        return make_store(job.preparation, job.config.target, job.config.seeds.data, StopSignals())
    except ValueError as error:
        raise ConfigError(one_line(str(error))) from error


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
