"""The comparison with tables of measured operations: what it reads, and that it says when there are none."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bench import cost_vs_tables, silicon
from splash.hw import ops
from splash.hw.load import load_profile


def test_without_tables_it_says_so_and_measures_nothing(tmp_path: Path) -> None:
    """Red when absent tables look like gates that hold."""
    result = CliRunner().invoke(cost_vs_tables.main, ["--tables", str(tmp_path / "nowhere")])
    assert result.exit_code == 0
    assert result.output.startswith("skipped: no tables in")


def test_rows_are_chosen_by_their_texts_and_costed_at_their_counts(tmp_path: Path) -> None:
    """Red when a filter is dropped, or microseconds are taken for seconds."""
    p = load_profile("h200")
    exact = float(ops.gemm_s(p, 16, 512, 1024, "bfloat16"))
    lines = [
        "kind,m,n,k,us",
        f"mine,16,512,1024,{exact * 1e6}",
        "other,16,512,1024,1",
        "mine,32,512,1024,1e9",
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    measured = silicon.gemm(tmp_path, "t.csv", "bfloat16", where={"kind": "mine"})
    assert measured.errors(p, np.array([True, False])) == pytest.approx([0], abs=1e-9)
    assert measured.errors(p, np.array([False, True])) == pytest.approx([1], abs=1e-3)
    with pytest.raises(ValueError, match=r"t\.csv has no row"):
        silicon.gemm(tmp_path, "t.csv", "bfloat16", where={"kind": "nobody's"})


def test_half_of_the_rows_judge_and_the_same_half_every_time() -> None:
    """Red when fitted rows judge themselves."""
    many = silicon.measured("x", "t", np.ones(1001), lambda p: np.ones(1001))
    again = silicon.measured("x", "t", np.ones(1001), lambda p: np.ones(1001))
    few = silicon.measured("x", "t", np.ones(7), lambda p: np.ones(7))
    assert 450 < many.held_out.sum() < 550
    assert np.array_equal(many.held_out, again.held_out)
    assert few.held_out.tolist() == [False, True] * 3 + [False]


def test_both_halves_of_a_small_table_have_every_shape(tmp_path: Path) -> None:
    """Red when a table that lists two shapes in turn is fitted to one of them and judged by the other."""
    lines = [f"{m},{n},{k},1" for m in (1, 2, 4, 8) for n, k in ((512, 1024), (1024, 256))]
    (tmp_path / "t.csv").write_text("\n".join(["m,n,k,us", *lines]))
    held_out = silicon.gemm(tmp_path, "t.csv", "bfloat16").held_out
    assert held_out.tolist() == [False, False, True, True] * 2


def test_a_gate_bounds_the_median_and_the_90th_percentile() -> None:
    """Red when one of both is enough."""
    good, skewed, off = np.full(20, 0.05), np.array([0.05] * 17 + [0.9] * 3), np.full(20, 0.2)
    verdicts = [cost_vs_tables.line("p", "w", errors, (12, 30)).verdict for errors in (good, skewed, off)]
    assert verdicts == ["holds", "MISSED", "MISSED"]
