"""The command line, one file a command. A command's module is imported when it is used or shown, and imports
nothing heavy before it runs, so that `splash --help` answers at once."""

from __future__ import annotations

import errno
import importlib
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType

import click

import splash
from splash.core import env
from splash.core.errors import SplashError, closest

COMMANDS = ("run", "sim", "plan", "replay", "profile", "doctor", "conformance")
INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a disk answers that takes no more."""


class _Commands(click.Group):
    """Finds `splash NAME` in the module `splash.cli.NAME`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"splash.cli.{name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            known = f"known: {', '.join(COMMANDS)}"
            raise click.UsageError(f"no such command '{name}'{closest(name, COMMANDS)}; {known}", ctx)
        return super().resolve_command(ctx, args)


@click.command(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(splash.__version__, prog_name="splash", message="%(prog)s %(version)s")
def cli() -> None:
    """An LLM serving engine that changes the parallel layout of attention while requests run.

    `splash run` serves the demo model on two CPU ranks and shows layouts being switched.
    """


class Interrupted(BaseException):
    """A signal asked for the end; unlike an Exception it passes every handler on the way to `main`."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and exits: 0, 1 (a check failed, or nobody reads on), 2 (bad input, one line), 3 (a rank failed),
    128 + signal."""
    catch_signals()
    sys.exit(_run(arguments))


def catch_signals() -> None:
    """A service manager's and a closed terminal's signal end a run in order, unless they are ignored (nohup)."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = cli.main(args=arguments, prog_name="splash", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 0
    except click.ClickException as error:
        return _fail(error, _said(error), error.exit_code)
    except SplashError as error:
        return _fail(error, str(error), error.exit_code)
    except Interrupted as error:
        return _fail(error, "interrupted", error.exit_code)
    except (KeyboardInterrupt, click.Abort) as error:
        return _fail(error, "interrupted", INTERRUPTED)
    except BrokenPipeError:
        sys.stdout = None  # nobody reads on: nothing is left to flush
        return 1
    except OSError as error:  # a file or disk that nobody had in mind
        return _fail(error, _refused(error), SplashError.exit_code)
    return code if isinstance(code, int) else 0


def _said(error: click.ClickException) -> str:
    """On one line, in the form of all others: what is wrong, and the option that it is about."""
    match error:
        case click.NoSuchOption():
            likely = " or ".join(f"'{name}'" for name in error.possibilities or ())
            text = f"no such option '{error.option_name}'" + (f" (did you mean {likely}?)" if likely else "")
        case click.MissingParameter(param=click.Parameter() as param):
            text = f"missing {param.param_type_name} {_name(param)}"
        case click.BadParameter(param=click.Parameter() as param):
            return f"{_one_line(error.message)} ({_name(param)})"
        case _:
            text = _one_line(error.format_message())
            return text[:1].lower() + text[1:]
    return text if error.ctx is None else f"{text}; `{error.ctx.command_path} --help` lists all"


def _refused(error: OSError) -> str:
    """By the system. What has no name is standard output: other files are named where they are used."""
    if error.filename is None and error.errno in FULL:
        return f"cannot write standard output: {error.strerror}"
    return str(error)


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _name(param: click.Parameter) -> str:
    return max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


def _fail(error: BaseException, message: str, exit_code: int) -> int:
    """One line; with $SPLASH_DEBUG everything."""
    if env.debug():
        traceback.print_exception(error)
    first, *more = message.splitlines() or [type(error).__name__]
    hint = " (SPLASH_DEBUG=1 shows more)" if more and not env.debug() else ""
    print(f"splash: {first}{hint}", file=sys.stderr)
    return exit_code
