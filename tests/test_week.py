"""The README's five commands, from raw conversations to a comparison, run as they stand there."""

import json
import re
import shlex
from pathlib import Path

import pytest

from dflash_exp.cli import main

README = Path(__file__).parents[1] / "README.md"
NAMES = ("add", "total", "first", "last", "size", "scale")


def test_the_week_in_five_commands_goes_from_conversations_to_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(r"<!-- week -->\n```\n(.*?)```", README.read_text("utf-8"), flags=re.DOTALL)
    assert found is not None
    commands = [shlex.split(line) for line in found[1].splitlines()]
    assert [command[1] for command in commands] == ["prepare", "plan", "train", "train", "compare"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm, whose answer to a dry run would be this machine's own
    rows = [
        {"messages": [
            {"role": "user", "content": f"def {NAMES[i % 6]}_{i}(items):"},
            {"role": "assistant", "content": f"    return sum(items) + {i}\n" * (1 + i % 4)},
        ]}
        for i in range(24)
    ]  # fmt: skip
    Path("conversations.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for command in commands:
        assert main(command[1:]) == 0, command
    said = capsys.readouterr()
    assert "9 runs in 9 jobs x 8 GPUs x 24 h" in said.err and "#SBATCH --array=0-8%9" in said.out
    compared = json.loads(Path("runs/first/compare/compare.json").read_text("utf-8"))
    assert sorted(arm["setting"] for arm in compared["arms"]) == ["interleave=shuffle", "interleave=stride_jitter"]
