"""Traces: what is written is read back equal, digests are stable, and a bad line is named by file and line."""

import json
import math
import pickle
from pathlib import Path

import pytest

from splash.core.events import FirstToken, StepDone
from splash.core.params import SamplingParams
from splash.core.request import Request
from splash.engine.trace import (
    Aborted,
    Header,
    Retargeted,
    Stepped,
    Submitted,
    TraceError,
    TraceWriter,
    plan_digest,
    read_trace,
)
from splash.layout.layouts import DP, TP, Assignment
from splash.layout.rows import Method
from splash.sched.step import (
    Admit,
    Chunk,
    Flip,
    PageCopy,
    PageGrant,
    Resident,
    ShardCopy,
    StepPlan,
    StepResult,
)

HEADER = Header("0.1.0", "some/model", {"ranks": 2})
REQUEST = Request(3, (1, 2, 3), SamplingParams(max_tokens=4, stop_token_ids=(7,)), 0.5)
EVENTS = (
    FirstToken(1.0, 3, 0.5),
    StepDone(1.5, 2, 0.01, 0.001, 1, 0, {"tp": 1}, [1, 1], 0, 1),
)
RESULT = StepResult(2, (5, 6), (11,), (0.0, 1.5), 0.25, 0.5, 0.004)


def _plan(*, shards: frozenset[int] = frozenset({0, 1}), token: int = 2) -> StepPlan:
    return StepPlan(
        2,
        gone=(1,),
        admits=(Admit(3, (1, token), 2, SamplingParams(), 9, Assignment(TP)),),
        residents=(Resident(0, shards),),
        grants=(PageGrant(3, 0, 0, 1, 44),),
        flips=(Flip((2,), Assignment(DP, 1)),),
        decodes=(2,),
        chunks=(Chunk(3, 0, 2, Method.LOCAL),),
        copies=(PageCopy(1, 0, 5, 1, 6, 0, 16), ShardCopy(2, 1, 0, 0, 64)),
    )


def _written(folder: Path) -> Path:
    file = folder / "run.trace"
    writer = TraceWriter(file, HEADER)
    writer.submit(0, REQUEST, forced=(8, 9))
    for event in EVENTS:
        writer.event(event)
    writer.abort(1, 3)
    writer.target(2, "dp", "asked for")
    writer.step(_plan(), RESULT, planned_s=0.125, collected_s=0.75)
    writer.close()
    return file


def test_records_come_back_equal(tmp_path: Path) -> None:
    """Red when a field is lost, a tuple comes back as a list, or the order changes."""
    assert list(read_trace(_written(tmp_path))) == [
        HEADER,
        Submitted(0, REQUEST, (8, 9)),
        *EVENTS,
        Aborted(1, 3),
        Retargeted(2, "dp", "asked for"),
        Stepped(plan_digest(_plan()), 0.125, 0.75, RESULT),
    ]


def test_equal_plans_have_equal_digests() -> None:
    """Red when a digest depends on identity, on the order in a set, or on the process's hash seed."""
    assert plan_digest(_plan()) == plan_digest(_plan(shards=frozenset({1, 0})))
    assert plan_digest(_plan()) == "cc9df500f7bf03e9"


@pytest.mark.parametrize("other", [_plan(token=3), _plan(shards=frozenset({0})), StepPlan(2), StepPlan(3)])
def test_other_plans_have_other_digests(other: StepPlan) -> None:
    """Red when a part of the plan is left out of the digest."""
    assert plan_digest(other) != plan_digest(_plan())


def _first_token(**wrong: object) -> str:
    return json.dumps({"kind": "event", "event": "FirstToken", "t": 1, "request": 0, "ttft_s": 1, **wrong})


def _asked(**wrong: object) -> str:
    fields = {
        "t": 1,
        "step": 1,
        "target": "tp",
        "chosen": "tp",
        "reason": "",
        "predicted": {},
        "observed_s": None,
    }
    return json.dumps({"kind": "event", "event": "PolicyAsked", **fields, **wrong})


def _step(**wrong: object) -> str:
    return json.dumps(
        {"kind": "step", "digest": "", "planned_s": 1, "collected_s": 2, "result": {"step": 1}, **wrong}
    )


