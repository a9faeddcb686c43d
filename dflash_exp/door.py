"""The one door: a composed OmegaConf configuration in, a frozen `Config` out, or one line that says what is wrong.

A group's class is the dataclass its YAML names by `_target_`, but only of this package or of a module listed in
`extensions`: a configuration is not a way to run code. The classes found are put together into one schema, so that
OmegaConf checks every key and type in one merge; ranges are checked by the dataclasses themselves.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, make_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from dflash_exp.analysis import Analysis
from dflash_exp.config import GROUPS, Config, plain
from dflash_exp.data.preparation import Preparation
from dflash_exp.data.regeneration import Regeneration
from dflash_exp.launch.launchers import InTurn, Launcher
from dflash_exp.suggest import ConfigError, did_you_mean, one_line, unknown_key

BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
"""Hydra's own, where no option is chosen."""


def checked(composed: DictConfig | Mapping[str, Any]) -> Config:
    """The configuration, every key, type and range checked; raises ConfigError."""
    values = _resolved(composed)
    schema_class = _class_of(*_typed_fields(values))
    settled = _settled(values, schema_class)
    try:
        return Config(**vars(settled))
    except ValueError as error:
        raise ConfigError(one_line(str(error))) from error


def checked_analysis(values: Any) -> Analysis:
    """A sweep's block `analysis`, every key, type and range checked; raises ConfigError."""
    return _settled({"analysis": values}, _class_of(("analysis", Analysis))).analysis


def checked_preparation(values: Any) -> Preparation:
    """The block `prepare`, every key, type and range checked; raises ConfigError. One source needs no brackets."""
    return _settled({"prepare": _with_sources(values)}, _class_of(("prepare", Preparation))).prepare


def checked_regeneration(values: Any) -> Regeneration:
    """The block `regenerate`, likewise."""
    return _settled({"regenerate": _with_sources(values)}, _class_of(("regenerate", Regeneration))).regenerate


def _with_sources(values: Any) -> Any:
    """The same with a list where one source is named."""
    is_one = isinstance(values, dict) and isinstance(values.get("source"), str)
    return {**values, "source": [values["source"]]} if is_one else values


def checked_launcher(values: Any) -> Launcher:
    """What `hydra/launcher` has chosen, every key, type and range checked; raises ConfigError."""
    named = values.get("_target_") if isinstance(values, Mapping) else None
    if named == BASIC_LAUNCHER:
        return InTurn(stop_at_failure=False)
    kind = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in get_args(Launcher)}.get(str(named))
    if kind is None:
        raise ConfigError(
            f"hydra/launcher must be basic, debug, local or one of slurm's, got {named}; others know nothing of runs"
        )
    section = _class_of(("launcher", kind))
    given = {key: value for key, value in values.items() if key != "_target_"}
    return _settled({"hydra": {"launcher": given}}, _class_of(("hydra", section))).hydra.launcher


@cache
def _class_of(*typed_fields: Any) -> type:
    """A section with these fields, each (name, type) or (name, type, default); the same ones, the same class, whose
    schema is made once."""
    return make_dataclass("Section", typed_fields)


def _settled(values: dict[str, Any], schema_class: type) -> Any:
    """An object of the schema's class; raises ConfigError."""
    values = _prepared(values, schema_class, "")
    try:
        return OmegaConf.to_object(OmegaConf.merge(_schema(schema_class), values))
    except OmegaConfBaseException as error:
        raise ConfigError(_explained(error, schema_class)) from error
    except ValueError as error:
        raise ConfigError(one_line(str(error))) from error


def load(path: Path) -> Config:
    """The `Config` of a run's config.yaml, through the same door; raises ConfigError."""
    if not path.is_file():
        raise ConfigError(f"a run directory must hold config.yaml, got {path.parent}; give a directory made by train")
    try:
        composed = OmegaConf.load(path)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        got = f"what cannot be read ({one_line(str(error))})"
    else:
        if isinstance(composed, DictConfig) and composed:
            return checked(composed)
        got = "nothing" if not composed else "a list"
    raise ConfigError(f"{path} must hold a run's configuration, got {got}; put back what the run wrote")


def to_yaml(config: Config) -> str:
    """The text of config.yaml: what `load` reads back."""
    return OmegaConf.to_yaml(OmegaConf.create(plain(config)))


