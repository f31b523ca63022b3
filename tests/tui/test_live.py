"""The view on a console: alternate screen and threads on a terminal, plain lines elsewhere."""

import io
import re
import sys
import threading
import time

import pytest
from rich.console import Console

from splash.core import events as e
from splash.tui.live import LiveView, open_view
from splash.tui.plain import PlainLines
from tests.tui.stream import Run


def terminal(width: int = 100, height: int = 30) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, color_system="truecolor"
    )


def pipe() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=80)


def test_the_view_fits_the_console() -> None:
    """Red when a pipe gets escape codes, or --no-tui is ignored on a terminal."""
    assert isinstance(open_view(terminal(), plain=False), LiveView)
    assert isinstance(open_view(terminal(), plain=True), PlainLines)
    assert isinstance(open_view(pipe(), plain=False), PlainLines)


def test_live_draws_on_the_alternate_screen_and_leaves_the_band() -> None:
    """Red when the terminal is left in the alternate screen, without cursor, or with nothing to read."""
    console = terminal()
    before = sys.getswitchinterval()
    with open_view(console, plain=False) as view:
        for event in Run().events():
            view.sink(event)
        deadline = time.monotonic() + 10
        while "run done" not in console.file.getvalue() and time.monotonic() < deadline:
            time.sleep(0.02)
    text = console.file.getvalue()
    assert text.count("\x1b[?1049h") == text.count("\x1b[?1049l") == 1
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    during, after = text.split("\x1b[?1049l")
    assert "run done" in during
    assert "layouts over time" in after
    assert sys.getswitchinterval() == before
    assert not [thread for thread in threading.enumerate() if thread.name == "splash-view"]


def test_drawing_happens_in_another_thread() -> None:
    """Red when a step pays for a frame."""
    view, drawers = LiveView(terminal(), refresh_per_s=10), set()
    take = view.snapshot
    view.snapshot = lambda: (drawers.add(threading.current_thread().name), take())[1]  # type: ignore[method-assign]
    with view:
        drawers.clear()
        begin = time.process_time()
        for event in Run().events():
            view.sink(event)
        assert time.process_time() - begin < 0.5
        deadline = time.monotonic() + 10
        while not drawers and time.monotonic() < deadline:
            time.sleep(0.02)
        assert drawers == {"splash-view"}


def test_an_error_of_the_run_restores_the_terminal_and_what_was_written(monkeypatch) -> None:
    """Red when a crash leaves the alternate screen open, or swallows warnings."""
    console, stderr = terminal(), io.StringIO()
    stderr.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", stderr)

    def run() -> None:
        with open_view(console, plain=False):
            sys.stderr.write("a warning of a library\n")
            assert not stderr.getvalue()
            raise RuntimeError("rank 1 died")

    with pytest.raises(RuntimeError, match="rank 1 died"):
        run()
    assert console.file.getvalue().endswith("\x1b[?1049l")
    assert stderr.getvalue() == "a warning of a library\n"


def plain_text(run: Run, **options) -> str:
    console = pipe()
    with PlainLines(console, **options) as view:
        for event in run.events():
            view.sink(event)
    return console.file.getvalue()


def test_plain_lines_contain_the_same_facts() -> None:
    """Red when something that the live view shows is not said without a terminal."""
    text = plain_text(Run(num_pages=700))
    for fact in (
        "serve splash-demo (deepseek_v3, 3.1 M) on cpu, 2 ranks", "24 requests arrive: 4,344 prompt tokens",
        "target tp → dp: 24 short requests", "24 requests stage tp → dop: 96.0 KiB",
        "switch tp → dp done: 24 requests, 96.0 KiB KV, 11.4 MiB weights, 14 steps, 255 ms, boundary ≤ 1.1 ms",
        "run done", "target dp", "tok/s", "running 24 (tp 12, dop 12), done 0", "running 3 in tp",
        "s  switch tp → dp, 24 flips left", "weights",
        "slots 1 own 1 filling, pages ", "2 ranks with 700 pages", " % free, ", "rows 18",
    ):  # fmt: skip
        assert fact in text, fact
    assert "\x1b" not in text


def test_plain_lines_are_in_order_and_one_status_a_second() -> None:
    """Red when a line is late, cut at 80 columns, or status lines follow the steps instead of the time."""
    text = plain_text(Run())
    times = [float(found[1]) for found in re.finditer(r"^ *([\d.]+) s  ", text, re.M)]
    assert len(times) == len(text.splitlines())
    assert times == sorted(times)
    status = [line for line in text.splitlines() if " | target " in line]
    assert len(status) == 4, "three seconds and the end"
    assert max(map(len, status)) > 80


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_a_status_line_can_be_read(ranks: int) -> None:
    """Red when a line grows with the ranks or while a switch is open, or leaves out how far ranks lie apart."""
    text = plain_text(Run(ranks=ranks, requests=40), interval_s=0.02)
    status = [line for line in text.splitlines() if " | target " in line]
    assert max(map(len, text.splitlines()[1:])) <= 160
    figures = rf"\| slots 1 own {ranks - 1} kv, pages (\d+–)?\d+ % free, rows \d+"
    assert any(re.search(figures, line) for line in status)
    assert ", waiting 37, done 0 | " in status[1]
    moving = [line for line in text.splitlines() if " flips left" in line]
    assert any(
        re.search(r"switch tp → dp, 40 flips left, KV \d+ % of .*, weights \d+ % of ", line)
        for line in moving
    )


def test_plain_lines_far_between_do_not_merge() -> None:
    """Red when what happens seconds apart in a simulation stands under the time of the first."""
    console = pipe()
    with PlainLines(console, interval_s=10.0) as view:
        for number, t in enumerate((0.1, 0.5, 3.2)):
            view.sink(e.RequestArrived(t, number, 12, 5))
    assert console.file.getvalue().splitlines() == [
        "  0.10 s  2 requests arrive: 24 prompt tokens",
        "  3.20 s  request 2 arrives: 12 prompt tokens",
    ]


def test_plain_lines_of_a_run_cut_short_are_complete() -> None:
    """Red when lines that were still open are lost at an interrupt."""
    console = pipe()

    def run() -> None:
        with PlainLines(console) as view:
            view.sink(e.RequestArrived(0.1, 7, 12, 5))
            assert console.file.getvalue() == ""
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert "request 7 arrives: 12 prompt tokens" in console.file.getvalue()


def test_a_reader_that_went_away_is_told_of_once() -> None:
    """Red when nobody can know that a pipe is closed, or every event after that is an error, or leaving."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    events = Run().events()
    with PlainLines(Console(file=Gone())) as view:
        with pytest.raises(BrokenPipeError):
            view.sink(next(events))
        for event in events:
            view.sink(event)
    with PlainLines(Console(file=Gone())) as view:
        view.sink(e.RequestArrived(0.1, 7, 12, 5))
