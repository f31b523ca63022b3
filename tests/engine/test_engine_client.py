"""The client: streams end exactly once whatever happens, bad requests never reach the loop, closing leaves nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from splash.core.errors import ConfigError, RankFailure, RequestError, SplashError
from splash.core.events import Event, PoolSampled, RequestFinished, RunFinished, RunStarted, SwitchDone
from splash.core.params import SamplingParams
from splash.core.request import Request
from splash.engine.client import Engine
from splash.engine.items import When
from splash.engine.streams import Stream
from splash.kv.pool import PageState
from tests.engine.engine_kit import MirrorDeployment
from tests.property.harness import expected_tokens

FOUR = SamplingParams(max_tokens=4)
LONG = SamplingParams(max_tokens=200)


@contextmanager
def _engine(deployment: MirrorDeployment, events: list[Event] | None = None) -> Iterator[Engine]:
    """An engine over a mirror; afterwards its thread has ended, its executor is closed and all pages are free."""
    threads = threading.active_count()
    engine = Engine(deployment, sinks=() if events is None else (events.append,))  # type: ignore[arg-type]
    (scheduler,) = deployment.schedulers
    with engine:
        yield engine
    assert threading.active_count() == threads
    assert deployment.executor.closed
    if engine.failure is None and not deployment.executor.hung:
        scheduler.store.collect(10**9)
        used = (PageState.LIVE, PageState.RESERVED, PageState.RETIRING)
        assert not any(pool.pages_in(used) for pool in scheduler.store.pools)


def test_generate_gives_every_token_once() -> None:
    """Red when pieces are lost, doubled, or text is not flushed at the end."""
    with _engine(MirrorDeployment()) as engine:
        tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
        texts = dict.fromkeys(range(3), "")
        for piece in engine.generate(["1 2 3", [4, 5], "6"], SamplingParams(max_tokens=5)):
            tokens[piece.request] += piece.token_ids
            texts[piece.request] += piece.text
    for number, num_prompt in enumerate((3, 2, 1)):
        assert tokens[number] == expected_tokens(number, num_prompt, 5)
        assert texts[number] == "".join(f"{token} " for token in tokens[number])


def test_results_come_in_any_order_of_asking() -> None:
    """Red when a stream can only be read while the engine runs, or in order."""
    with _engine(MirrorDeployment()) as engine:
        streams = [engine.submit([1, 2], FOUR) for _ in range(3)]
        engine.finish()
        assert [s.result().token_ids for s in reversed(streams)] == [
            expected_tokens(n, 2, 4) for n in (2, 1, 0)
        ]
        assert all(s.result().token_ids == [] for s in streams), "a stream is read once"


@pytest.mark.parametrize(
    ("prompt", "params", "complaint"),
    [
        ([], FOUR, "the prompt is empty"),
        ([-1], FOUR, "token id -1 is outside the vocabulary of 60000"),
        ([60000], FOUR, "token id 60000 is outside"),
        ([1], SamplingParams(stop_token_ids=(60001,)), "stop_token_ids: token id 60001"),
        ([1] * 512, FOUR, "the prompt has 512 tokens, the limit of prompt and output together is 512"),
        ([1] * 511, LONG, "holds at most"),
    ],
)
def test_bad_requests_never_reach_the_loop(prompt: list[int], params: SamplingParams, complaint: str) -> None:
    """Red when a request that cannot be served is queued, or takes others down with it."""
    with _engine(MirrorDeployment()) as engine:
        good = engine.submit([1, 2], FOUR)
        with pytest.raises(RequestError, match=complaint):
            engine.submit(prompt, params)
        with pytest.raises(RequestError, match=complaint):
            engine.generate([[1], prompt], params)
        assert good.result().finish_reason == "length"
        assert len(list(engine.generate([[7]], FOUR))) == 4, (
            "what was refused as a whole was not handed in in part"
        )


def test_an_unknown_layout_is_refused() -> None:
    """Red when a typing error reaches the scheduler."""
    with _engine(MirrorDeployment()) as engine, pytest.raises(ConfigError, match="unknown layout 'pd'"):
        engine.switch("pd")


def test_abort_ends_a_stream() -> None:
    """Red when an aborted request goes on, or its stream never ends."""
    events: list[Event] = []
    with _engine(MirrorDeployment(pace_s=0.002), events) as engine:
        stream = engine.submit([1, 2, 3], LONG)
        other = engine.submit([1], FOUR)
        first = next(stream)
        stream.abort()
        last = list(stream)[-1]
        assert first.finish_reason is None
        assert last.finish_reason == "abort"
        assert other.result().finish_reason == "length"
        stream.abort()
    reasons = [e.reason for e in events if isinstance(e, RequestFinished) and e.request == 0]
    assert reasons == ["abort"]


def test_leaving_generate_aborts_the_rest() -> None:
    """Red when a client that goes away leaves its requests running (CASES 25)."""
    events: list[Event] = []
    with _engine(MirrorDeployment(pace_s=0.002), events) as engine:
        pieces = engine.generate([[1], [2]], LONG)
        next(pieces)
        pieces.close()
        engine.finish()
    assert [e.reason for e in events if isinstance(e, RequestFinished)] == ["abort", "abort"]


def test_close_aborts_what_runs_waits_or_is_to_come() -> None:
    """Red when closing waits for requests, or leaves a stream open."""
    events: list[Event] = []
    with _engine(MirrorDeployment(pace_s=0.002, max_running=1), events) as engine:
        streams = [
            engine.submit([1], LONG),
            engine.submit([1], LONG),
            engine.submit([1], FOUR, when=When(step=900)),
        ]
        next(streams[0])
        engine.close()
        assert [s.result().finish_reason for s in streams] == ["abort"] * 3
        with pytest.raises(SplashError, match="closed"):
            engine.submit([1], FOUR)
        engine.close()
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunFinished)
    assert events[-1].outcome == "interrupted"
    last = [event for event in events if isinstance(event, PoolSampled)][-1]
    assert (last.running, last.waiting) == ({}, 0), "what has gone would look like a leak"
    assert not any(pages["retiring"] for pages in last.pages)


def test_finish_serves_everything_and_ends_open_switches() -> None:
    """Red when `finish` drops what is not due yet or cuts off a switch."""
    events: list[Event] = []
    with _engine(MirrorDeployment(), events) as engine:
        streams = [engine.submit([1] * 30, FOUR), engine.submit([1], FOUR, when=When(step=50))]
        engine.switch("dp", when=When(step=2))
        engine.finish()
        assert [s.result().finish_reason for s in streams] == ["length"] * 2
    assert [e.new for e in events if isinstance(e, SwitchDone)] == ["dp"]
    assert [e.outcome for e in events if isinstance(e, RunFinished)] == ["done"]


def test_a_failed_rank_ends_every_stream_with_its_error() -> None:
    """Red when a dead rank hangs a client."""
    events: list[Event] = []
    with _engine(MirrorDeployment(fail_at=3), events) as engine:
        streams = [engine.submit([1, 2], LONG), engine.submit([1], LONG, when=When(step=40))]
        for stream in streams:
            with pytest.raises(RankFailure, match="rank 1 was killed"):
                stream.result()
        with pytest.raises(RankFailure):
            engine.submit([1], FOUR)
        assert isinstance(engine.failure, RankFailure)
    (end,) = [e for e in events if isinstance(e, RunFinished)]
    assert (end.outcome, end.detail) == ("failed", "rank 1 was killed by signal 9")


def test_a_hanging_rank_does_not_keep_an_engine_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when closing waits for ever for a step, or loses what there was so far."""
    monkeypatch.setattr("splash.engine.client.PATIENCE_S", 0.1)
    events: list[Event] = []
    with _engine(MirrorDeployment(hang_at=2), events) as engine:
        stream = engine.submit([1], LONG)
        first = [next(stream), next(stream)]
        engine.close()
        assert stream.result().finish_reason == "abort"
    assert [piece.finish_reason for piece in first] == [None, None]
    (end,) = [e for e in events if isinstance(e, RunFinished)]
    assert (end.outcome, end.detail) == ("interrupted", "the steps in flight did not end within 0.1 s")


