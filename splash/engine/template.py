"""A model's chat template: Jinja in the dialect of transformers, sandboxed."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from splash.core.errors import RequestError

if TYPE_CHECKING:
    from jinja2 import Template


class ChatTemplate:
    """Compiled when first rendered. What a template may use beside Jinja: `raise_exception`, `strftime_now`,
    `tojson` that keeps its text as it is, `break` and `continue`, and the `generation` tag."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._compiled: Template | None = None

    def render(self, **variables: Any) -> str:
        """The text of `messages` and whatever else the template uses.

        RequestError carries what the template itself refuses, or says that it cannot cope with the messages.
        """
        from jinja2 import TemplateError

        try:
            if self._compiled is None:
                self._compiled = _compile(self.source)
            return self._compiled.render(**variables)
        except _Refused as refusal:
            raise RequestError(f"the chat template refuses the messages: {refusal}") from None
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise RequestError(
                f"the chat template fails on these messages: {type(error).__name__}: {error}"
            ) from None


class _Refused(Exception):
    """A template called `raise_exception`."""


def _compile(source: str) -> Template:
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what the model wrote, for training; here it is just its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment.from_string(source)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> NoReturn:
    raise _Refused(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
