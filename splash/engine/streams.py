"""What a client gets: pieces of text and tokens as they come, of one request or of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

from splash.core.errors import RankFailure, RequestError
from splash.core.request import FinishReason, Request
from splash.engine.detok import Detokenizer
from splash.sched.results import Output
from splash.sched.step import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added to one request. `text` is whole characters; `finish_reason` is set on the last."""

    request: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None


Pieces = SimpleQueue[Piece | BaseException]


@dataclass(slots=True)
class Completion:
    """All of a request that has finished."""

    request: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    error: str | None = None
    """Why it was refused, of one that `Stream.outcome` gives."""

    def add(self, piece: Piece) -> None:
        self.token_ids += piece.token_ids
        self.text += piece.text
        self.finish_reason = piece.finish_reason or self.finish_reason


class Stream:
    """One request's pieces as they come; ends after the one that has a finish reason.

    Iterating raises what the engine failed with, if it fails.
    """

    def __init__(self, request: Request, abort: Callable[[int], None], pieces: Pieces | None = None) -> None:
        self.request = request
        self._abort = abort
        self._pieces: Pieces = SimpleQueue() if pieces is None else pieces
        self._ended = False

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        if self._ended:
            raise StopIteration
        piece = self._pieces.get()
        self._ended = isinstance(piece, BaseException) or piece.finish_reason is not None
        if isinstance(piece, BaseException):
            raise piece
        return piece

    def put(self, piece: Piece | BaseException) -> None:
        self._pieces.put(piece)

    def abort(self) -> None:
        """Ask for its end: the last piece will say `abort`, unless it ended before."""
        self._abort(self.request.id)

    def result(self) -> Completion:
        """Waits for the end; everything that has not been iterated yet. Raises what iterating raises."""
        completion = Completion(self.request.id)
        for piece in self:
            completion.add(piece)
        return completion

    def outcome(self) -> Completion:
        """As `result`, but a request that was refused when it arrived ends with `abort` and its `error`, and one that
        was cut off by a rank's failure is what had come of it, without a finish reason."""
        completion = Completion(self.request.id)
        try:
            for piece in self:
                completion.add(piece)
        except RequestError as refusal:
            return Completion(self.request.id, finish_reason="abort", error=str(refusal))
        except RankFailure:
            pass
        return completion


class Merged:
    """What comes into the queue that some streams share, until all of them have ended; then, or before if it
    is closed, forgotten or one of them fails, those that are left are aborted."""

    def __init__(self) -> None:
        self.pieces: Pieces = SimpleQueue()
        self._left: dict[int, Stream] = {}

    def add(self, stream: Stream) -> None:
        self._left[stream.request.id] = stream

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        if not self._left:
            raise StopIteration
        try:
            piece = self.pieces.get()
            if isinstance(piece, BaseException):
                raise piece
        except BaseException:
            self.close()
            raise
        if piece.finish_reason is not None:
            del self._left[piece.request]
        return piece

    def close(self) -> None:
        """Abort what has not ended. Idempotent."""
        while self._left:
            self._left.popitem()[1].abort()

    def __del__(self) -> None:
        self.close()


class Deliveries:
    """From the loop to the streams, in the loop's thread."""

    def __init__(self, on_step: Callable[[StepPlan, StepResult], None] | None) -> None:
        self._open: dict[int, tuple[Stream, Detokenizer | None]] = {}
        self._on_step = on_step

    def register(self, stream: Stream, detokenizer: Detokenizer | None) -> None:
        self._open[stream.request.id] = stream, detokenizer

    def deliver(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            stream, detokenizer = self._open[output.request]
            text = ""
            if detokenizer is not None:
                text = detokenizer.push(output.tokens)
                if output.finish_reason:
                    text += detokenizer.finish()
            stream.put(Piece(output.request, output.tokens, text, output.finish_reason))
            if output.finish_reason:
                del self._open[output.request]

    def refuse(self, request: int, error: BaseException) -> None:
        stream, _ = self._open.pop(request)
        stream.put(error)

    def stepped(self, plan: StepPlan, result: StepResult) -> None:
        if self._on_step is not None:
            self._on_step(plan, result)

    def abort(self) -> None:
        """Ends what is open, without its loop."""
        self.deliver([Output(request, (), "abort") for request in self._open])

    def fail(self, error: BaseException) -> None:
        while self._open:
            stream, _ = self._open.popitem()[1]
            stream.put(error)
