"""One line of plain English for each entry of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from splash.core.events import (
    PolicyAsked,
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
    RequestFlipped,
    RequestPreempted,
    RequestResumed,
    ResidencyChanged,
    RunFinished,
    RunStarted,
    StageCancelled,
    StageStarted,
    SwitchDone,
    TargetChanged,
    TargetRefused,
)
from splash.layout.layouts import LAYOUTS, Placement
from splash.sched.target import Target
from splash.tui.log import Entry
from splash.tui.units import clean, plural, show_bytes, show_count, show_seconds

MOST_NAMED = 4
"""Ranks that are listed by number."""


def describe(entry: Entry) -> str:
    """What happened: who, from where to where, how much, and why."""
    return clean(_TEXTS[type(entry.event)](entry, entry.event))


def kind_of(entry: Entry) -> str:
    """run | request | switch | move | warning: how loudly a view should show it."""
    return _KINDS[type(entry.event)]


def list_links(links: dict[tuple[int, int], int], *, at_most: int = 2, with_bytes: bool = True) -> str:
    """From where to where: `rank 0 → 1`; bytes of each, busiest first, if two; a count if there are more."""
    if len(links) > at_most:
        ranks = len({rank for link in links for rank in link})
        return f"{len(links)} links among {plural(ranks, 'rank')}"
    ordered = sorted(links.items(), key=lambda item: (-item[1], item[0]))
    parts = [
        f"{source} → {destination}" + (f" {show_bytes(amount)}" if with_bytes and len(links) > 1 else "")
        for (source, destination), amount in ordered
    ]
    return f"rank {', '.join(parts)}" if parts else ""


def show_predicted(predicted: dict[str, float]) -> str:
    """The policy's figures, best first: `dp 12.1 ms, tp 19.0 ms`."""
    ordered = sorted(predicted.items(), key=lambda item: item[1])
    return ", ".join(f"{name} {show_seconds(value)}" for name, value in ordered)


def show_target(name: str, striped_from: int | None) -> str:
    """A target's whole name: `dp`, or with requests striped from a length on `dp+cp from 32 K`."""
    target = _target(name, striped_from)
    return name if target is None else str(target)


def target_layouts(name: str, striped_from: int | None) -> set[str]:
    """Of all requests that have reached a target."""
    target = _target(name, striped_from)
    long = name if target is None or striped_from is None else target.layout_of(striped_from).name
    return {name, long}


def _target(name: str, striped_from: int | None) -> Target | None:
    layout = LAYOUTS.get(name)
    return None if layout is None else Target(layout, striped_from)


def old_and_new(event: TargetChanged | SwitchDone) -> tuple[str, str]:
    """Both targets by their whole names."""
    old = show_target(event.old, event.old_striped_from)
    return old, show_target(event.new, event.new_striped_from)


def show_change(event: TargetChanged | SwitchDone) -> str:
    """`tp → dp+cp from 32 K`."""
    return " → ".join(old_and_new(event))


def outcome_of(event: SwitchDone) -> str:
    """The figures of a switch that ended; its bytes are KV and weights together."""
    kv = event.bytes_received - event.weight_bytes_received
    moved = [(kv, "KV"), (event.weight_bytes_received, "weights")]
    parts = [
        plural(event.requests, "request"),
        *([f"{show_bytes(size)} {what}" for size, what in moved if size] or ["nothing moved"]),
        plural(event.steps, "step"),
        show_seconds(event.seconds),
    ]
    if event.max_boundary_s:  # a simulation has none
        parts.append(f"boundary ≤ {show_seconds(event.max_boundary_s)}")
    return ", ".join(parts)


def _who(entry: Entry, request: int) -> str:
    return f"request {request}" if entry.count == 1 else f"{entry.count} requests"


def _verb(entry: Entry, verb: str) -> str:
    return verb + "s" if entry.count == 1 else verb


def _tally(words: dict[str, int]) -> str:
    if len(words) == 1:
        return next(iter(words))
    return ", ".join(f"{number} {word}" for word, number in sorted(words.items(), key=lambda item: -item[1]))


def _started(entry: Entry, event: RunStarted) -> str:
    note = f" ({event.note})" if event.note else ""
    pages = f"{show_count(event.num_pages)} pages of {show_bytes(event.page_bytes)} each"
    return (
        f"serve {event.model} on {event.hardware}{note}, {plural(event.ranks, 'rank')} with {pages}, "
        f"target {event.target}, policy {event.policy}"
    )


def _arrived(entry: Entry, event: RequestArrived) -> str:
    tokens = "prompt token" if entry.num_tokens == 1 else "prompt tokens"
    return f"{_who(entry, event.request)} {_verb(entry, 'arrive')}: {show_count(entry.num_tokens)} {tokens}"


def _admitted(entry: Entry, event: RequestAdmitted) -> str:
    layout = LAYOUTS.get(event.layout)
    has_owner = layout is not None and layout.placement is Placement.OWNER
    where = f" on {_these_ranks(entry.words)}" if has_owner and len(entry.words) <= MOST_NAMED else ""
    return f"{_who(entry, event.request)} admitted in {event.layout}{where}"


