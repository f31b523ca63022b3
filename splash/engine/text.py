"""Text of a checkpoint: its tokenizer and its chat template. A checkpoint without tokenizer.json has none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splash.core.errors import CheckpointError, RequestError
from splash.engine.detok import Detokenizer, detokenizers
from splash.engine.template import ChatTemplate
from splash.model.folder import folder_errors

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class Text:
    """Encodes prompts and chats, and decodes what is generated. Safe to use from several threads."""

    def __init__(
        self, tokenizer: Tokenizer, config: Mapping[str, Any], template: ChatTemplate | None
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._special = {name: _content(config[name]) for name in _SPECIAL if config.get(name)}
        self._prefix = self._added_bos(config)
        self._new_detokenizer = detokenizers(tokenizer)

    @property
    def vocab_size(self) -> int:
        """Token ids that the tokenizer knows; the model's vocabulary may be larger."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """The ids of `text`; `special` adds what the model wants around a prompt, such as its first token."""
        ids = tuple(self._tokenizer.encode(text, add_special_tokens=special).ids)
        if special and ids[: len(self._prefix)] != self._prefix:
            return self._prefix + ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, without special tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def detokenizer(self) -> Detokenizer:
        """A new one, for one request."""
        return self._new_detokenizer()

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt for a chat; RequestError if there is no template, the template refuses the messages, or one has an
        image or anything else that is no text."""
        if self._template is None:
            raise RequestError("this model has no chat template; send a plain prompt")
        _check_text(messages)
        return self._template.render(
            messages=messages, add_generation_prompt=add_generation_prompt, **{**self._special, **variables}
        )

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> tuple[int, ...]:
        """The ids of `chat`; special tokens are those that the template writes."""
        return self.encode(self.chat(messages, **variables), special=False)

    def _added_bos(self, config: Mapping[str, Any]) -> tuple[int, ...]:
        """The first token where the config asks for it; tokenizer.json may forget to add it."""
        bos = self._tokenizer.token_to_id(self._special.get("bos_token", ""))
        return (bos,) if config.get("add_bos_token") is True and bos is not None else ()


def _check_text(messages: Sequence[Mapping[str, Any]]) -> None:
    """Templates of models that see would write a placeholder for an image, and the model would answer without it."""
    for number, message in enumerate(messages):
        parts = message.get("content")
        for part in parts if isinstance(parts, (list, tuple)) else ():
            kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
            if kind != "text":
                raise RequestError(
                    f"message {number} has a part of type '{kind}'; only text is served, also by models that read"
                    f" images: send its text alone"
                )


def open_text(folder: str | Path) -> Text | None:
    """The text of a checkpoint folder, or None without tokenizer.json; CheckpointError if its files are damaged."""
    folder = Path(folder)
    with folder_errors(folder):
        return _opened(folder)


def _opened(folder: Path) -> Text | None:
    file = folder / "tokenizer.json"
    if not file.exists():
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{file} is no tokenizer: {' '.join(str(error).split())}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config_file = folder / "tokenizer_config.json"
    config = _read_object(config_file) if config_file.exists() else {}
    _check_special(config, config_file)
    source = _template_source(folder, config)
    return Text(tokenizer, config, None if source is None else ChatTemplate(source))


def _template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own, or in tokenizer_config.json, where there may be several by name."""
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise CheckpointError(f"{file} is not UTF-8 text; get it again") from None
    other = folder / "chat_template.json"
    found = _read_object(other).get("chat_template") if other.exists() else config.get("chat_template")
    if isinstance(found, list):
        found = _default_template(found, other if other.exists() else folder / "tokenizer_config.json")
    return found if isinstance(found, str) else None


def _default_template(entries: list[Any], file: Path) -> str | None:
    """Of several by name the one called default, or the first."""
    try:
        named = {entry["name"]: entry["template"] for entry in entries}
    except (TypeError, KeyError):
        raise CheckpointError(
            f"{file}: chat_template is a list whose entries need a name and a template"
        ) from None
    return named.get("default", next(iter(named.values()), None))


def _check_special(config: Mapping[str, Any], file: Path) -> None:
    for name in _SPECIAL:
        token = config.get(name)
        if isinstance(token, Mapping) and not isinstance(token.get("content"), str):
            raise CheckpointError(
                f"{file}: {name} has no content; write the token itself, or get the file again"
            )


def _read_object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds no object")
    return value


def _content(token: Any) -> str:
    """A special token is a string, or an object with its `content`."""
    return str(token["content"] if isinstance(token, Mapping) else token)
