"""Every error a user can meet. A message says what was wrong, where, and the option that fixes it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class SplashError(Exception):
    """Base of all expected errors; the CLI prints its message on one line and exits with `exit_code`."""

    exit_code = 2


class ConfigError(SplashError):
    """An option, configuration file or model configuration is not usable."""


class CheckpointError(SplashError):
    """A checkpoint folder is missing, foreign, truncated or lacks a tensor."""


class RequestError(SplashError):
    """One request is not servable; it is refused before it reaches the engine loop.

    `what` is the message without the `remedy`: options that a simulation does not have.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what)
        self.what = what


class CapacityError(SplashError):
    """Memory cannot hold what was asked for; the message carries the numbers."""


class NotSupported(SplashError):
    """A port was asked for a capability that its caps say it lacks."""


class PortError(SplashError):
    """A driver, library or device of a port is missing; the message names it and what to install."""


class RankFailure(SplashError):
    """A rank process died or stopped answering; the run cannot go on."""

    exit_code = 3


@contextmanager
def file_errors(doing: str, kind: type[SplashError], option: str = "") -> Iterator[None]:
    """What the system refuses meanwhile is raised as `kind`: "cannot read FILE: why (OPTION)", where `doing` is "read
    FILE". A pipe that nobody reads any more is no fault of the command: BrokenPipeError stays what it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        named = f" ({option})" if option else ""
        raise kind(f"cannot {doing}: {error.strerror or error}{named}") from None


KINDS: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
"""What values of JSON and TOML files are called in messages, by their type here."""


def closest(name: str, known: Iterable[str]) -> str:
    """For a message about an unknown name: ` (did you mean 'x'?)`, or nothing when none is close.
    Of close ones the first that is about as long: a letter for another is likelier than one too many."""
    found = get_close_matches(name, list(known), n=4)
    best = min(found, key=lambda other: abs(len(other) - len(name)), default=None)
    return f" (did you mean '{best}'?)" if best else ""
