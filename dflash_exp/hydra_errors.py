"""What Hydra and OmegaConf complain of, as one line: what, the rule, the value got, what to do.

In: their exceptions, and the overrides that the user typed. Out: ConfigError.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dflash_exp.options import CONFIG_NAME
from dflash_exp.suggest import ConfigError, one_line, unknown_key, unknown_option


@contextmanager
def one_line_errors(loader: ConfigLoader, overrides: list[str]) -> Iterator[None]:
    """Whatever Hydra and OmegaConf raise within, as ConfigError."""
    try:
        yield
    except MissingConfigException as error:
        group, _, option = (error.missing_cfg_file or "").rpartition("/")
        options = error.options or loader.get_group_options(group)
        if not options or not group:
            raise ConfigError(one_line(str(error))) from error
        raise ConfigError(unknown_option(group, option, options)) from error
    except OverrideParseException as error:
        written = error.override or "an override"
        raise ConfigError(
            f"`{written}` cannot be read: {_grammar(error)}; write key=value, quoted for the shell"
        ) from error
    except ValueError as error:
        if not str(error).startswith("Config group override"):
            raise
        raise ConfigError(f"{one_line(str(error))}; a group takes one of its options") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explained(error, loader, overrides)) from error


def _grammar(error: OverrideParseException) -> str:
    return "there is no `=`" if "missing EQUAL" in error.message else one_line(error.message.partition("\nSee")[0])


def _explained(error: Exception, loader: ConfigLoader, overrides: list[str]) -> str:
    unknown = re.search(r"Could not override '([^']*)'", str(error))
    if unknown:
        choices = [override for override in overrides if loader.get_group_options(override.partition("=")[0])]
        composed = OmegaConf.to_container(
            loader.load_configuration(CONFIG_NAME, choices, RunMode.MULTIRUN), resolve=False
        )
        assert isinstance(composed, dict)
        if not unknown[1].startswith("hydra"):
            del composed["hydra"]
        return unknown_key(unknown[1], _dotted_keys(composed))
    merged = re.match("Error merging override (([^=]*)=.*)", str(error), flags=re.DOTALL)
    if merged:
        right = "a list, [a,b]" if "object_type=list" in str(_first_cause(error)) else "a section, {key: value}"
        return f"{merged[2]} must be {right}, got `{one_line(merged[1])}`; write it as its file in conf/ does"
    if str(error).startswith("Ambiguous value"):
        return f"{one_line(str(error).splitlines()[0])}; to sweep over it add -m, for a list write key=[a,b]"
    return one_line(str(error))


def _first_cause(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else _first_cause(error.__cause__)


def _dotted_keys(values: Mapping[Any, Any], prefix: str = "") -> list[str]:
    keys = []
    for name, value in values.items():
        keys.append(f"{prefix}{name}")
        if isinstance(value, Mapping):
            keys.extend(_dotted_keys(value, f"{prefix}{name}."))
    return [key for key in keys if not key.endswith("_target_")]
