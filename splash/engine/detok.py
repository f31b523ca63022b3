"""Token ids to text as they come: whole characters only, and no token is decoded twice.

Tokens of byte-level and byte-fallback tokenizers are bytes, so their text is an incremental UTF-8 decoding: at most
three bytes are held, and invalid ones become U+FFFD at once. Other tokenizers decode a small window of tokens.
Joined pieces equal the tokenizer's decoding of all ids; only a run of byte-fallback tokens that is not UTF-8 differs:
there the valid characters are kept, which the tokenizer gives up.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
MAX_HELD = 8
"""Tokens that a `WindowDetokenizer` holds at most; a character has four bytes, so four tokens."""


class Detokenizer(Protocol):
    """The text of one request."""

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete; may be empty."""
        ...

    def finish(self) -> str:
        """What is still held, once: an unfinished character as U+FFFD."""
        ...


class TokenBytes(dict[int, bytes]):
    """The bytes of each token, found when first asked for; empty for special and for unknown ids."""

    def __init__(self, tokenizer: Tokenizer, to_bytes: Callable[[str], bytes], *, strip: int) -> None:
        super().__init__(dict.fromkeys(special_ids(tokenizer), b""))
        self._token = tokenizer.id_to_token
        self._to_bytes = to_bytes
        self.strip = strip
        """Spaces to be dropped at the beginning of a text, at most."""

    def __missing__(self, token_id: int) -> bytes:
        token = self._token(token_id)
        self[token_id] = found = b"" if token is None else self._to_bytes(token)
        return found


class ByteDetokenizer:
    """Of a tokenizer whose tokens are bytes."""

    def __init__(self, tokens: TokenBytes) -> None:
        self._tokens = tokens
        self._strip = tokens.strip
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, tokens: Sequence[int]) -> str:
        table = self._tokens
        data = table[tokens[0]] if len(tokens) == 1 else b"".join([table[token] for token in tokens])
        text = self._decode(data)
        return text if not self._strip else self._stripped(text)

    def finish(self) -> str:
        return self._stripped(self._decode(b"", True))

    def _stripped(self, text: str) -> str:
        """`text` without the spaces that are still to be dropped."""
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text


class WindowDetokenizer:
    """Of any other tokenizer: decodes the last piece and what came since, and gives what that adds."""

    def __init__(self, decode: Callable[[list[int]], str], skip: frozenset[int]) -> None:
        self._decode = decode
        self._skip = skip
        self._window: list[int] = []
        self._given = 0
        """Tokens of the window whose text was given, which is `_text`."""
        self._text = ""

    def push(self, tokens: Sequence[int]) -> str:
        return "".join([self._push(token) for token in tokens if token not in self._skip])

    def _push(self, token: int) -> str:
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT) and len(self._window) - self._given <= MAX_HELD:
            return ""
        return self._give(text)

    def finish(self) -> str:
        return self._give(self._decode(self._window))

    def _give(self, text: str) -> str:
        piece = text[len(self._text) :]
        self._window = self._window[self._given :]
        self._given = len(self._window)
        self._text = self._decode(self._window)
        return piece


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids of special tokens, which are no text."""
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)


def detokenizers(tokenizer: Tokenizer) -> Callable[[], Detokenizer]:
    """Makes detokenizers for `tokenizer`; they share what is known of its tokens."""
    tokens = _token_bytes(tokenizer)
    if tokens is not None:
        return lambda: ByteDetokenizer(tokens)
    skip = special_ids(tokenizer)
    return lambda: WindowDetokenizer(tokenizer.decode, skip)


def _token_bytes(tokenizer: Tokenizer) -> TokenBytes | None:
    """The table for a tokenizer whose decoder is one of those that deal in bytes; None for others."""
    if tokenizer.decoder is None:
        return None
    decoder = json.loads(tokenizer.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return TokenBytes(tokenizer, _byte_level(), strip=0)
    fallback = _byte_fallback(steps)
    return None if fallback is None else TokenBytes(tokenizer, fallback[0], strip=fallback[1])


def _byte_level() -> Callable[[str], bytes]:
    """Bytes of a token in GPT-2's alphabet, in which each byte is a printable character."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    byte_of = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}

    def to_bytes(token: str) -> bytes:
        try:
            return bytes([byte_of[char] for char in token])
        except KeyError:  # an added token in plain text
            return token.encode()

    return to_bytes


def _byte_fallback(steps: Iterable[dict[str, Any]]) -> tuple[Callable[[str], bytes], int] | None:
    """Bytes of a SentencePiece-like token, and the spaces to strip in front: Replace*, ByteFallback, Fuse, Strip?."""
    replacements: list[tuple[str, str]] = []
    rest = list(steps)
    while rest and rest[0]["type"] == "Replace" and "String" in rest[0]["pattern"]:
        step = rest.pop(0)
        replacements.append((step["pattern"]["String"], step["content"]))
    strip = 0
    if len(rest) == 3 and rest[2]["type"] == "Strip" and rest[2]["content"] == " " and rest[2]["stop"] == 0:
        strip = int(rest.pop()["start"])
    if [step["type"] for step in rest] != ["ByteFallback", "Fuse"]:
        return None

    def to_bytes(token: str) -> bytes:
        for old, new in replacements:
            token = token.replace(old, new)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return bytes.fromhex(token[3:5])
            except ValueError:
                pass
        return token.encode()

    return to_bytes, strip
