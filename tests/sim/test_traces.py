"""Trace files: every published shape is understood, and what is wrong is named with file and line."""

import gzip
import json
from pathlib import Path

import pytest

from splash.core.errors import ConfigError
from splash.sim.traces import load
from splash.sim.workload import Arrival, Workload


def _read(tmp_path: Path, text: str, name: str = "trace.dat") -> Workload:
    file = tmp_path / name
    file.write_bytes(text.encode())
    return load(str(file), seed=0)


def _short(workload: Workload) -> list[tuple[float, int, int]]:
    return [(round(x.time_ns / 1e9, 7), x.prompt_tokens, x.output_tokens) for x in workload.arrivals]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:46.6805900,374,44\n"
            "2023-11-16 18:15:50.9951690,396,109\n",
            [(0, 374, 44), (4.314579, 396, 109)],
            id="azure-2023",
        ),
        pytest.param(
            "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
            "2024-05-10 00:00:00.009930+00:00,2162,5\r\n"
            "2024-05-10 00:00:01+00:00,2399,6\r\n",
            [(0, 2162, 5), (0.99007, 2399, 6)],
            id="azure-2024",
        ),
        pytest.param(
            "timestamp,arrival_s,prompt_tokens,output_tokens\n2023-11-16 18:15:46.6805900,0.5,374,44\n",
            [(0.5, 374, 44)],
            id="azure-with-seconds",
        ),
        pytest.param(
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "5,ChatGPT,472,18,490,Conversation log\n"
            "45.5,GPT-4,1087,230,1317,API log\n",
            [(0, 472, 18), (40.5, 1087, 230)],
            id="burstgpt",
        ),
        pytest.param(
            '{"timestamp": 0, "input_length": 6758, "output_length": 500}\n'
            '{"timestamp": 27482, "input_length": 655, "output_length": 52}\n',
            [(0, 6758, 500), (27.482, 655, 52)],
            id="mooncake-milliseconds",
        ),
        pytest.param(
            '{"timestamp": 61.114, "input_length": 521, "output_length": 132}\n'
            '{"timestamp": 62, "input_length": 12, "output_length": 1}\n',
            [(0, 521, 132), (0.886, 12, 1)],
            id="bailian-seconds",
        ),
        pytest.param(
            '{"arrival_time": 2.5, "prompt_len": 9, "output_len": 3}\n\n'
            '{"arrival_time": 3, "prompt_len": 8, "output_len": 2, "model": "x"}\n',
            [(0, 9, 3), (0.5, 8, 2)],
            id="prompt-len",
        ),
        pytest.param(
            "\ufeffarrival_s, prompt_tokens, output_tokens\n0.25, 10, 20\n0.25, 11.0, 21\n",
            [(0.25, 10, 20), (0.25, 11, 21)],
            id="plain",
        ),
    ],
)
def test_published_shapes_are_read(tmp_path: Path, text: str, expected: list[tuple[float, int, int]]) -> None:
    """Red when a column is taken for another one, or a time for another unit."""
    assert _short(_read(tmp_path, text)) == expected


def test_prefix_hashes_and_their_block(tmp_path: Path) -> None:
    """Red when hashes of shared prefixes are lost, or their block's size is guessed wrong."""
    mooncake = _read(
        tmp_path,
        '{"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]}\n'
        '{"timestamp": 3000, "input_length": 512, "output_length": 5, "hash_ids": [0]}\n',
    )
    assert mooncake.prefix_block == 512
    assert [arrival.prefix for arrival in mooncake.arrivals] == [(0, 1, 2), (0,)]
    assert mooncake.arrivals[1].time_s == 3
    bailian = _read(
        tmp_path,
        '{"timestamp": 7, "input_length": 40, "output_length": 5, "hash_ids": [4, 5, 6]}\n'
        '{"timestamp": 9, "input_length": 16, "output_length": 5, "hash_ids": [4]}\n',
    )
    assert bailian.prefix_block == 16
    assert bailian.arrivals[1].time_s == 2, "hashes of 16 tokens come with seconds"
    ranges = _read(
        tmp_path,
        '{"arrival_s": 0, "prompt_tokens": 290, "output_tokens": 5, "session": 8, "hash_ranges": [[3, 5], [9, 9]]}\n',
    )
    assert ranges.prefix_block == 64
    assert ranges.arrivals == (Arrival(0, 290, 5, session=0, prefix=(3, 4, 5, 9)),)
    odd = _read(
        tmp_path, '{"arrival_s": 0, "prompt_tokens": 90, "output_tokens": 5, "hash_ids": [3, 5, 7, 8]}\n'
    )
    assert (odd.prefix_block, odd.arrivals[0].prefix) == (0, ()), "no block size fits four hashes"


def test_samples_of_a_prompt_are_grouped(tmp_path: Path) -> None:
    """Red when samples of different prompts are taken for one prompt's, as across the steps of a training run."""
    workload = _read(
        tmp_path,
        "step,arrival_s,prompt_group,prompt_tokens,output_tokens\n"
        "0,0,0,5,1\n0,0,0,5,2\n0,0,1,6,1\n1,0,0,7,1\n",
    )
    assert [arrival.group for arrival in workload.arrivals] == [0, 0, 1, 2]


