"""A function's text is cut in two and nothing of it is lost: context, signature and docstring ask, the body answers."""

import textwrap

import pytest

from dflash_exp.embedded.corpus import Exchange, Function, exchange, functions_of, split_of

SOURCE = '''\
"""A module."""
import os


def one_line(): return 1


@decorated
def documented(a, b):
    """What it does.

    And more.
    """
    # why
    c = a + b
    return c


class Thing(Base):
    """A class."""

    size = 3

    async def method(
        self, text="x"
    ):
        @inner
        def nested():
            return 2
        return nested


    def only_a_docstring(self):
        """Nothing else."""
'''
LINES: list[str] = [*SOURCE.split("\n")]


def found() -> dict[str, Function]:
    """The functions of SOURCE by the name in their `def` line."""
    by_name = {}
    for function in functions_of("folder/source.py", SOURCE):
        line = next(line for line in LINES[function.start :] if "def " in line)
        by_name[line.partition("def ")[2].partition("(")[0]] = function
    return by_name


def own_text(function: Function) -> str:
    return textwrap.dedent("\n".join(LINES[function.start : function.end]) + "\n")


def test_functions_and_methods_with_a_body_on_lines_of_its_own_are_found_in_the_order_of_the_file() -> None:
    assert list(found()) == ["documented", "method"]


@pytest.mark.parametrize("name", ["documented", "method"])
def test_prompt_and_response_together_are_the_source(name: str) -> None:
    function = found()[name]
    asked = exchange(LINES, function, function.start)
    assert asked.prompt + asked.response == own_text(function)
    assert asked.prompt.startswith(("@decorated\ndef documented", "async def method"))


def test_the_docstring_asks_and_the_comment_behind_it_answers() -> None:
    function = found()["documented"]
    assert exchange(LINES, function, function.start) == Exchange(
        '@decorated\ndef documented(a, b):\n    """What it does.\n\n    And more.\n    """\n',
        "    # why\n    c = a + b\n    return c\n",
    )


def test_a_decorator_of_the_first_statement_belongs_to_the_body() -> None:
    function = found()["method"]
    assert exchange(LINES, function, function.start).response.startswith("    @inner\n    def nested():\n")


def test_with_context_the_prompt_begins_at_an_earlier_definition_and_the_response_stays() -> None:
    function = found()["method"]
    assert [LINES[line] for line in function.openings] == [
        "def one_line(): return 1", "@decorated", "class Thing(Base):",
    ]  # fmt: skip
    asked = exchange(LINES, function, function.openings[1])
    assert asked.prompt + asked.response == "\n".join(LINES[function.openings[1] : function.end]) + "\n"
    assert asked.prompt.startswith("@decorated\ndef documented")
    bare = exchange(LINES, function, function.start).response
    assert textwrap.dedent(asked.response) == textwrap.dedent(bare)


def test_what_does_not_parse_has_no_functions() -> None:
    assert functions_of("broken.py", "def f(:\n    pass\n") == []


@pytest.mark.parametrize(("file", "is_test"), [("test/a.py", True), ("a/test_b.py", True), ("a/latest.py", False)])
def test_tests_are_marked(file: str, is_test: bool) -> None:
    assert [f.is_test for f in functions_of(file, SOURCE)] == [is_test, is_test]


def test_a_file_is_in_one_split_by_its_name_and_most_are_trained_on() -> None:
    splits = [split_of(f"package/module{i}.py") for i in range(2000)]
    shares = {name: splits.count(name) / 2000 for name in ("train", "probe", "prompts")}
    assert shares == pytest.approx({"train": 0.78, "probe": 0.10, "prompts": 0.12}, abs=0.03)
    assert splits == [split_of(f"package/module{i}.py") for i in range(2000)]