def _finished(entry: Entry, event: RequestFinished) -> str:
    verb = "finishes" if entry.count == 1 else "finish"
    text = f"{_who(entry, event.request)} {verb} ({_tally(entry.words)}): {plural(entry.num_tokens, 'token')}"
    if entry.count == 1 and event.ttft_s is not None:
        text += f", TTFT {show_seconds(event.ttft_s)}, TPOT {show_seconds(event.tpot_s)}"
    return text


def _preempted(entry: Entry, event: RequestPreempted) -> str:
    return (
        f"{_who(entry, event.request)} preempted for pages: {plural(entry.num_tokens, 'token')} to recompute"
    )


def _resumed(entry: Entry, event: RequestResumed) -> str:
    who = f"{_who(entry, event.request)} {_verb(entry, 'resume')}"
    return f"{who}, {show_seconds(event.gap_s)} after its last token" if entry.count == 1 else who


def _changed(entry: Entry, event: TargetChanged) -> str:
    return f"target {show_change(event)}: {event.reason or 'no reason given'}"


def _asked(entry: Entry, event: PolicyAsked) -> str:
    observed = (
        f"; {event.target} took {show_seconds(event.observed_s)}" if event.observed_s is not None else ""
    )
    wanted = show_target(event.chosen, event.chosen_striped_from)
    return f"{wanted} is wanted: predicted decode step {show_predicted(event.predicted)}{observed}"


def _refused(entry: Entry, event: TargetRefused) -> str:
    return f"target {event.target} refused: {event.reason}"


def _staged(entry: Entry, event: StageStarted) -> str:
    if event.old == event.new:
        where = f" from rank {event.old_home} to {event.new_home}" if entry.count == 1 else ""
        return f"{_who(entry, event.request)} under {event.old} {_verb(entry, 'move')}{where}: {_load(entry)}"
    return f"{_who(entry, event.request)} {_verb(entry, 'stage')} {event.old} → {event.new}: {_load(entry)}"


def _load(entry: Entry) -> str:
    if not entry.num_bytes:
        return "nothing to copy"
    links = list_links(entry.links)
    return show_bytes(entry.num_bytes) + (f", {links}" if links else "")


def _cancelled(entry: Entry, event: StageCancelled) -> str:
    return f"{_who(entry, event.request)} staging to {event.new} cancelled: {event.reason}"


def _flipped(entry: Entry, event: RequestFlipped) -> str:
    if event.staged_steps == 0:
        return (
            f"{_who(entry, event.request)} {_verb(entry, 'toggle')} {event.old} → {event.new}: nothing moved"
        )
    low, high = entry.steps
    span = plural(low, "step") if low == high else f"{low}–{high} steps"
    text = f"{_who(entry, event.request)} {_verb(entry, 'flip')} {event.old} → {event.new}"
    return f"{text}: {show_bytes(entry.num_bytes)} staged over {span}"


_SLOT_STORIES = {
    ("kv", "draining"): "draining, their KV pages move out",
    ("kv", "filling"): "filling, weight shards arrive",
    ("draining", "filling"): "filling, weight shards arrive",
    ("filling", "replica"): "now replicas",
    ("replica", "kv"): "given to KV",
    ("draining", "kv"): "given back to KV",
    ("filling", "kv"): "given back to KV",
}


def _residency(entry: Entry, event: ResidencyChanged) -> str:
    _, before, after = entry.key
    story = _SLOT_STORIES.get((before, after), f"{after}, {before} before")
    slots = plural(sum(entry.words.values()), "slot")
    return f"{slots} on {_these_ranks(entry.words)} {story}"


def _these_ranks(ranks: Iterable[str]) -> str:
    """`rank 0`, `ranks 0, 1`, or their number where they are many."""
    names = sorted(ranks, key=int)
    if len(names) > MOST_NAMED:
        return plural(len(names), "rank")
    return f"rank{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _done(entry: Entry, event: SwitchDone) -> str:
    return f"switch {show_change(event)} {event.outcome}: {outcome_of(event)}"


def _ended(entry: Entry, event: RunFinished) -> str:
    """Of what a dead rank printed only the line that says what happened."""
    what, _, _ = event.detail.partition("\n")
    return f"run {event.outcome}" + (f": {what}" if what else "")


_TEXTS: dict[type, Callable[[Entry, Any], str]] = {
    RunStarted: _started,
    RequestArrived: _arrived,
    RequestAdmitted: _admitted,
    RequestFinished: _finished,
    RequestPreempted: _preempted,
    RequestResumed: _resumed,
    TargetChanged: _changed,
    PolicyAsked: _asked,
    TargetRefused: _refused,
    StageStarted: _staged,
    StageCancelled: _cancelled,
    RequestFlipped: _flipped,
    ResidencyChanged: _residency,
    SwitchDone: _done,
    RunFinished: _ended,
}

_KINDS: dict[type, str] = {
    RunStarted: "run",
    RequestArrived: "request",
    RequestAdmitted: "request",
    RequestFinished: "request",
    RequestPreempted: "warning",
    RequestResumed: "request",
    TargetChanged: "switch",
    PolicyAsked: "move",
    TargetRefused: "warning",
    StageStarted: "move",
    StageCancelled: "warning",
    RequestFlipped: "move",
    ResidencyChanged: "move",
    SwitchDone: "switch",
    RunFinished: "run",
}
