"""A profile from timings: numbers are found again, what is missing is named, and the file reads as it was written."""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from splash.core.errors import ConfigError
from splash.exec import measure as on_ranks
from splash.hal.inproc import InProcessBackend
from splash.hw.load import load_profile, profile_from_table
from splash.hw.measure import COPY, STREAM, Measurement, Probe, Timing, measured_table, probes
from splash.hw.profile import ProfileError
from splash.hw.write import profile_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

COUNTS = {
    "gemm": itertools.product(
        [{"m": m} for m in (1, 16, 256)], [{"n": 512, "k": 1024}, {"n": 4096, "k": 1024}]
    ),
    "by": itertools.product(
        [{"m": m} for m in (1, 16, 256)], [{"heads": 8, "n": 512, "k": 128}, {"heads": 16, "n": 512, "k": 64}]
    ),
    "experts": itertools.product(
        [{"tokens": n, "rows": 2.0 * n, "experts_hit": min(8.0, 2.0 * n)} for n in (1, 4, 64, 512)],
        [{"experts": 16, "hidden": 1024, "ffn": ffn} for ffn in (256, 1024)],
    ),
    "attention": itertools.product(
        [{"rows": n, "kv_tokens": n * long, "pairs": n * long} for n in (1, 32) for long in (64, 4096)],
        [{"heads": heads, "kv_heads": 1, "head_dim": 128, "token_bytes": 2304} for heads in (1, 4, 64)],
    ),
    "bytes": itertools.product([{"num_bytes": 1 << power} for power in (10, 16, 22)], [{}]),
}
KINDS = {
    "gemm": "gemm",
    "by": "by",
    "experts": "experts",
    "mla": "attention",
    "gqa": "attention",
    "selected": "attention",
}
COUNTED = {kind: [{**a, **b} for a, b in pairs] for kind, pairs in COUNTS.items()}


def _timings(probe: Probe, operation: str) -> Iterator[Timing]:
    """As the shipped profile says they would be."""
    profile = load_profile("cpu")
    kind = "attention" if operation == "indexer" else KINDS.get(operation.split()[0], "bytes")
    for counts in COUNTED[kind]:
        yield Timing(operation, counts, float(probe.cost(profile, counts)))


def _measurement() -> Measurement:
    found = [timing for name, probe in probes(2).items() for timing in _timings(probe, name)]
    found += [Timing(STREAM, {"num_bytes": 2e9}, 0.1), Timing(COPY, {"num_bytes": 1e9}, 0.5)]
    return Measurement("cpu", "a machine", "a machine, today", 2, 1 << 34, 64, tuple(found))


def test_timings_that_a_profile_explains_give_that_profile_again() -> None:
    """Red when the search stops early, or a number is written under another name."""
    profile = profile_from_table(measured_table(_measurement()), name="mine", where="here")
    shipped = load_profile("cpu")
    assert profile.memory.bandwidth.value == pytest.approx(2e10)
    assert profile.memory.copy_bandwidth.value == pytest.approx(2e9)
    for name, probe in probes(2).items():
        again = [float(probe.cost(profile, timing.counts)) for timing in _timings(probe, name)]
        assert again == pytest.approx([float(t.seconds) for t in _timings(probe, name)], rel=0.15), name
    assert profile.gemm.float32.flops.value == pytest.approx(shipped.gemm.float32.flops.value, rel=0.1)
    assert all(
        word in profile.gemm.float32.flops.source for word in ("measured:", "a machine, today", "median")
    )


def test_the_memory_of_one_device_is_divided_by_the_ranks_on_it() -> None:
    """Red when ranks of one machine are each given all of it, or ranks with devices of their own a share."""
    shared = profile_from_table(measured_table(_measurement()), name="mine", where="here").memory
    alone = profile_from_table(
        measured_table(replace(_measurement(), shared_by=1)), name="mine", where="here"
    ).memory
    assert [shared.rank_bytes(ranks) for ranks in (1, 2, 64, 128)] == [1 << 34, 1 << 33, 1 << 28, 1 << 28]
    assert [alone.rank_bytes(ranks) for ranks in (1, 64)] == [1 << 34] * 2


def test_a_measured_profile_reads_as_it_was_written() -> None:
    """Red when the text loses a section, a quote or digits that matter."""
    table = measured_table(_measurement())
    text = profile_text(table, comment="Two lines\n\nwith a gap.")
    assert tomllib.loads(text) == table
    assert text.startswith("# Two lines\n#\n# with a gap.\n")


def test_what_was_not_measured_is_named() -> None:
    """Red when a missing operation leaves the start values in the profile."""
    whole = _measurement()
    for missing, name in (("elementwise", r"\[elementwise\]"), (COPY, "'copy'")):
        timings = tuple(timing for timing in whole.timings if timing.operation != missing)
        with pytest.raises(ProfileError, match=name):
            measured_table(replace(whole, timings=timings))


def test_ranks_time_every_operation_that_a_profile_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a probe has no timing, a timing has no probe, or ranks disagree about the order."""
    for name, small in (
        ("REPEATS", 1),
        ("LAYER_BYTES", 1 << 16),
        ("COLD_BYTES", 1 << 16),
        ("STREAM_BYTES", 1 << 20),
    ):
        monkeypatch.setattr(on_ranks, name, small)
    for name, few in (
        ("ROWS", (1, 3)),
        ("SHAPES", ((64, 64),)),
        ("HEADS", ((2, 32, 16), (2, 16, 32))),
        ("DECODES", ((2, 40),)),
        ("CHUNKS", ((3, 5),)),
    ):
        monkeypatch.setattr(on_ranks, name, few)
    monkeypatch.setattr(on_ranks, "MESSAGES", (1 << 10,))
    monkeypatch.setattr(on_ranks, "SELECTED", 8)
    job = InProcessBackend().launch(2, "splash.exec.measure:measure_ranks", None)
    try:
        timings = on_ranks.slowest_timings(job.receive(timeout_s=60))
    finally:
        job.close()
    assert {timing.operation for timing in timings} == {*probes(2), STREAM, COPY}
    assert all(timing.seconds > 0 for timing in timings)
    for timing in timings:
        if timing.operation in probes(2):
            assert probes(2)[timing.operation].cost(load_profile("cpu"), timing.counts) > 0


def test_the_command_refuses_a_folder_that_is_not_there_before_it_measures(tmp_path: Path) -> None:
    """Red when a minute of measuring ends with a file that cannot be written."""
    from splash.cli.profile import command

    with pytest.raises(ConfigError, match=r"cannot write .*nowhere.*\(--out\)"):
        command.main(["-o", str(tmp_path / "nowhere" / "mine.toml")], standalone_mode=False)
