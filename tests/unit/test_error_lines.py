"""What the commands say of bad input, in one form: `splash: what is wrong (--option)`."""

from __future__ import annotations

import pytest

from splash import cli

DEPLOYED = ("run", "sim", "plan")


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_an_unknown_option(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """Red when a command tells of it in another form, or not where all options are listed."""
    assert cli._run([command, "--zzzz"]) == 2
    assert (
        capsys.readouterr().err == f"splash: no such option '--zzzz'; `splash {command} --help` lists all\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        *(
            ((name, "--ranks", "x"), "'x' is not a valid integer (--ranks)")
            for name in (*DEPLOYED, "conformance")
        ),
        *(((name, "--kv-dtype", "fp9"), "unknown KV type 'fp9'") for name in DEPLOYED),
        *(
            ((name, "--objective", "latecy"), "unknown objective 'latecy' (did you mean")
            for name in ("run", "sim")
        ),
        (("run", "--switch", "3:pd"), "unknown layout 'pd'; known: tp, dp, cp, dop, dcp (--switch)"),
        (("run", "--workload", ""), "unknown workload ''; known: default, burst"),
        (
            ("run", "--laiout", "tp"),
            "no such option '--laiout' (did you mean '--layout'?); `splash run --help`",
        ),
        (("replay",), "missing argument FILE; `splash replay --help` lists all"),
        (("profile",), "missing option --out; `splash profile --help` lists all"),
        (("profile", "--out", "/"), "cannot write /: Is a directory (--out)"),
        (("doctor", "more"), "got unexpected extra argument (more)"),
    ],
)
def test_one_form(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    """Red when a bad value is told with another prefix, or without the option that it was given to."""
    assert cli._run(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"splash: {said}")
    assert error.count("\n") == 1
    assert not error.endswith(".\n")