def _submit(**wrong: object) -> str:
    return json.dumps(
        {"kind": "submit", "step": 0, "id": 1, "prompt": [1], "params": {}, "forced": [], **wrong}
    )


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"kind": "event", "event": "FirstTok', "not JSON"),
        ('{"kind": "event", "event": "Nonsense"}', "unknown event 'Nonsense'"),
        ('{"kind": "event", "event": "FirstToken", "t": 1}', "missing or unknown fields: request, ttft_s"),
        ('{"kind": "nonsense"}', "unknown kind 'nonsense'"),
        ('{"kind": [1]}', "unknown kind [1]"),
        ('{"kind": "event", "event": {}}', "unknown event {}"),
        (_first_token(t="soon"), "t is 'soon'; it must be a finite number"),
        (_first_token(t=math.nan), "t is nan; it must be a finite number"),
        (_first_token(ttft_s=math.inf), "ttft_s is inf; it must be a finite number"),
        (_first_token(t=10**400), "t is 1000"),
        (
            _asked(predicted={"tp": math.nan}),
            "predicted is {'tp': nan}; it must be an object, each a finite number",
        ),
        (_first_token(request=1.5), "request is 1.5; it must be a whole number"),
        (_first_token(request=True), "request is True; it must be a whole number"),
        (
            _asked(predicted={"tp": "slow"}),
            "predicted is {'tp': 'slow'}; it must be an object, each a finite number",
        ),
        (_asked(observed_s=[]), "observed_s is []; it must be a finite number or null"),
        (_step(result=5), "step: result is 5; it must be an object"),
        (_step(planned_s=math.nan), "step: planned_s is nan; it must be a finite number"),
        (_step(digest=0), "step: digest is 0; it must be text"),
        (_step(result={}), "step: result: missing or unknown fields: step"),
        (_step(result={"step": 1, "started_s": math.inf}), "started_s is inf; it must be a finite number"),
        (
            _step(result={"step": 1, "tokens": [0.5]}),
            "tokens is [0.5]; it must be a list, each a whole number",
        ),
        (_step(result={"step": 1, "gaps": [math.nan]}), "gaps is [nan]; it must be a list, each a finite"),
        (_submit(arrival_s=math.nan), "submit: request: arrival_s is nan; it must be a finite number"),
        (_submit(step="2"), "submit: step is '2'; it must be a whole number"),
        (_submit(prompt=[1, None]), "request: prompt is [1, None]; it must be a list, each a whole number"),
        (_submit(prompt=[0.5] * 9999), "…; it must be a list, each a whole number"),
        (_submit(params={}, forced=5), "submit: forced is 5; it must be a list, each a whole number"),
        (_submit(params={"top_p": math.nan}), "params: top_p is nan; it must be a finite number"),
        (_submit(params={"max_tokens": 1.5}), "params: max_tokens is 1.5; it must be a whole number"),
        (_submit(params={"max_tokens": 0}), "max_tokens is 0; it must be at least 1"),
        ('{"kind": "abort", "step": 1}', "abort: missing or unknown fields: request"),
        ('{"kind": "target", "step": 1, "layout": 3, "reason": ""}', "layout is 3; it must be text"),
        ("[1, 2]", "unknown kind None"),
        ('{"kind": "header"}', "expected a record"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    """Red when the reader skips a bad line, takes a wrong type or NaN for a value, or cannot say where it is."""
    file = _written(tmp_path)
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    with pytest.raises(TraceError) as error:
        list(read_trace(file))
    assert f"{file}:2: " in str(error.value)
    assert complaint in str(error.value)
    assert len(str(error.value)) < 400


def test_records_before_a_torn_end_are_read(tmp_path: Path) -> None:
    """Red when a trace cut off by a crash cannot be replayed up to the cut."""
    file = _written(tmp_path)
    file.write_text(file.read_text()[:-20])
    records = read_trace(file)
    assert [type(next(records)) for _ in range(6)][-1] is Retargeted
    with pytest.raises(TraceError, match="cut off"):
        next(records)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    """Red when a missing, empty, binary or foreign file gives a traceback instead of a sentence."""
    for name, content in {
        "empty": b"",
        "binary": b"\xff\xfe\x00",
        "foreign": b'{"a": 1}\n',
        "newer": json.dumps(
            {"kind": "header", "version": 99, "splash": "9", "model": "", "config": {}}
        ).encode(),
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TraceError, match=name):
            list(read_trace(tmp_path / name))
    (tmp_path / "words").write_text("arrival_s,prompt_tokens\n0,1\n")
    with pytest.raises(TraceError, match="words is no trace"):
        list(read_trace(tmp_path / "words"))
    with pytest.raises(TraceError, match="cannot read the trace"):
        list(read_trace(tmp_path / "missing"))
    with pytest.raises(TraceError, match="cannot write the trace"):
        TraceWriter(tmp_path / "no" / "folder", HEADER)


def test_a_plan_is_made_again_from_its_values() -> None:
    """Red when a field of grants, copies or flips is lost or comes back as a plain tuple, or copies change their order,
    on the way to a rank."""
    page, shard = PageCopy(4, 0, 9, 1, 3, 0, 16), ShardCopy(5, 1, 0, 0, 64)
    sent = _plan()._replace(copies=(page, page, shard, page))
    plan = StepPlan.of(pickle.loads(pickle.dumps(sent.values)))
    assert plan == sent
    assert [type(x) for x in (*plan.grants, *plan.flips)] == [PageGrant, Flip]
    assert [*map(type, plan.copies)] == [PageCopy, PageCopy, ShardCopy, PageCopy]