def test_a_failing_sink_fails_the_run_not_the_client() -> None:
    """Red when a full disk under a trace hangs the clients."""

    def full(event: Event) -> None:
        if isinstance(event, RequestFinished):
            raise OSError("no space left")

    engine = Engine(MirrorDeployment(), sinks=(full,))  # type: ignore[arg-type]
    with engine:
        streams = [engine.submit([1], FOUR), engine.submit([1], LONG)]
        with pytest.raises(OSError, match="no space left"):
            [stream.result() for stream in streams]


def test_finish_raises_what_the_engine_failed_with() -> None:
    """Red when a failure after the last token, here while the ranks end, passes as a success."""
    events: list[Event] = []
    deployment = MirrorDeployment()

    def stuck() -> None:
        raise RankFailure("processes [7] cannot be ended")

    deployment.executor.close = stuck  # type: ignore[method-assign]
    with Engine(deployment, sinks=(events.append,)) as engine:  # type: ignore[arg-type]
        stream = engine.submit([1], FOUR)
        with pytest.raises(RankFailure, match="cannot be ended"):
            engine.finish()
        assert stream.result().finish_reason == "length"
    (end,) = [e for e in events if isinstance(e, RunFinished)]
    assert (end.outcome, end.detail) == ("failed", "processes [7] cannot be ended")


