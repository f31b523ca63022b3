"""Incremental text equals the text of all tokens, whatever the tokenizer and however the tokens arrive (CASES 41)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from splash.engine.detok import (
    MAX_HELD,
    REPLACEMENT,
    ByteDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    detokenizers,
)
from tests.engine.tokenizers_made import MAKERS

TOKENIZERS = {name: make() for name, make in MAKERS.items()}
BYTES = ("byte_level", "byte_fallback")

_CHARACTERS = st.sampled_from(
    [*"abc xyz.,!\n", *"안녕하세요한국어", *"éüß", *"👍🇰🇷👩‍👧🏽", "\u200d", "\ufe0f", "\ufffd"]
)
TEXTS = st.lists(_CHARACTERS, max_size=40).map("".join)


def _pieces(detokenizer: Detokenizer, tokens: Sequence[int], interval: int) -> list[str]:
    """What comes when `interval` tokens are pushed at a time, and at the end."""
    runs = [tokens[i : i + interval] for i in range(0, len(tokens), interval)]
    return [*(detokenizer.push(run) for run in runs), detokenizer.finish()]


def test_kinds_are_recognised() -> None:
    """Red when the fast way is lost for a tokenizer of bytes, or taken for one that is none."""
    found = {name: type(detokenizers(tokenizer)()) for name, tokenizer in TOKENIZERS.items()}
    assert found == {
        "byte_level": ByteDetokenizer,
        "byte_fallback": ByteDetokenizer,
        "word_piece": WindowDetokenizer,
        "metaspace": WindowDetokenizer,
    }


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=TEXTS, interval=st.integers(1, 7))
def test_joined_pieces_are_the_text(name: str, text: str, interval: int) -> None:
    """Red when a character that is cut by tokens becomes U+FFFD, is lost, or comes twice."""
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.encode(text).ids
    pieces = _pieces(detokenizers(tokenizer)(), tokens, interval)
    assert "".join(pieces) == tokenizer.decode(tokens)
    if name in BYTES and REPLACEMENT not in text:
        assert REPLACEMENT not in "".join(pieces)


@given(text=TEXTS, cut=st.integers(0, 80), interval=st.integers(1, 5))
def test_a_text_may_end_within_a_character(text: str, cut: int, interval: int) -> None:
    """Red when max_tokens inside a character shows half of it early, or hides that there was one."""
    tokenizer = TOKENIZERS["byte_level"]
    tokens = tokenizer.encode(text).ids[:cut]
    *pieces, last = _pieces(detokenizers(tokenizer)(), tokens, interval)
    assert "".join(pieces) + last == tokenizer.decode(tokens)
    if REPLACEMENT not in text:
        assert REPLACEMENT not in "".join(pieces)
        assert last in ("", REPLACEMENT)


@given(data=st.data(), interval=st.integers(1, 5))
def test_any_tokens_of_a_byte_level_tokenizer(data: st.DataObject, interval: int) -> None:
    """Red when invalid bytes, special, added or unknown tokens are decoded otherwise than by the tokenizer."""
    tokenizer = TOKENIZERS["byte_level"]
    ids = st.integers(0, tokenizer.get_vocab_size() + 3)
    tokens = data.draw(st.lists(ids, max_size=30))
    assert "".join(_pieces(detokenizers(tokenizer)(), tokens, interval)) == tokenizer.decode(tokens)


@given(data=st.data())
def test_byte_fallback_keeps_what_is_valid(data: st.DataObject) -> None:
    """Red when an invalid byte takes valid characters around it with it, or is held for ever."""
    tokenizer = TOKENIZERS["byte_fallback"]
    raw = data.draw(
        st.lists(st.sampled_from(["é".encode(), "한".encode(), b"\xff", b"\xe2\x82"]), max_size=12)
    )
    tokens = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in b"".join(raw)]
    detokenizer = detokenizers(tokenizer)()
    assert "".join(_pieces(detokenizer, tokens, 1)) == b"".join(raw).decode("utf-8", "replace")


def test_invalid_bytes_come_after_a_bound() -> None:
    """Red when bytes that never become a character are held until the end."""
    for name in BYTES:
        tokenizer = TOKENIZERS[name]
        bad = tokenizer.token_to_id("<0xFF>" if name == "byte_fallback" else "ÿ")
        detokenizer = detokenizers(tokenizer)()
        assert "".join(detokenizer.push([bad]) for _ in range(5)) == REPLACEMENT * 5
    tokenizer = TOKENIZERS["byte_fallback"]
    window = WindowDetokenizer(tokenizer.decode, frozenset())
    bad = tokenizer.token_to_id("<0xFF>")
    assert any(window.push([bad]) for _ in range(MAX_HELD + 1))


def test_the_tail_is_flushed_once() -> None:
    """Red when finishing twice repeats the tail."""
    tokenizer = TOKENIZERS["byte_level"]
    tokens = [tokenizer.token_to_id(char) for char in "ìķ"]  # two of the three bytes of a hangul
    for detokenizer in (detokenizers(tokenizer)(), WindowDetokenizer(tokenizer.decode, frozenset())):
        assert detokenizer.push(tokens) == ""
        assert detokenizer.finish() == REPLACEMENT
        assert detokenizer.finish() == ""


def test_special_tokens_are_no_text() -> None:
    """Red when an end-of-text marker shows up in the text."""
    tokenizer = TOKENIZERS["byte_level"]
    end, tool = tokenizer.token_to_id("</s>"), tokenizer.token_to_id("<tool>")
    tokens = [*tokenizer.encode("fox", add_special_tokens=False).ids, tool, end, end]
    assert "".join(_pieces(detokenizers(tokenizer)(), tokens, 1)) == "fox<tool>"


@given(text=TEXTS, interval=st.integers(1, 5))
def test_the_window_gives_the_same_as_the_bytes(text: str, interval: int) -> None:
    """Red when the slow twin and the fast way disagree."""
    tokenizer = TOKENIZERS["byte_level"]
    tokens = tokenizer.encode(text).ids
    fast, slow = detokenizers(tokenizer)(), WindowDetokenizer(tokenizer.decode, frozenset({0, 1}))
    assert "".join(_pieces(fast, tokens, interval)) == "".join(_pieces(slow, tokens, interval))


def test_requests_do_not_share_what_they_hold() -> None:
    """Red when two requests' bytes run into each other."""
    tokenizer = TOKENIZERS["byte_level"]
    new = detokenizers(tokenizer)
    one, other = new(), new()
    byte = tokenizer.token_to_id("ì")
    assert one.push([byte]) == other.push([byte]) == ""
    assert other.push([tokenizer.token_to_id("a")]) == REPLACEMENT + "a"
    assert one.finish() == REPLACEMENT


def test_a_tokenizer_without_decoder() -> None:
    """Red when a bare tokenizer.json ends in a traceback."""
    tokenizer = Tokenizer.from_str(TOKENIZERS["word_piece"].to_str())
    tokenizer.decoder = decoders.Sequence([])
    tokens = tokenizer.encode("the quick fox").ids
    assert "".join(_pieces(detokenizers(tokenizer)(), tokens, 1)) == tokenizer.decode(tokens)
