"""Prompts and chats of a checkpoint, against what transformers makes of the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from splash.core.errors import CheckpointError, RequestError
from splash.engine.text import Text, open_text
from tests.engine.tokenizers_made import byte_fallback, byte_level

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "안녕 <b>&amp;"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "again"},
]
TEMPLATE = """{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('unknown role ' + message['role']) }}
    {%- endif %}
    {%- if message['role'] == 'assistant' %}
[A]{% generation %}{{ message['content'] | trim }}{% endgeneration %}{{ eos_token }}
    {%- else %}
[{{ message['role'] | upper }}]{{ message['content'] }}
    {%- endif %}
    {%- if loop.index > 10 %}{% break %}{% endif %}
{%- endfor %}
{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{% if add_generation_prompt %}[A]{% endif %}"""
TOOLS = [{"type": "function", "function": {"name": "날씨", "parameters": {"a": 1}}}]


def _folder(tmp_path: Path, tokenizer: Any = None, **config: Any) -> Path:
    (tokenizer or byte_level()).save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", **config}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def _open(folder: Path) -> Text:
    text = open_text(folder)
    assert text is not None
    return text


def test_without_a_tokenizer_there_is_no_text(tmp_path: Path) -> None:
    """Red when a checkpoint without tokenizer.json is refused: it runs on token ids."""
    assert open_text(tmp_path) is None


def test_encode_and_decode(tmp_path: Path) -> None:
    """Red when special tokens are missing around a prompt, or show in the text."""
    text = _open(_folder(tmp_path))
    ids = text.encode("the fox 안녕하세요")
    assert ids[0] == 0
    assert 0 not in text.encode("the fox 안녕하세요", special=False)
    assert text.decode(ids) == "the fox 안녕하세요"
    pieces = text.detokenizer()
    assert pieces.push(ids) + pieces.finish() == "the fox 안녕하세요"


@pytest.mark.parametrize(("wanted", "first"), [(True, 1), (False, None), (None, None)])
def test_the_first_token_is_added_where_the_config_says_so(
    tmp_path: Path, wanted: bool | None, first: int | None
) -> None:
    """Red when a model whose tokenizer.json forgets its first token loses it, or gets it twice."""
    text = _open(_folder(tmp_path, byte_fallback(), add_bos_token=wanted))
    ids = text.encode("the a")
    assert (ids[0] if ids[0] == 1 else None) == first
    assert ids.count(1) == (first is not None)
    ids = _open(_folder(tmp_path, add_bos_token=True)).encode("the a")
    assert ids.count(0) == 1


def test_limits_of_the_tokenizer_file_are_lifted(tmp_path: Path) -> None:
    """Red when a prompt is cut or padded in silence because tokenizer.json was saved that way."""
    tokenizer = byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    text = _open(_folder(tmp_path, tokenizer))
    assert text.decode(text.encode("the quick brown fox")) == "the quick brown fox"
    assert len(text.encode("fox")) < 10


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize(
    "place", ["chat_template.jinja", "tokenizer_config.json", "list", "chat_template.json"]
)
def test_chats_are_rendered_as_transformers_does(tmp_path: Path, place: str, tools: Any) -> None:
    """Red when blanks, escapes, json or the generation tag come out differently, or a template is not found."""
    transformers = pytest.importorskip("transformers")
    options: dict[str, Any] = {
        "tokenizer_config.json": {"chat_template": TEMPLATE},
        "list": {
            "chat_template": [
                {"name": "tool_use", "template": "no"},
                {"name": "default", "template": TEMPLATE},
            ]
        },
    }.get(place, {})
    folder = _folder(tmp_path, **options)
    if place == "chat_template.jinja":
        (folder / place).write_text(TEMPLATE)
    elif place == "chat_template.json":
        (folder / place).write_text(json.dumps({"chat_template": TEMPLATE}))
    oracle = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    expected = oracle.apply_chat_template(
        MESSAGES, chat_template=TEMPLATE, tools=tools, tokenize=False, add_generation_prompt=True
    )
    text = _open(folder)
    assert text.chat(MESSAGES, tools=tools) == expected
    assert text.encode_chat(MESSAGES, tools=tools)[:1] == (0,)
    assert text.encode_chat(MESSAGES, tools=tools).count(0) == 1
    assert not text.chat(MESSAGES, tools=tools, add_generation_prompt=False).endswith("[A]")


def test_what_a_template_refuses_is_the_requests_fault(tmp_path: Path) -> None:
    """Red when bad messages or a bad template end in a traceback."""
    text = _open(_folder(tmp_path, chat_template=TEMPLATE))
    with pytest.raises(RequestError, match="unknown role clown"):
        text.chat([{"role": "clown", "content": "x"}])
    with pytest.raises(RequestError, match="chat template"):
        text.chat([{"content": "x"}])
    picture = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "a.png"}},
    ]
    with pytest.raises(RequestError, match="message 1 has a part of type 'image_url'; only text is served"):
        text.chat([MESSAGES[0], {"role": "user", "content": picture}])
    with pytest.raises(RequestError, match="no chat template"):
        _open(_folder(tmp_path)).chat(MESSAGES)
    with pytest.raises(RequestError, match="TemplateSyntaxError"):
        _open(_folder(tmp_path, chat_template="{% if %}")).chat(MESSAGES)
    with pytest.raises(RequestError, match="SecurityError"):
        _open(_folder(tmp_path, chat_template="{{ messages.__class__.__mro__ }}")).chat(MESSAGES)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_damaged_files_are_named(tmp_path: Path, name: str) -> None:
    """Red when a half-written file ends in a traceback."""
    folder = _folder(tmp_path)
    (folder / name).write_text("{")
    with pytest.raises(CheckpointError, match=name):
        open_text(folder)