def test_every_sink_is_told_of_the_end() -> None:
    """Red when a full disk under one sink hides the end of the run from the others."""
    events: list[Event] = []

    def full(event: Event) -> None:
        if isinstance(event, (RequestFinished, RunFinished)):
            raise OSError("no space left")

    with Engine(MirrorDeployment(), sinks=(full, events.append)) as engine:  # type: ignore[arg-type]
        engine.submit([1], FOUR)
        with pytest.raises(OSError, match="no space left"):
            engine.finish()
    assert [e.outcome for e in events if isinstance(e, RunFinished)] == ["failed"]


def _ends(events: list[Event]) -> dict[int, str]:
    return {e.request: e.reason for e in events if isinstance(e, RequestFinished)}


def test_one_refused_prompt_takes_its_companions_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when the other prompts of `generate` run on unseen: one is refused on arrival, or while being handed in."""
    events: list[Event] = []
    with _engine(MirrorDeployment(pace_s=0.002), events) as engine:
        add = engine._scheduler.add

        def refusing(request: Request, forced: tuple[int, ...] = ()) -> None:
            if request.id == 1:
                raise RequestError("no room under this target")
            add(request, forced)

        monkeypatch.setattr(engine._scheduler, "add", refusing)
        with pytest.raises(RequestError, match="no room"):
            list(engine.generate([[1], [2], [3]], LONG))
        monkeypatch.undo()
        submit = engine.submit

        def third_fails(*args: object, **options: object) -> Stream:
            if args[0] == (6,):
                raise SplashError("the engine is closed")
            return submit(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(engine, "submit", third_fails)
        with pytest.raises(SplashError, match="closed"):
            engine.generate([[4], [5], [6]], LONG)
        engine.finish()
    assert set(_ends(events).values()) <= {"abort"}


def test_an_iterator_that_is_never_started_leaves_nothing() -> None:
    """Red when requests whose iterator was thrown away unread run to their end."""
    events: list[Event] = []
    with _engine(MirrorDeployment(pace_s=0.002), events) as engine:
        engine.generate([[1], [2]], LONG)
        engine.finish()
    assert set(_ends(events).values()) <= {"abort"}


def test_an_interrupt_while_the_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when Ctrl-C at the very start leaves the engine's thread waiting for ever."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    threads = threading.active_count()
    deployment = MirrorDeployment()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Engine(deployment)  # type: ignore[arg-type]
    for _ in range(200):
        time.sleep(0.01 if threading.active_count() > threads else 0)
    assert threading.active_count() == threads
    assert deployment.executor.closed


def test_many_threads_may_submit() -> None:
    """Red when ids or pieces get mixed up between threads."""
    with _engine(MirrorDeployment()) as engine:
        results = {}

        def client(number: int) -> None:
            for _ in range(5):
                stream = engine.submit([1] * (number + 1), FOUR)
                results[stream.request.id] = (number + 1, stream.result().token_ids)

        threads = [threading.Thread(target=client, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 30
    for request, (num_prompt, tokens) in results.items():
        assert tokens == expected_tokens(request, num_prompt, 4)
