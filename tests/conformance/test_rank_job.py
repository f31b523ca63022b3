"""Rank processes: messages, failures, and that nothing of them is left behind, however they end."""

import ast
import errno
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from splash_cpu import SPEC, launch
from splash_cpu.launch import MpiRankJob
from splash_cpu.leftovers import FOLDER, PATTERN, mapped_names
from splash_cpu.processes import Watched, descendants

from splash.core.errors import CheckpointError, RankFailure
from splash.hal.protocol import RankJob

pytestmark = pytest.mark.ranks

SERVE = "tests.conformance.entries:serve"
ROOT = Path(__file__).resolve().parents[2]


def start(size: int = 2, entry: str = SERVE, args: object = None) -> RankJob:
    return SPEC.loader().launch(size, entry, args)


def who(job: RankJob) -> list[int]:
    """The processes of a job that has started: ranks and their launchers."""
    job.send("who")
    answers = job.receive(60)
    return sorted({pid for answer in answers for pid in answer[1:3]})


def receive_all(job: RankJob) -> None:
    while True:
        job.receive(30)


def alive(pids: list[int]) -> list[int]:
    """Those of `pids` that run (a zombie does not)."""
    running = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            running.append(pid)
    return running


def orphans() -> set[str]:
    """Named shared memory of MPI that no process uses."""
    names = {path.name for path in FOLDER.glob(PATTERN)}
    return names - mapped_names(names)


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Red when a job leaves shared memory, a topology file, a descriptor or a thread behind."""
    memory, descriptors = orphans(), len(os.listdir("/proc/self/fd"))
    files = set(Path("/tmp").glob("hydra_*"))
    yield
    assert not set(Path("/tmp").glob("hydra_*")) - files
    assert within(2, lambda: not orphans() - memory)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_messages_and_closing() -> None:
    """Red when messages are lost or reordered, or a closed job leaves processes."""
    job = start(3, args={"some": "args"})
    pids = who(job)
    for i in range(50):
        job.send(i)
    for i in range(50):
        assert [(a[0], a[3], a[4]) for a in job.receive(30)] == [(r, i, {"some": "args"}) for r in range(3)]
    job.send(b"x" * (5 << 20))
    assert [len(a[3]) for a in job.receive(30)] == [5 << 20] * 3
    job.close()
    job.close()
    assert not alive(pids)
    with pytest.raises(RankFailure, match="closed"):
        job.send(1)


def test_closing_before_the_ranks_have_started() -> None:
    """Red when a job that is closed at once waits for its ranks, or forgets them."""
    job = start()
    began = time.monotonic()
    job.close()
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), KeyboardInterrupt()])
def test_a_start_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Red when what goes wrong after the launcher was started leaves it running: nobody has a job to close."""
    started: list[int] = []
    watch = os.pidfd_open

    def fail_once(pid: int, flags: int = 0) -> int:
        if pid == os.getpid() or started:
            return watch(pid, flags)
        started.append(pid)
        raise error

    monkeypatch.setattr(os, "pidfd_open", fail_once)
    with pytest.raises(type(error)) as caught:
        start()
    assert caught.value is error
    assert not alive(started + descendants(started[0]))


class _Counted:
    """Becomes a text when it is pickled, and counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        self.times += 1
        return str, ("args",)


def test_arguments_are_pickled_once_and_dropped_when_sent() -> None:
    """Red when every rank's start is pickled anew, or kept for as long as the job lives."""
    args = _Counted()
    job = MpiRankJob(3, SERVE, args, threads=1)
    job.send("early")
    assert [answer[4] for answer in job.receive(60)] == ["args"] * 3
    assert args.times == 1
    assert not any(job._unsent)
    job.close()


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("kill", ["rank 1", "SIGKILL"]),
        ("segfault", ["rank 1", "SIGSEGV", "string_at"]),
        ("exit", ["rank 1", "exit code 3", "giving up"]),
        ("raise", ["rank 1", "ValueError: something is wrong", "Traceback", "in obey"]),
    ],
)
def test_a_failing_rank_is_noticed_and_named(order: str, words: list[str]) -> None:
    """Red when the engine waits for a dead rank, or does not say which and how; the other is in a collective."""
    job = start()
    pids = who(job)
    job.send(("reduce", 0))
    job.send((order, 1))
    began = time.monotonic()
    with pytest.raises(RankFailure) as caught:
        receive_all(job)
    assert time.monotonic() - began < 5
    for word in words:
        assert word in str(caught.value)
    assert not alive(pids)
    with pytest.raises(RankFailure) as again:
        job.send("more")
    assert again.value is caught.value
    job.close()


def test_a_rank_killed_while_idle_fails_the_next_call() -> None:
    """Red when the engine talks to a job that has lost a rank."""
    job = start()
    job.send("who")
    answers = job.receive(60)
    os.kill(answers[0][1], signal.SIGKILL)
    with pytest.raises(RankFailure, match=r"rank 0 .*SIGKILL"):
        receive_all(job)
    assert not alive([pid for answer in answers for pid in answer[1:3]])


def test_a_dead_launcher_takes_the_ranks_with_it() -> None:
    """Red when ranks outlive the process that started them."""
    job = start()
    job.send("who")
    answers = job.receive(60)
    os.kill(answers[0][2], signal.SIGKILL)
    with pytest.raises(RankFailure):
        job.receive(10)
    assert not alive([pid for answer in answers for pid in answer[1:3]])


