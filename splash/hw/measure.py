"""A profile from timings of this machine's own operations: what was run with which counts, and what explains it.

The timings come from a port's ranks (`splash/exec/measure.py`); here is which numbers of a profile they decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from splash.hw import ops
from splash.hw.figures import Figure
from splash.hw.load import profile_from_table
from splash.hw.profile import HardwareProfile, ProfileError, Quantity
from splash.hw.write import put, quantity

Counts = Mapping[str, float]
Cost = Callable[[HardwareProfile, Counts], Figure]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call of `operation` (a key of `PROBES`, or one of the plain measures) with these counts."""

    operation: str
    counts: Counts
    seconds: float


@dataclass(frozen=True, slots=True)
class Probe:
    """The section that an operation decides: its numbers with where to begin, and the operation's cost."""

    section: str
    start: Mapping[str, float]
    cost: Cost


SPAN = math.log(1000.0)
"""How far from its start a number is sought, as a logarithm."""
ROOF = {"flops": 5e10, "bandwidth": 1e10, "fixed": 1e-5}
PROTOCOL = {"alpha": 5e-6, "beta": 5e9}
DECODE = {**ROOF, "per_row": 1e-6, "gather_bandwidth": 2e10}
EXPERTS = {
    "flops.256": 5e10,
    "flops.1024": 5e10,
    "bandwidth": 1e10,
    "fixed": 2e-5,
    "per_hit": 2e-5,
    "per_token": 1e-6,
}
DTYPES = ("float32", "bfloat16")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def probes(ranks: int) -> dict[str, Probe]:
    """By operation. Counts are the arguments of the cost functions; attention counts bytes of a token."""
    found = {}
    for dtype in DTYPES:
        found[f"gemm {dtype}"] = Probe(f"gemm.{dtype}", ROOF, _gemm(dtype))
        found[f"by head {dtype}"] = Probe(f"gemm.{dtype}.by_head", ROOF, _by_head(dtype))
        found[f"experts {dtype}"] = Probe(f"moe.{dtype}", EXPERTS, _experts(dtype))
    found["mla decode"] = Probe("attention.mla_decode", DECODE, _mla_decode)
    found["mla prefill"] = Probe("attention.mla_prefill", ROOF, _mla_prefill)
    found["gqa decode"] = Probe("attention.gqa_decode", DECODE, _gqa_decode)
    found["gqa prefill"] = Probe("attention.gqa_prefill", ROOF, _gqa_prefill)
    found["selected"] = Probe("attention.sparse_mla_decode", DECODE, _selected)
    found["indexer"] = Probe("attention.indexer", ROOF, _indexer)
    found["elementwise"] = Probe("elementwise", {"bandwidth": 1e10, "fixed": 1e-5}, _elementwise)
    for op in COLLECTIVES if ranks > 1 else ():
        found[op] = Probe(f"collective.{op}.{ranks}", PROTOCOL, _collective(op, ranks))
    return found


def _gemm(dtype: str) -> Cost:
    return lambda p, c: ops.gemm_s(p, c["m"], c["n"], c["k"], dtype)


def _by_head(dtype: str) -> Cost:
    return lambda p, c: ops.batched_gemm_s(p, c["heads"], c["m"], c["n"], c["k"], dtype)


def _experts(dtype: str) -> Cost:
    """The router with them, as the model runs it: in float32."""

    def cost(p: HardwareProfile, c: Counts) -> float:
        shape = (int(c["hidden"]), int(c["ffn"]), 1, dtype)
        routed = ops.grouped_gemm_s(p, c["rows"], c["experts_hit"], *shape, tokens=c["tokens"])
        return float(routed + ops.gemm_s(p, c["tokens"], c["experts"], c["hidden"], "float32"))

    return cost


def _mla_decode(p: HardwareProfile, c: Counts) -> Figure:
    return ops.mla_decode_s(p, c["rows"], c["kv_tokens"], c["heads"], 576, 512, c["token_bytes"])


def _mla_prefill(p: HardwareProfile, c: Counts) -> Figure:
    return ops.mla_prefill_s(p, c["pairs"], c["kv_tokens"], c["heads"], 576, 512, c["token_bytes"])


def _gqa_decode(p: HardwareProfile, c: Counts) -> Figure:
    sizes = (c["heads"], c["kv_heads"], int(c["head_dim"]), c["token_bytes"])
    return ops.gqa_decode_s(p, c["rows"], c["kv_tokens"], *sizes)


def _gqa_prefill(p: HardwareProfile, c: Counts) -> Figure:
    sizes = (c["heads"], int(c["head_dim"]), c["token_bytes"])
    return ops.gqa_prefill_s(p, c["pairs"], c["kv_tokens"], *sizes)


def _selected(p: HardwareProfile, c: Counts) -> Figure:
    return ops.sparse_mla_decode_s(p, c["rows"], c["kv_tokens"], c["heads"], 576, 512, c["token_bytes"])


def _indexer(p: HardwareProfile, c: Counts) -> Figure:
    sizes = (int(c["heads"]), int(c["head_dim"]), c["token_bytes"])
    return ops.indexer_s(p, c["rows"], c["kv_tokens"], *sizes)


def _elementwise(p: HardwareProfile, c: Counts) -> Figure:
    return ops.elementwise_s(p, c["num_bytes"])