def test_a_rate_stretches_the_times(tmp_path: Path) -> None:
    """Red when --rate changes anything but the times, or is not reached."""
    file = tmp_path / "a.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,2\n1,3,4\n4,5,6\n")
    workload = load(str(file), seed=0, rate=4)
    assert workload.rate == pytest.approx(4)
    assert _short(workload) == [(0, 1, 2), (0.125, 3, 4), (0.5, 5, 6)]
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,2\n0,3,4\n")
    with pytest.raises(ConfigError, match="at once"):
        load(str(file), seed=0, rate=4)


HEAD = "arrival_s,prompt_tokens,output_tokens\n0,5,5\n"
LINE = '{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 5}\n'


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("", 1, "the file is empty"),
        (" \n\n", 1, "the file is empty"),
        ("arrival_s,prompt_tokens,output_tokens\n", 1, "no request below it"),
        ("arrival_s,prompt_tokens\n0,1\n", 1, "no column for the output length: expected one of output_tokens,"),
        ("t_s,rate_rps\n0,1\n", 1, "no column for the arrival"),
        ("arrival_s,arrival_s,x\n0,1,2\n", 1, "two columns are called 'arrival_s'"),
        (HEAD + "1,-5,5\n", 3, "prompt_tokens is -5; it must be at least 1 token"),
        (HEAD + "1,5,0\n", 3, "output_tokens is 0; it must be at least 1 token; leave out requests that failed"),
        (HEAD + "1,5,2.5\n", 3, "output_tokens is 2.5; it must be a whole number"),
        (HEAD + "1,5,nan\n", 3, "output_tokens is 'nan'; it must be a number"),
        (HEAD + "1,inf,5\n", 3, "prompt_tokens is 'inf'"),
        (HEAD + "nan,5,5\n", 3, "arrival_s is 'nan'"),
        (HEAD + "1e300,5,5\n", 3, "arrival_s is '1e300'"),
        (HEAD + "1_0,5,5\n", 3, "arrival_s is '1_0'"),
        (HEAD + "soon,5,5\n", 3, "arrival_s is 'soon'"),
        (HEAD + "1,,5\n", 3, "prompt_tokens is empty"),
        (HEAD + "1,5\n", 3, "2 fields, but the header has 3"),
        (HEAD + "1,5,5,5\n", 3, "4 fields, but the header has 3"),
        (HEAD + "2,5,5\n\n1,5,5\n", 5, "before the row above; sort the file by arrival"),
        ("arrival_s,prompt_tokens,output_tokens\n-1,5,5\n", 2, "before the start of the run"),
        (HEAD + '1,"5,5\n', 3, "fields"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,5,5\nyesterday,5,5\n", 3, "'yesterday'; it"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,5,5\nNaT,5,5\n", 3, "'NaT'; it must be a date"),
        ("[]", 1, "a JSON array; write one object a line"),
        (LINE + "{", 2, "not JSON, at column 2: "),
        ('{"prompt": "hi"\n', 1, "not JSON, at column 16: "),
        (LINE + "5\n", 2, "expected a JSON object, found a whole number"),
        (LINE + '{"arrival_s": 1, "prompt_tokens": 5}\n', 2, "output_tokens is missing"),
        (LINE + '{"arrival_s": NaN, "prompt_tokens": 5, "output_tokens": 5}\n', 2, "arrival_s is nan"),
        (LINE + '{"arrival_s": 1, "prompt_tokens": true, "output_tokens": 5}\n', 2, "prompt_tokens is True"),
        (LINE + '{"arrival_s": 1, "prompt_tokens": null, "output_tokens": 5}\n', 2, "prompt_tokens is None"),
        (
            '{"arrival_s": 1, "prompt_tokens": 5, "output_tokens": 5, "hash_ids": [1.5]}\n',
            1,
            "hash_ids must be a list of whole numbers",
        ),
        (
            '{"arrival_s": 1, "prompt_tokens": 5, "output_tokens": 5, "hash_ranges": [1]}\n',
            1,
            "hash_ranges must be a list of pairs",
        ),
    ],
)  # fmt: skip
def test_a_bad_row_is_named(tmp_path: Path, text: str, line: int, complaint: str) -> None:
    """Red when a broken trace is simulated, or refused without file, line and option."""
    with pytest.raises(ConfigError) as error:
        _read(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path / 'trace.dat'}:{line}: ")
    assert str(error.value).endswith(" (--workload)")
    assert complaint in str(error.value)


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    """Red when a packed file, a folder or a missing one ends in a traceback."""
    file = tmp_path / "trace.csv.gz"
    file.write_bytes(gzip.compress(HEAD.encode()))
    with pytest.raises(ConfigError, match=r"gz:1: not UTF-8 text; convert it, or unpack it"):
        load(str(file), seed=0)
    file.write_bytes(HEAD.encode() + b"1,5,\xff\n")
    with pytest.raises(ConfigError, match="gz:3: not UTF-8"):
        load(str(file), seed=0)
    for path in (tmp_path, tmp_path / "none.csv"):
        with pytest.raises(ConfigError, match="cannot read the trace"):
            load(str(path), seed=0)


def test_json_and_csv_give_the_same(tmp_path: Path) -> None:
    """Red when the two readers disagree about the same requests."""
    rows = [{"arrival_s": i / 7, "prompt_tokens": i + 1, "output_tokens": 2 * i + 1} for i in range(50)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    table = "arrival_s,prompt_tokens,output_tokens\n" + "".join(
        f"{row['arrival_s']!r},{row['prompt_tokens']},{row['output_tokens']}\n" for row in rows
    )
    assert _read(tmp_path, lines).arrivals == _read(tmp_path, table).arrivals
