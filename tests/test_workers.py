"""Several commands at once: in order, never too many, each for itself, stopped together and left behind by nobody."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

from dflash_exp.launch.workers import Command, Progress, run_workers

PROLOGUE = "import os, signal, sys, time; from pathlib import Path; "
LISTENS = "signal.signal(signal.SIGTERM, lambda *_: (print('heard', flush=True), sys.exit(75))); "
BEGUN = "print('begun', flush=True); "


def command(folder: Path, name: str, body: str, **environment: str) -> Command:
    return Command(name, [sys.executable, "-c", PROLOGUE + body], environment, folder / "logs" / f"{name}.log")


def commands(folder: Path, bodies: Sequence[str]) -> list[Command]:
    return [command(folder, f"c{i}", body) for i, body in enumerate(bodies)]


def written(of: Command) -> str:
    return of.output.read_text() if of.output.exists() else ""


def wait_until(holds: Callable[[], bool]) -> None:
    """Fails after 30 s."""
    until_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until_s, "waited in vain"
        time.sleep(0.02)


@contextmanager
def signalled(number: int, when: Callable[[], bool], times: int = 1) -> Iterator[None]:
    """This process gets a signal as soon as that holds."""

    def send() -> None:
        wait_until(when)
        for _ in range(times):
            os.kill(os.getpid(), number)
            time.sleep(0.2)

    timer = Timer(0, send)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def words(told: Sequence[Progress]) -> list[tuple[int, str, str]]:
    return [(progress.number, progress.command.name, progress.word) for progress in told]


def test_one_at_a_time_they_run_in_their_order_and_each_is_told_of_twice(tmp_path: Path) -> None:
    told: list[Progress] = []
    three = commands(tmp_path, [f"open('{tmp_path}/order', 'a').write('{i}')" for i in range(3)])
    assert run_workers(three, 1, told.append) == [0, 0, 0]
    assert (tmp_path / "order").read_text() == "012"
    assert words(told) == [(n, f"c{n - 1}", word) for n in (1, 2, 3) for word in ("begun", "done")]
    assert [progress.wall_s > 0 for progress in told] == [False, True] * 3


def test_never_more_than_so_many_run_at_once_and_so_many_do(tmp_path: Path) -> None:
    running = most = 0

    def count(progress: Progress) -> None:
        nonlocal running, most
        running += 1 if progress.code is None else -1
        most = max(most, running)

    # each sees the files of those beside it; the first two wait for one another
    body = "me = Path('{0}') / '{1}'; me.touch(); n = len(list(Path('{0}').iterdir())); print(n); "
    meet = "t = time.time() + 30\nwhile len(list(Path('{0}').iterdir())) < 2 and time.time() < t: time.sleep(.01)\n"
    folder = tmp_path / "at_work"
    folder.mkdir()
    bodies = [body + (meet if i < 2 else "") + "\ntime.sleep(.3 if {1} else .6); me.unlink()" for i in range(5)]
    five = commands(tmp_path, [text.format(folder, i) for i, text in enumerate(bodies)])
    assert run_workers(five, 2, count) == [0] * 5
    assert most == 2 and running == 0
    assert max(int(written(of)) for of in five) == 2


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        ("sys.exit(0)", 0, "done"),
        ("sys.exit(75)", 75, "stopped"),
        ("sys.exit(2)", 2, "failed (exit code 2)"),
        ("sys.exit(7)", 1, "failed (exit code 7)"),
        ("raise ValueError('odd')", 1, "failed (exit code 1)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 1, "failed (killed by SIGKILL)"),
        ("os.kill(os.getpid(), signal.SIGTERM)", 1, "failed (killed by SIGTERM)"),
    ],
)
def test_one_that_fails_leaves_the_others_alone(tmp_path: Path, body: str, code: int, word: str) -> None:
    told: list[Progress] = []
    assert run_workers(commands(tmp_path, ["pass", body, "pass"]), 2, told.append) == [0, code, 0]
    (how,) = [progress.word for progress in told if progress.number == 2 and progress.code is not None]
    assert how == word


def test_one_that_cannot_be_begun_fails_alone_and_says_why(tmp_path: Path) -> None:
    told: list[Progress] = []
    absent = Command("absent", [str(tmp_path / "absent")], {}, tmp_path / "absent.log")
    assert run_workers([absent, *commands(tmp_path, ["pass"])], 1, told.append) == [1, 0]
    assert told[0].word.startswith("failed ([Errno 2] No such file or directory: ")
    assert run_workers([], 3, told.append) == []


def test_what_a_command_writes_goes_to_its_own_file_behind_what_is_there(tmp_path: Path) -> None:
    one, two = commands(tmp_path, ["print('out'); print('err', file=sys.stderr)", "print(sys.stdin.read() + '.')"])
    one.output.parent.mkdir()
    one.output.write_text("before\n")
    run_workers([one, two], 2, lambda _: None)
    assert sorted(written(one).split()) == ["before", "err", "out"] and written(one).startswith("before")
    assert written(two) == ".\n", "nobody waits for input"


@pytest.mark.parametrize(
    ("n_jobs", "n", "threads"), [(1, 3, "12"), (3, 3, "4"), (5, 9, "2"), (99, 2, "6"), (40, 40, "1")]
)
def test_the_cores_are_shared_out_among_those_that_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_jobs: int, n: int, threads: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 12)
    shell = [Command(f"c{i}", ["sh", "-c", "echo $OMP_NUM_THREADS"], {}, tmp_path / f"{i}.log") for i in range(n)]
    run_workers(shell, n_jobs, lambda _: None)
    assert {written(of) for of in shell} == {f"{threads}\n"}


def test_threads_and_all_else_that_the_user_or_the_command_sets_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setenv("MINE", "1")
    body = "print(os.environ['OMP_NUM_THREADS'], os.environ['MINE'])"
    one, two = commands(tmp_path, [body])[0], command(tmp_path, "two", body, OMP_NUM_THREADS="7", MINE="2")
    run_workers([one, two], 2, lambda _: None)
    assert (written(one), written(two)) == ("5 1\n", "7 2\n")


def test_a_signal_goes_once_to_those_that_run_and_no_other_is_begun(tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    told: list[Progress] = []
    body = "signal.signal(signal.SIGTERM, lambda *_: print('heard', flush=True)); " + BEGUN
    slow = body + f"t = time.time() + 30\nwhile time.time() < t and not Path('{tmp_path}/go').exists(): time.sleep(.02)"
    four = commands(tmp_path, ["pass", slow + "\nsys.exit(75)", slow, "pass"])
    try:
        with signalled(signal.SIGTERM, lambda: all("begun" in written(of) for of in four[1:3]), times=2):
            Timer(0, lambda: (wait_until(lambda: len(heard) == 2), (tmp_path / "go").touch())).start()
            assert run_workers(four, 2, told.append) == [0, 75, 0, 75]
    finally:
        assert signal.signal(signal.SIGTERM, before) is not None
    assert heard == [signal.SIGTERM] * 2, "and to who listened before"
    assert [written(of) for of in four] == ["", "begun\nheard\n", "begun\nheard\n", ""]
    assert {name for _, name, _ in words(told)} == {"c0", "c1", "c2"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR2])
def test_a_process_that_does_not_listen_yet_is_stopped_by_the_signal(tmp_path: Path, number: int) -> None:
    before = signal.signal(number, lambda *_: None)
    try:
        (one,) = commands(tmp_path, [f"signal.signal({int(number)}, signal.SIG_DFL); " + BEGUN + "time.sleep(30)"])
        with signalled(number, lambda: "begun" in written(one)):
            assert run_workers([one], 1, lambda _: None) == [75]
    finally:
        signal.signal(number, before)


def test_after_a_signal_that_came_before_nothing_is_begun(tmp_path: Path) -> None:
    told: list[Progress] = []
    assert run_workers(commands(tmp_path, ["pass", "pass"]), 1, told.append, lambda: True) == [75, 75]
    assert told == []


def there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_error_of_whoever_is_told_ends_what_runs(tmp_path: Path) -> None:
    pids: list[int] = []

    def refuse(progress: Progress) -> None:
        wait_until(lambda: "begun" in written(progress.command))
        pids.append(int(written(progress.command).split()[1]))
        raise KeyboardInterrupt

    started_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_workers(commands(tmp_path, ["print('begun', os.getpid(), flush=True); time.sleep(60)"]), 1, refuse)
    wait_until(lambda: not there(pids[0]))
    assert time.monotonic() - started_s < 40


def test_processes_end_with_a_launcher_that_was_killed(tmp_path: Path) -> None:
    listens = "from dflash_exp.launch.children import stop_with_the_launcher; " + LISTENS
    two = commands(tmp_path, [listens + "stop_with_the_launcher(); " + BEGUN + "time.sleep(60)"] * 2)
    launcher = f"""