def _collective(op: str, ranks: int) -> Cost:
    return lambda p, c: ops.collective_s(p, op, ranks, c["num_bytes"])


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a machine's profile is made of."""

    device: str
    summary: str
    where: str
    """Machine, date and command: every source carries it."""
    ranks: int
    memory_bytes: int
    shared_by: int
    """Ranks at most that divide that memory; 1 where each has its own."""
    timings: tuple[Timing, ...]


STREAM, COPY = "stream weights", "copy"
"""Measures that are numbers as they stand: their counts have the bytes that one call moves."""

UNMEASURED = {
    "node.ranks": (256.0, "assumed: ranks are processes of one machine"),
    "host.step_overhead": (
        0.5e-3,
        "assumed: the bound that the step loop is held to, without its share per request",
    ),
    "host.request_overhead": (25e-6, "assumed: python -m bench.overhead on two cores, 1 to 64 requests"),
}
"""What a profile must have and operations do not show."""


def measured_table(measurement: Measurement) -> dict[str, Any]:
    """The profile's table, complete: `splash.hw.write.profile_text` makes a file of it."""
    table: dict[str, Any] = {"device": measurement.device, "summary": measurement.summary}
    where = f"measured: {measurement.where}"
    put(
        table,
        "memory.capacity",
        {"value": float(measurement.memory_bytes), "source": f"{where}, as the port's probe"},
    )
    if measurement.shared_by > 1:
        put(
            table,
            "memory.shared_by",
            quantity(measurement.shared_by, f"{where}, ranks that run on one device"),
        )
    put(table, "memory.bandwidth", _rate(measurement.timings, STREAM, where))
    put(table, "memory.copy_bandwidth", _rate(measurement.timings, COPY, where))
    put(table, "node.link_bandwidth", _rate(measurement.timings, COPY, where))
    for path, (value, source) in UNMEASURED.items():
        put(table, path, quantity(value, source))
    all_probes = probes(measurement.ranks)
    if measurement.ranks == 1:
        for op in COLLECTIVES:
            for key, value in PROTOCOL.items():
                put(
                    table, f"collective.{op}.2.{key}", quantity(value, "assumed: one rank alone was measured")
                )
    for probe in all_probes.values():
        for key, value in probe.start.items():
            put(table, f"{probe.section}.{key}", quantity(value, "assumed: to begin with"))
    for operation, probe in all_probes.items():
        timings = [timing for timing in measurement.timings if timing.operation == operation]
        profile = profile_from_table(table, name="measured", where="the measurement")
        numbers, errors = explain(profile, probe, timings)
        source = (
            f"{where}; {operation}, fits {len(timings)} timings with error median "
            f"{100 * np.median(errors):.0f} %, worst {100 * np.max(errors):.0f} %"
        )
        for path, value in numbers.items():
            put(table, path, quantity(value, source))
    return table


def _rate(timings: Sequence[Timing], operation: str, where: str) -> dict[str, Any]:
    rates = [
        timing.counts["num_bytes"] / timing.seconds for timing in timings if timing.operation == operation
    ]
    if not rates:
        raise ProfileError(f"nothing was measured of '{operation}'")
    return quantity(float(np.median(rates)), f"{where}; {operation}, median of {len(rates)}")


def explain(
    profile: HardwareProfile, probe: Probe, timings: Sequence[Timing]
) -> tuple[dict[str, float], npt.NDArray[Any]]:
    """The numbers that explain the timings best, under their paths, and the relative errors that remain."""
    if not timings:
        raise ProfileError(f"nothing was measured for [{probe.section}]")
    paths = [f"{probe.section}.{key}" for key in probe.start]
    seconds = np.array([timing.seconds for timing in timings])

    def predicted(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        candidate = with_numbers(profile, dict(zip(paths, map(float, values), strict=True)))
        return np.array([float(probe.cost(candidate, timing.counts)) for timing in timings])

    best = least(
        lambda logs: float(np.mean(np.abs(np.log(predicted(np.exp(logs)) / seconds)))),
        np.log(list(probe.start.values())),
    )
    numbers = np.exp(best)
    return dict(zip(paths, map(float, numbers), strict=True)), np.abs(predicted(numbers) / seconds - 1)


def least(
    loss: Callable[[npt.NDArray[Any]], float], start: npt.NDArray[Any], *, rounds: int = 120
) -> npt.NDArray[Any]:
    """Where `loss` is least within SPAN of `start`: along one axis after the other, with steps that grow and shrink."""
    at, steps = np.array(start, dtype=float), np.ones(len(start))
    lowest = loss(at)
    for _ in range(rounds):
        for axis in range(len(at)):
            for step in (steps[axis], -steps[axis]):
                tried = at.copy()
                tried[axis] = np.clip(tried[axis] + step, start[axis] - SPAN, start[axis] + SPAN)
                found = loss(tried)
                if found < lowest:
                    at, lowest = tried, found
                    steps[axis] = 1.5 * step
                    break
            else:
                steps[axis] *= 0.5
        if np.max(np.abs(steps)) < 1e-3:
            break
    return at


def with_numbers(profile: HardwareProfile, numbers: Mapping[str, float]) -> HardwareProfile:
    """`profile` with other values at paths such as `gemm.bfloat16.flops`."""
    for path, value in numbers.items():
        profile = _with(profile, path.split("."), value)
    return profile


def _with(node: Any, path: list[str], value: float) -> Any:
    if not path:
        return Quantity(value, "fitted: not yet written down")
    key, rest = path[0], path[1:]
    if isinstance(node, Mapping):
        return {**node, int(key): _with(node[int(key)], rest, value)}
    return replace(node, **{key: _with(getattr(node, key), rest, value)})
