"""The console script `dflash-exp`: the table of its verbs, and its exit code.

In: the command line. Out: an exit code: 0 done, 1 the run failed, 2 the user's input is wrong (one line on stderr),
75 stopped on request and resumable. `--help` and a mistyped verb answer at once: nothing heavy is imported for them.
"""

import os
import sys

from dflash_exp.lasting import lasting_stderr, replace_what_stdout_lacks
from dflash_exp.launch.children import DONE, FAILED
from dflash_exp.plan.compiling import announced
from dflash_exp.suggest import ConfigError, did_you_mean
from dflash_exp.verbs import (
    bench,
    cancel,
    compare,
    evaluate,
    export,
    logs,
    plan,
    prepare,
    regenerate,
    resume,
    status,
    train,
)
from dflash_exp.verbs.verb import Verb, refused

VERBS = {
    verb.name: verb
    for verb in (
        train.VERB,
        plan.VERB,
        evaluate.VERB,
        compare.VERB,
        status.VERB,
        resume.VERB,
        cancel.VERB,
        logs.VERB,
        regenerate.VERB,
        prepare.VERB,
        export.VERB,
        bench.VERB,
    )
}

HELP = """\
usage: dflash-exp VERB ...

How batches reach a DFlash drafter, as a controlled experiment.

{verbs}

`dflash-exp VERB --help` shows what a verb takes; eval "$(dflash-exp -sc install=bash)" completes it.
exit codes: 0 done, 1 failed, 2 wrong input, 75 stopped on request and resumable"""


def main(arguments: list[str] | None = None) -> int:
    """Run a verb with its arguments (None: the process's own) and return the exit code."""
    replace_what_stdout_lacks()
    with lasting_stderr():
        try:
            return _answered(arguments)
        except ConfigError as error:
            return refused(error)
        except BrokenPipeError:  # who read it has gone: `dflash-exp logs RUN | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return DONE
        except KeyboardInterrupt:
            print("dflash-exp: interrupted; what the run had written stays in its directory", file=sys.stderr)
            if arguments is None:  # at once: neither threads nor a mirror's last words are waited for
                os._exit(FAILED)
            return FAILED


def _answered(arguments: list[str] | None) -> int:
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(_help(), flush=True)
        return DONE
    if name == "--version":
        print(_version())
        return DONE
    if name in ("-sc", "--shell-completion"):
        return _completed(rest)
    verb = _verb(name)
    if "-h" in rest or "--help" in rest:
        print(verb.help(), flush=True)
        return DONE
    with announced(lambda line: print(f"dflash-exp: {line}", file=sys.stderr)):
        return verb.run(rest)


def _verb(name: str) -> Verb:
    if name in VERBS:
        return VERBS[name]
    mend = did_you_mean(name, VERBS) or f"; the verbs are {', '.join(VERBS)}"
    if "=" in name:
        mend = f"; overrides follow a verb: dflash-exp train {name}"
    raise ConfigError(f"there is no verb `{name}`{mend}")


def _completed(arguments: list[str]) -> int:
    """Answer the shell: a verb where one is due, else what Hydra completes once the verb is taken off the line."""
    line = os.environ.get("COMP_LINE", "")
    script, _, behind = line.partition(" ")
    _verb_typed, space, behind = behind.partition(" ")
    if line and not space:
        print(" ".join(VERBS))
        return DONE
    if line:
        os.environ["COMP_LINE"] = f"{script} {behind}"
        os.environ["COMP_POINT"] = str(len(os.environ["COMP_LINE"]))
    from dflash_exp.compose import compose_jobs

    compose_jobs(["-sc", *arguments])
    return DONE


def _version() -> str:
    from importlib.metadata import version

    return version("dflash-exp")


def _help() -> str:
    verbs = [f"  {verb.name + ' ' + verb.takes:<22}{verb.does}" for verb in VERBS.values()]
    return HELP.format(verbs="\n".join(verbs))


if __name__ == "__main__":
    sys.exit(main())