def _resolved(composed: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    try:
        values = OmegaConf.to_container(OmegaConf.create(dict(composed)), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {one_line(str(error))}") from error
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _typed_fields(values: dict[str, Any]) -> Iterator[Any]:
    """Name, type and perhaps default of every field of `Config`, a group's type being what its `_target_` names."""
    extensions = values.get("extensions")
    if not isinstance(extensions, list) or not all(isinstance(module, str) for module in extensions):
        raise ConfigError(f"extensions must be a list of modules, got {extensions!r}; say extensions=[my_package]")
    for field in fields(Config):
        in_group = field.name in GROUPS
        kind = _group_class(field.name, values.get(field.name), extensions) if in_group else field.type
        yield (field.name, kind) if field.default is MISSING else (field.name, kind, field.default)


def _group_class(group: str, node: object, extensions: list[str]) -> type:
    if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
        got = "null" if node is None else repr(node)
        raise ConfigError(f"{group} must be one of its options, got {got}; `dflash-exp train --help` lists them")
    module, _, name = node["_target_"].rpartition(".")
    allowed = ("dflash_exp", *extensions)
    if not any(module == package or module.startswith(f"{package}.") for package in allowed):
        raise ConfigError(
            f"{group}._target_ must lie in dflash_exp or in a module of extensions, got {node['_target_']}; "
            f"if you trust it, say extensions=[{module.partition('.')[0] or 'my_package'}]"
        )
    try:
        found = vars(import_module(module)).get(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # an import inside the module, not the module
        raise ConfigError(f"{group}._target_ must name a dataclass, got {node['_target_']}; {error}") from error
    if not (isinstance(found, type) and is_dataclass(found)):
        raise ConfigError(
            f"{group}._target_ must name a dataclass, got {node['_target_']}; is it spelt as in {module}?"
        )
    return found


def _prepared(values: dict[str, Any], schema_class: type, prefix: str) -> dict[str, Any]:
    """What OmegaConf would mistake or report without its key: `_target_`, enum members by value, no section, nan."""
    hints = get_type_hints(schema_class)
    prepared = {}
    for name, value in values.items():
        hint = hints.get(name)
        if is_dataclass(hint) and isinstance(hint, type):
            if not isinstance(value, dict):
                raise ConfigError(_wrong_type(f"{prefix}{name}", hint, value))
            prepared[name] = _prepared(value, hint, f"{prefix}{name}.")
        elif isinstance(value, (dict, list)) and not _takes(hint, type(value)):
            raise ConfigError(_wrong_type(f"{prefix}{name}", hint, value))
        elif isinstance(value, float) and math.isnan(value):
            raise ConfigError(f"{prefix}{name} must be a number, got nan")
        elif not (name == "_target_" and prefix.count(".") == 1):
            prepared[name] = _enum_name(hint, value)
    return prepared


def _takes(hint: Any, kind: type) -> bool:
    """Whether a value of this kind, list or dict, may be right; of a key that nobody knows something else is said."""
    if get_origin(hint) in (Union, UnionType):
        return any(_takes(part, kind) for part in get_args(hint))
    return hint in (None, Any, kind) or get_origin(hint) is kind


def _enum_name(hint: object, value: object) -> object:
    """OmegaConf knows an Enum's members by name; users and YAML by value."""
    if isinstance(hint, type) and issubclass(hint, Enum) and isinstance(value, str):
        return next((member.name for member in hint if member.value == value), value)
    return value


@cache
def _schema(schema_class: type) -> DictConfig:
    """A structured configuration that can be merged into, which those of frozen dataclasses refuse, nested ones too."""
    schema = OmegaConf.structured(schema_class)
    OmegaConf.set_readonly(schema, False)
    for name, hint in get_type_hints(schema_class).items():
        if is_dataclass(hint) and isinstance(hint, type):
            schema[name] = _schema(hint)
    return schema


def _explained(error: OmegaConfBaseException, schema_class: type) -> str:
    key = str(error.full_key).partition("[")[0]
    if isinstance(error, ConfigKeyError):
        return unknown_key(key, dotted_keys(schema_class))
    if isinstance(error, MissingMandatoryValue):
        return f"{key} must be given; say {key}=..."
    hint: Any = schema_class
    for name in key.split("."):
        hint = get_type_hints(hint).get(name) if is_dataclass(hint) else None
        if hint is None:
            return f"{key}: {one_line(str(error))}"
    return _wrong_type(key, hint, error.value)


def _wrong_type(key: str, hint: object, value: object) -> str:
    got = "null" if value is None else repr(value)
    near = ""
    if isinstance(hint, type) and issubclass(hint, Enum) and isinstance(value, str):
        near = did_you_mean(value, [str(member.value) for member in hint])
    return f"{key} must be {_described(hint)}, got {got}{near}"


def _described(hint: Any) -> str:
    """A type in a user's words: `a number or null`."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_described(part) for part in get_args(hint))
    if get_origin(hint) is list:
        return f"a list, each item {_described(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        return f"a section, each value {_described(get_args(hint)[1])}"
    if is_dataclass(hint):
        return "a section with the keys " + ", ".join(field.name for field in fields(hint))
    if issubclass(hint, Enum):
        return "one of " + ", ".join(str(member.value) for member in hint)
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "text", NoneType: "null"}
    return words[hint] if hint in words else str(hint.__name__)


def dotted_keys(schema_class: type, prefix: str = "") -> list[str]:
    """Every key of a schema, sections and groups too: `optim`, `optim.lr`."""
    keys = []
    for name, hint in get_type_hints(schema_class).items():
        keys.append(f"{prefix}{name}")
        if is_dataclass(hint) and isinstance(hint, type):
            keys.extend(dotted_keys(hint, f"{prefix}{name}."))
    return keys
