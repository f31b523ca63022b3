"""What a report keeps of the policy's answers: all changes, some of the rest, and how true the predictions were."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from splash.core.events import PolicyAsked
from splash.engine.decisions import MAX_CHANGES, MAX_STAYS, Decisions
from splash.engine.report import RunReport


def asked(step: int, chosen: str = "tp", observed_s: float | None = None) -> PolicyAsked:
    return PolicyAsked(step * 0.01, step, "tp", chosen, "", {"tp": 0.02, "dp": 0.01}, observed_s)


def test_changes_are_kept_and_the_rest_is_thinned() -> None:
    """Red when a change is lost among thousands of questions, or those fill the memory."""
    decisions = Decisions()
    changes = {7, 4001, 9999}
    for step in range(10_000):
        decisions.event(asked(step, "dp" if step in changes else "tp"))
    kept = decisions.to_json()
    assert {d["step"] for d in kept if d["chosen"] != d["target"]} == changes
    stays = [d["step"] for d in kept if d["chosen"] == d["target"]]
    assert MAX_STAYS // 2 <= len(stays) <= MAX_STAYS
    gaps = [b - a for a, b in pairwise(stays)]
    assert max(gaps) - min(gaps) <= len(changes), "evenly spaced"
    assert [d["step"] for d in kept] == sorted(d["step"] for d in kept)
    assert decisions.prediction()["asked"] == 10_000


def test_stripes_for_the_long_ones_are_a_change() -> None:
    """Red when a change of the long requests alone is thinned away with the answers that stay."""
    decisions = Decisions()
    for step in range(1000):
        decisions.event(replace(asked(step), chosen_striped_from=8192 if step == 501 else None))
    (change,) = [d for d in decisions.to_json() if d["chosen_striped_from"]]
    assert change["step"] == 501


def test_changes_that_are_refused_for_ever_are_bounded() -> None:
    """Red when a target that does not fit fills the memory of a long run."""
    decisions = Decisions()
    for step in range(MAX_CHANGES + 50):
        decisions.event(asked(step, "dp"))
    assert len(decisions.to_json()) == MAX_CHANGES


def test_observed_over_predicted() -> None:
    """Red when the ratio is not that of the target, or counts questions without an observation."""
    decisions = Decisions()
    for step, observed_s in enumerate((0.01, 0.02, 0.03, None)):
        decisions.event(asked(step, observed_s=observed_s))
    found = decisions.prediction()
    assert found["compared"] == 3
    assert found["observed_over_predicted"]["p50"] == pytest.approx(1.0)
    assert found["observed_over_predicted"]["p5"] == pytest.approx(0.55)


def test_a_report_has_them() -> None:
    """Red when the JSON of a run leaves out what the policy said, or invents something."""
    report = RunReport()
    assert report.to_json()["decisions"] == []
    assert report.to_json()["prediction"]["observed_over_predicted"] == {"p5": None, "p50": None, "p95": None}
    report.event(asked(3, "dp", 0.021))
    assert report.to_json()["decisions"] == [
        {
            "t": 0.03,
            "step": 3,
            "target": "tp",
            "target_striped_from": None,
            "chosen": "dp",
            "chosen_striped_from": None,
            "reason": "",
            "predicted": {"tp": 0.02, "dp": 0.01},
            "observed_s": 0.021,
        }
    ]