from pathlib import Path, PosixPath
from dflash_exp.launch.workers import Command, run_workers
run_workers({two!r}, 2, print)
"""
    process = subprocess.Popen([sys.executable, "-c", launcher], cwd=Path(__file__).parents[1])
    wait_until(lambda: all("begun" in written(of) for of in two))
    assert process.poll() is None and not any("heard" in written(of) for of in two)
    process.kill()
    process.wait()
    wait_until(lambda: all("heard" in written(of) for of in two))


def test_no_jobs_at_once_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="n_jobs must be >= 1, got 0; 1 runs them one after the other"):
        run_workers(commands(tmp_path, ["pass"]), 0, lambda _: None)


def test_the_pool_needs_neither_torch_nor_hydra() -> None:
    shown = "import sys, dflash_exp.launch.workers; print({'torch', 'hydra', 'omegaconf'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", shown], cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


def test_no_two_that_run_have_one_place(tmp_path: Path) -> None:
    waiting = commands(tmp_path, ["print(os.environ['PLACE']); time.sleep(.3)"] * 4)
    assert run_workers(waiting, 2, lambda _: None, share=lambda place: {"PLACE": str(place)}) == [0, 0, 0, 0]
    assert sorted(written(one) for one in waiting) == ["0\n", "0\n", "1\n", "1\n"]
