"""Who may import whom: the house's rules, read off every module's syntax, imports inside functions too."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dflash_exp"

MAY_SEE: dict[str, set[str]] = {
    "messages": set(),
    "options": set(),
    "suggest": set(),
    "architecture": set(),
    "distributed": set(),
    "optim": set(),
    "plan": {"messages", "plan"},
    "data": {"messages", "data"},
    "regenerate": {"regenerate", "data", "durable"},
    "served": {"served", "regenerate", "evaluation"},
    "begun": {"config", "durable"},
    "drafter": {"messages", "drafter"},
    "telemetry": {"messages", "telemetry"},
    "compare": {"messages", "compare"},
    "forwarded": set(),
    "target": {"messages", "architecture", "forwarded"},
    "layer_split": {"architecture"},
    "target_loading": {"target", "architecture", "layer_split"},
    "decode": {"messages"},
    "evaluation": {"messages", "decode", "stop"},
    "doctor": {"messages", "doctor", "drafter", "decode", "replay", "target"},
    "kept": set(),
    "feature_cache": {"messages", "durable", "forwarded"},
    "ranks": set(),
    "probe": {"messages", "data", "plan", "kept"},
    "replay": {"messages", "decode", "kept"},
    "trained": {"messages"},
    "stop": set(),
    "durable": set(),
    "between_steps": {"messages", "telemetry"},
    "pipeline.ring": set(),
    "pipeline.channel": {"pipeline.ring"},
    "pipeline.arena": {"messages"},
    "pipeline.watch": {"messages"},
    "pipeline.stages": {"messages"},
    "pipeline.supervisor": {"pipeline.channel", "pipeline.watch"},
    "pipeline.prefetch": {"messages", "pipeline.channel", "pipeline.stages", "pipeline.watch"},
    "pipeline.target_forward": {"messages", "pipeline.channel", "pipeline.stages", "pipeline.watch"},
    "pipeline.meeting": {"messages", "drafter"},
    "pipeline.launches": {"messages"},
    "pipeline.streams": {"messages", "pipeline.arena", "pipeline.launches"},
    "pipeline.drafter_train": {
        "messages",
        "drafter",
        "pipeline.channel",
        "pipeline.launches",
        "pipeline.meeting",
        "pipeline.stages",
        "pipeline.streams",
        "pipeline.watch",
    },
    "pipeline.line": {"messages", "pipeline"},
    "launch.launchers": set(),
    "launch.queue": set(),
    "launch.local": {"launch"},
    "launch.workers": {"launch"},
    "launch.slurm": {"launch"},
    "launch.code_copy": {"durable"},
    "launch.job": {"launch", "distributed", "rank", "stop", "submitted", "suggest"},
    "export": {"drafter"},
    "published": {"drafter", "export"},
    "checkpoint": {"drafter", "durable", "export"},
}
"""Rooms of the house with a rule, and the rooms that each may import from."""

NOT_IN_PLAN = {"torch", "transformers", "os", "io", "pathlib", "time", "datetime", "random", "secrets"}
CONFIGURATION = {"config", "cli", "compose", "hydra_errors", "door", "options"}
ONLY_IN = {
    "hydra": CONFIGURATION,
    "omegaconf": CONFIGURATION,
    "submitit": {"launch"},
    "wandb": {"telemetry", "compare"},
    "matplotlib": {"compare"},
    "httpx2": {"regenerate", "served"},
}
WITHOUT_HYDRA = ("experiment", "planning", "scoring", "server_scoring", "evaluation", "config")


def modules() -> dict[str, ast.Module]:
    """Every module's syntax by its name under `dflash_exp`; a package by its own."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return found


MODULES = modules()


def imported(module: str) -> Iterator[str]:
    """Full names of what a module imports, for the type checker or inside a function too."""
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{module}: imports are written in full"
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            inside = [name for name in named if name.removeprefix("dflash_exp.") in MODULES]
            yield from inside or [node.module]


def seen(module: str) -> set[str]:
    """Modules of the house that a module imports."""
    return {name.removeprefix("dflash_exp.") for name in imported(module) if name.startswith("dflash_exp.")}


def libraries(module: str) -> set[str]:
    """Top-level names of what a module imports from outside."""
    return {name.partition(".")[0] for name in imported(module)} - {"dflash_exp"}


def in_room(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


def reached(module: str) -> set[str]:
    """A module and all of the house that it imports, on any way."""
    found, new = {module}, {module}
    while new:
        new = {other for one in new for other in seen(one)} - found
        found |= new
    return found


@pytest.mark.parametrize("room", MAY_SEE)
def test_a_room_sees_only_the_rooms_it_may(room: str) -> None:
    inside = [module for module in MODULES if in_room(module, room)]
    assert inside, f"there is no {room}; take it off the list"
    for module in inside:
        beyond = {other for other in seen(module) if not any(in_room(other, allowed) for allowed in MAY_SEE[room])}
        assert not beyond, f"{module} must not import {sorted(beyond)}"


@pytest.mark.parametrize("module", [name for name in MODULES if in_room(name, "plan")])
def test_the_plan_knows_no_torch_files_clocks_or_global_random_numbers(module: str) -> None:
    assert not libraries(module) & NOT_IN_PLAN
    draws = [node for node in ast.walk(MODULES[module]) if isinstance(node, ast.Attribute) and node.attr == "random"]
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.Attribute) and node.value in draws:
            assert node.attr in {"Generator", "PCG64", "Philox", "SeedSequence"}, f"np.random.{node.attr} is global"


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_stays_in_its_rooms(library: str) -> None:
    inside = [module for module in MODULES if library in libraries(module)]
    strangers = [module for module in inside if not any(in_room(module, room) for room in ONLY_IN[library])]
    assert not strangers, f"{strangers} must not import {library}"


@pytest.mark.parametrize("module", WITHOUT_HYDRA)
def test_a_run_needs_no_hydra_on_any_way(module: str) -> None:
    met = {other: libraries(other) & {"hydra", "omegaconf", "submitit"} for other in reached(module)}
    assert not {other: names for other, names in met.items() if names}


def test_nothing_of_a_run_imports_what_made_the_embedded_files() -> None:
    users = [module for module in MODULES if any(in_room(other, "embedded") for other in seen(module))]
    assert all(in_room(module, "embedded") for module in users)


def test_every_module_says_what_it_is_in_its_first_line() -> None:
    for module, tree in MODULES.items():
        assert (ast.get_docstring(tree) or "").splitlines(), f"{module or 'dflash_exp'} needs a docstring"
