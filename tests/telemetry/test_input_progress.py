"""Where nothing is drawn, how much of an input is read is said at once and every 15 s."""

import io

from rich.console import Console

from dflash_exp.telemetry.input_progress import InputProgress


def test_a_pipe_is_told_at_the_beginning_and_every_15_seconds() -> None:
    out, now_s = io.StringIO(), [100.0]
    with InputProgress(Console(file=out), "prepare store", lambda: now_s[0]) as progress:
        assert out.getvalue() == "prepare store 0%\n", "before the first part, which may take minutes"
        for now_s[0], share in ((101.0, 0.1), (115.5, 0.26), (116.0, 0.4)):
            progress.update(share)
    assert out.getvalue().splitlines() == ["prepare store 0%", "prepare store 26%"]
