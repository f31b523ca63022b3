"""A frame of a trace as a picture."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
from click.testing import CliRunner

from splash.core.errors import ConfigError
from splash.core.events import to_json
from splash.tui.svg import frame_svg, main, read_events, snapshot_at
from tests.tui.stream import Run


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "run.jsonl"
    lines = [json.dumps({"kind": "event", **to_json(event)}) for event in Run().events()]
    others = ['{"kind":"header","version":1}', '{"kind":"abort","step":3,"request":1}']
    path.write_text("\n".join([*others, *lines, ""]), encoding="utf-8")
    return path


def test_a_trace_becomes_a_picture(trace, tmp_path) -> None:
    """Red when the command, the moment or the width is not respected, or the SVG is not well formed."""
    out = tmp_path / "view.svg"
    result = CliRunner().invoke(main, [str(trace), str(out), "--at", "1.0", "--width", "120"])
    assert result.exit_code == 0, result.output
    text = out.read_text(encoding="utf-8").replace("&#160;", " ")
    ElementTree.fromstring(text)
    for fact in ("splash-demo", "transitions", "layouts over time", "#b83d83", "flips left"):
        assert fact in text
    assert "run done" not in text, "later events are not in the picture"


def test_the_moment(trace) -> None:
    """Red when events after the moment are folded."""
    assert snapshot_at(read_events(trace), 1.0).t <= 1.0
    assert snapshot_at(read_events(trace), None).finished is not None
    assert frame_svg(snapshot_at([], None)).startswith("<svg")


@pytest.mark.parametrize("line", ['{"event": "Odd"}', '{"event": "RunFinished", "t": 1}', "no json"])
def test_a_broken_trace_is_named_with_its_line(tmp_path, line: str) -> None:
    """Red when a bad line shows a traceback, or is passed over."""
    path = tmp_path / "bad.jsonl"
    path.write_text("{}\n" + line + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.jsonl:2: "):
        list(read_events(path))
    result = CliRunner().invoke(main, [str(path), str(tmp_path / "out.svg")])
    assert result.exit_code == 1
    assert "bad.jsonl:2" in result.output
    assert CliRunner().invoke(main, [str(tmp_path / "none"), "x.svg"]).exit_code == 1
