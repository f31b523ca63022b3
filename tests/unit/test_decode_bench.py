"""The figures of `bench.decode`."""

from __future__ import annotations

from bench.decode import FIXED_PEERS, against_fixed


def test_the_best_layout_is_held_against_the_fixed_figures() -> None:
    """Red when another layout, another number of requests or the wrong side of a figure is taken."""
    rows = [
        {"layout": layout, "requests": count, "tokens_per_s": rate}
        for layout, count, rate in [("tp", 1, 50.0), ("dp", 1, 40.0), ("tp", 16, 100.0), ("dp", 16, 300.0)]
    ]
    found = {(each["peer"].split()[0], each["requests"]): each for each in against_fixed(rows)}
    assert len(found) == 2 * len(FIXED_PEERS), "64 requests were not measured"
    assert [found["vllm-cpu", n]["best_layout"] for n in (1, 16)] == ["tp", "dp"]
    assert [found["vllm-cpu", n]["exceeds"] for n in (1, 16)] == [True, True]
    assert [found["a", n]["exceeds"] for n in (1, 16)] == [False, True]
