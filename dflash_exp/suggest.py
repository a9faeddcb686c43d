"""What a user got wrong, in one line with the mend: nearest names, and the names that other frameworks use.

Strings in, strings out: no Hydra here, so that the console script can name a mistyped verb in milliseconds.
"""

import argparse
import io
from collections.abc import Collection
from contextlib import redirect_stderr
from difflib import get_close_matches

FOREIGN_NAMES = {
    "logger": "telemetry",
    "lr": "optim.lr",
    "max_steps": "steps",
    "num_epochs": "epochs",
    "grad_accum": "batches_per_step",
    "num_anchors": "drafter.anchors",
    "loss_decay_gamma": "loss.gamma",
    "target_model_path": "target.path",
}
"""What other frameworks call our keys."""


class ConfigError(ValueError):
    """The user's input or configuration is wrong. The message is one line: what, the rule, the value got, the mend."""


def did_you_mean(name: str, known: Collection[str], cutoff: float = 0.6) -> str:
    """`; did you mean `x`?` for the known name that is nearest, or nothing where none is near."""
    near = get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"; did you mean `{near[0]}`?" if near else ""


def unknown_option(group: str, option: str, options: Collection[str]) -> str:
    """The line for `interleave=strid_jitter`."""
    listed = ", ".join(sorted(options))
    return f"{group} has no option `{option}`{did_you_mean(option, options)} (options: {listed})"


def unknown_key(key: str, known: Collection[str]) -> str:
    """The line for `interleave.jiter=1`, given every dotted key there is.

    In this order: a foreign name, the same word at another place, the nearest sibling, the nearest key of all;
    where nothing is near, the siblings are listed.
    """
    parent, _, leaf = key.rpartition(".")
    siblings = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == parent}
    same_word = [other for other in known if other.rpartition(".")[2] == leaf]
    near = get_close_matches(leaf, siblings, n=1, cutoff=0.5)
    if key in FOREIGN_NAMES or leaf in FOREIGN_NAMES:
        mend = f"; did you mean `{FOREIGN_NAMES.get(key, FOREIGN_NAMES.get(leaf))}`?"
    elif len(same_word) == 1 or near:
        mend = f"; did you mean `{same_word[0] if len(same_word) == 1 else siblings[near[0]]}`?"
    else:
        mend = did_you_mean(key, known, cutoff=0.75) or _listed(parent, siblings)
    return f"there is no key `{key}`{mend}"


def _listed(parent: str, names: Collection[str]) -> str:
    if not names:
        return f"; `{parent}` takes no keys" if parent else ""
    return f"; the keys{' of ' + parent if parent else ''} are {', '.join(sorted(names))}"


def one_line(text: str) -> str:
    """A message of Hydra or OmegaConf without the lines that speak of its own inner state."""
    lines = [line.strip() for line in text.strip().splitlines()]
    said = [line for line in lines if not line.startswith(("full_key:", "object_type=", "reference_type="))]
    return " ".join(" ".join(said).split())


def parsed(parser: argparse.ArgumentParser, arguments: list[str], mend: str) -> argparse.Namespace:
    """The parsed arguments; raises ConfigError with the last line of what argparse would print, and the mend."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return parser.parse_intermixed_args(arguments)
    except SystemExit as stop:
        if not stop.code:
            raise  # --help, --version
        message = said.getvalue().rpartition("error: ")[2].strip()
        raise ConfigError(f"{message}; {mend}") from None