def test_a_killed_launcher_is_named() -> None:
    """Red when ranks that ran are said not to have started, because the launcher above them was killed."""
    job = start()
    ranks = who(job)
    assert isinstance(job, launch.MpiRankJob)
    os.kill(job._launcher.pid, signal.SIGKILL)
    with pytest.raises(
        RankFailure, match=r"the launcher \(mpiexec\) was killed by SIGKILL .*while the ranks ran"
    ):
        job.receive(10)
    assert not alive(ranks)


def test_expected_errors_keep_their_type() -> None:
    """Red when a bad checkpoint, seen by a rank, becomes a rank failure."""
    job = start()
    job.send(("checkpoint", 1))
    with pytest.raises(CheckpointError, match="no such folder: /x"):
        job.receive(60)


def test_differing_collectives_are_named() -> None:
    """Red when ranks that enter different collectives hang or get wrong numbers."""
    job = start()
    job.send(("differ", None))
    with pytest.raises(RankFailure, match=r"rank 0 all_reduce of 5 float32, rank 1 all_gather of 5 float32"):
        job.receive(60)


def test_entries_that_do_not_exist_or_end() -> None:
    """Red when a job without its entry function hangs."""
    with pytest.raises(RankFailure, match="no_such_module"):
        start(2, "no_such_module:x").receive(60)
    with pytest.raises(RankFailure, match="ended before the engine closed the job"):
        start(2, "tests.conformance.entries:ends_at_once").receive(60)


def test_silence_is_a_failure_that_names_the_ranks() -> None:
    """Red when a rank that does not answer blocks the engine, or survives."""
    job = start()
    pids = who(job)
    job.send(("sleep", 1))
    with pytest.raises(RankFailure, match=r"ranks \[1\] did not answer within 0.3 s"):
        job.receive(0.3)
    assert not alive(pids)


def test_ranks_that_do_not_close_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a rank in an endless loop, or waiting for another, keeps the engine from closing."""
    monkeypatch.setattr(launch, "CLOSE_TIMEOUT_S", 0.3)
    job = start()
    pids = who(job)
    job.send(("loop", 1))
    job.send(("reduce", 0))
    began = time.monotonic()
    job.close()
    assert time.monotonic() - began < 3
    assert not alive(pids)


def test_an_interrupted_close_is_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a second Ctrl-C while ranks are being ended makes the next `close` leave the rest behind."""
    job = start()
    pids = who(job)

    def interrupted(watched: Watched, timeout_s: float) -> list[int]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Watched, "wait", interrupted)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                job.close()
    with pytest.raises(RankFailure, match="closed"):
        job.send(1)
    job.close()
    job.close()
    assert not alive(pids)


def test_what_ranks_print_is_kept_in_bounds() -> None:
    """Red when much output blocks the ranks, or is all kept."""
    job = start()
    job.send(("noise", None))
    job.receive(60)
    job.send(("exit", 0))
    with pytest.raises(RankFailure) as caught:
        job.receive(60)
    assert "line 19999" in str(caught.value)
    assert len(str(caught.value)) < 50_000


@contextmanager
def engine(mode: str) -> Iterator[subprocess.Popen[str]]:
    """An engine process in a session of its own; killed in the end, whatever happened."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.conformance.engine_script", mode],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def told_pids(process: subprocess.Popen[str]) -> list[int]:
    return sorted({pid for pair in ast.literal_eval(line(process)) for pid in pair})


def ranks_of(pid: int) -> list[int]:
    """Processes whose command line has the socket of the engine `pid`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes()
        except OSError:
            continue
        if f"splash-{pid}-".encode() in text:
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("mode", ["idle", "collective", "exit"])
def test_ranks_end_with_their_engine(mode: str) -> None:
    """Red when ranks, idle or in a collective, survive an engine that was killed or forgot to close."""
    with engine(mode) as process:
        pids = told_pids(process)
        if mode != "exit":
            assert len(alive(pids)) == 3
            time.sleep(0.1)
            process.kill()
        process.wait()
        assert within(3, lambda: not alive(pids) and not ranks_of(process.pid))


def test_an_engine_killed_while_ranks_start_leaves_nothing() -> None:
    """Red when ranks that are still importing go on without an engine."""
    for delay in (0.0, 0.05, 0.15, 0.3, 0.6):
        with engine("starting") as process:
            assert line(process) == "started"
            time.sleep(delay)
            process.kill()
            process.wait()
            assert within(8, lambda pid=process.pid: not ranks_of(pid)), delay


def test_an_engine_that_dies_between_two_connections_leaves_nothing() -> None:
    """Red when a rank that finds no engine ends while another is in MPI's start: that one waits for ever, or is killed
    before MPI's files have lost their names."""
    address = f"splash-{os.getpid()}-{secrets.token_hex(8)}"
    before = orphans()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + address)
        listener.listen(0)  # one rank is connected, the other waits
        launcher = launch._start(2, address, 1)
        time.sleep(1.5)
    with launcher:
        try:
            assert launcher.wait(20) != 0
        finally:
            launcher.kill()
    assert within(3, lambda: not ranks_of(os.getpid()))
    assert orphans() <= before


def test_ctrl_c_reaches_the_engine_alone() -> None:
    """Red when a terminal's Ctrl-C kills ranks that the engine still wants to close."""
    with engine("idle") as process:
        pids = told_pids(process)
        os.killpg(process.pid, signal.SIGINT)
        assert line(process) == "['still there?', 'still there?']"
        assert line(process) == "closed"
        assert process.wait(10) == 0
        assert not alive(pids)
