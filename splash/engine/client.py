"""The in-process client: requests go in, pieces of text and tokens come out, from any thread.

with Engine(deployment) as engine:
    for piece in engine.generate(["ROMEO.\\n"], SamplingParams(max_tokens=64)):
        print(piece.text, end="")
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from types import TracebackType

from splash.core.errors import SplashError
from splash.core.events import Event, EventSink, RunFinished
from splash.core.params import SamplingParams
from splash.core.request import Request
from splash.engine.deployment import Deployment
from splash.engine.items import When
from splash.engine.loop import NOW, Abort, Inbox, LatchedClock, Loop, Retarget, Submit
from splash.engine.streams import Deliveries, Merged, Pieces, Stream
from splash.engine.trace import TraceWriter
from splash.layout.layouts import layout_named
from splash.sched.step import Executor, StepPlan, StepResult

Prompt = str | Sequence[int]

PATIENCE_S = 20.0
"""How long the steps in flight may still take when the engine is closed, before its ranks are ended under them."""


class Engine:
    """Serves a deployment until closed. Methods may be called from any thread, outputs come in streams."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        sinks: Sequence[EventSink] = (),
        trace: TraceWriter | None = None,
        on_step: Callable[[StepPlan, StepResult], None] | None = None,
        gaps: bool = False,
        executor: Executor | None = None,
    ) -> None:
        """Starts the ranks (unless given an `executor`: tests) and waits until they are ready.

        `sinks` receive every event, `on_step` every plan with its result (with gaps between logits if asked),
        in the engine's thread, while ranks compute.
        """
        self.deployment = deployment
        self._sinks = [*sinks, trace.event] if trace else [*sinks]
        self._ids = count()
        self._failure: BaseException | None = None
        self._gave_up = False
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self._inbox = Inbox()
        self._deliveries = Deliveries(on_step)
        self._done = threading.Event()
        """Waited for instead of joining the thread: an interrupted join forgets the thread (Python < 3.13)."""
        self._started_s = time.monotonic()
        self._clock = LatchedClock(self.now)
        self._scheduler = deployment.scheduler(clock=self._clock, emit=self._emit)
        self._executor = executor or deployment.launch(gaps=gaps)
        try:
            self._loop = Loop(
                scheduler=self._scheduler,
                executor=self._executor,
                clock=self._clock,
                inbox=self._inbox,
                outbox=self._deliveries,
                trace=trace,
            )
            self._started_s = time.monotonic()
            self._emit(deployment.run_started(self.now()))
            self._thread = threading.Thread(target=self._run, name="splash-engine")
            self._thread.start()
        except BaseException:
            self._inbox.close()  # an interrupt may come when the thread runs already
            self._close_executor()
            raise

    @property
    def failure(self) -> BaseException | None:
        """What ended the engine early, if something did."""
        return self._failure

    def now(self) -> float:
        """Seconds since the ranks were ready, the time of all events."""
        return time.monotonic() - self._started_s

    # ---- clients

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        when: When = NOW,
        forced: tuple[int, ...] = (),
        pieces: Pieces | None = None,
    ) -> Stream:
        """Hands in one request; RequestError if it cannot be served, and then nothing has happened.

        `prompt`: text or token ids. `when`: not before that step and time. `forced`: teacher forcing.
        `pieces`: a queue shared with other streams, to be read instead of the stream.
        """
        params = params or SamplingParams()
        token_ids = self.check(prompt, params)
        with self._lock:
            if self._inbox.closed:
                raise self._failure or SplashError("the engine is closed")
            request = Request(next(self._ids), token_ids, params, max(self.now(), when.time_s))
            stream = Stream(request, self.abort, pieces)
            self._deliveries.register(stream, self.deployment.detokenizer())
            self._inbox.put(Submit(request, forced, arrives_when_due=when.step > 0), when)
        return stream

    def generate(self, prompts: Sequence[Prompt], params: SamplingParams | None = None) -> Merged:
        """Pieces of all prompts as they come; request ids rise in the order of the prompts.

        All prompts are checked before the first is handed in. Leaving the iterator early, or one request that
        fails, aborts the rest.
        """
        token_ids = [self.check(prompt, params or SamplingParams()) for prompt in prompts]
        merged = Merged()
        try:
            for ids in token_ids:
                merged.add(self.submit(ids, params, pieces=merged.pieces))
        except BaseException:
            merged.close()
            raise
        return merged

    def check(self, prompt: Prompt, params: SamplingParams) -> tuple[int, ...]:
        """The prompt's token ids; RequestError if such a request cannot be served now."""
        token_ids = self.deployment.token_ids(prompt)
        self.deployment.check_ids(token_ids, params)
        self._scheduler.check_request(len(token_ids), params.max_tokens)
        return token_ids

    def abort(self, request: int) -> None:
        """Ends a request at the next boundary, wherever it is; void if it has ended."""
        self._inbox.put(Abort(request))

    def switch(self, layout: str, *, reason: str = "asked for", when: When = NOW) -> None:
        """Sets the target layout and ends the policy's say in it; ConfigError if there is no such layout."""
        layout_named(layout)
        self._inbox.put(Retarget(layout, reason), when)

    # ---- the end

    def finish(self) -> None:
        """Serves all that was submitted and lets open switches end, then closes. Raises what the engine failed with."""
        self._inbox.finish()
        self._done.wait()
        self.close()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Asks for the end, as `close`, without waiting for it: also from a sink."""
        with self._lock:
            self._inbox.close()

    def close(self) -> None:
        """Ends now: open requests finish with `abort`, the ranks end, nothing is left behind. Idempotent."""
        self.stop()
        if not self._done.wait(PATIENCE_S):  # a rank hangs: without its ranks the loop ends too
            self._gave_up = True
            self._close_executor()
        self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- the engine's thread

    def _run(self) -> None:
        outcome, detail = "failed", ""
        try:
            finished = self._loop.run()
            outcome = "done" if finished else "interrupted"
        except BaseException as error:
            if self._gave_up:
                outcome, detail = "interrupted", f"the steps in flight did not end within {PATIENCE_S:g} s"
                self._deliveries.abort()
            else:
                self._failure, detail = error, str(error)
        finally:
            self._end(outcome, detail)

    def _end(self, outcome: str, detail: str) -> None:
        """Whatever goes wrong on the way, every sink is told of the end, and no client waits for ever."""
        try:
            self._close_executor()
        except BaseException as error:
            self._failure = self._failure or error
            outcome, detail = "failed", detail or str(error)
        self._emit_last(RunFinished(self.now(), outcome, detail))
        with self._lock:
            self._inbox.close()
            self._deliveries.fail(self._failure or SplashError("the engine was closed"))
        self._done.set()

    def _close_executor(self) -> None:
        """One thread at a time, and again by each: closing is idempotent, and one may be interrupted in it."""
        with self._closing:
            self._executor.close()

    def _emit(self, event: Event) -> None:
        for sink in self._sinks:
            sink(event)

    def _emit_last(self, event: Event) -> None:
        """Also to those that come after a sink that fails."""
        for sink in self._sinks:
            try:
                sink(event)
            except BaseException as error:
                self._failure = self._failure or error
