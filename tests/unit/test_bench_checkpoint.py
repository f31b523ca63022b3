"""The bench checkpoint is the model of its specification, and others open its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import checkpoint as bench
from splash.engine.text import open_text
from splash.model.checkpoint import open_checkpoint
from splash.spec.config import normalise
from splash.spec.tensors import num_params


def test_size() -> None:
    """Red when the model that figures are given for changes."""
    spec = normalise(bench.CONFIG)
    assert num_params(spec) == 169_436_272
    assert spec.num_layers == 8
    assert spec.attention.num_heads == 16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_folder_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Red when splash or transformers cannot load the weights or the tokenizer that it writes."""
    for key, small in {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}.items():
        monkeypatch.setitem(bench.CONFIG, key, small)
    bench.write_checkpoint(tmp_path, dtype=dtype)
    spec = open_checkpoint(tmp_path).spec
    assert (spec.checkpoint_dtype, spec.eos_token_ids) == (dtype, (bench.EOS_ID,))
    text = open_text(tmp_path)
    assert text is not None
    assert text.vocab_size == spec.vocab_size == bench.VOCAB_SIZE
    assert text.decode(text.encode("Hello, 안녕")) == "Hello, 안녕"

    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tuple(tokenizer("Hello").input_ids) == text.encode("Hello")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert str(model.dtype) == f"torch.{dtype}"
    prompt = tokenizer("Hello", return_tensors="pt")
    generated = model.generate(**prompt, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert generated.shape[1] == prompt.input_ids.shape[1] + 3
