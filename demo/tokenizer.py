"""A byte-level BPE tokenizer trained on the corpus, and the files that describe it."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS = "<|bos|>", "<|eos|>"
BOS_ID, EOS_ID = 0, 1

_PIECES = r"'(?:s|d|t|ll|re|ve|m)\b|\n+| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|[^\S\n]+"
"""Line breaks are pieces of their own, so a prompt may end with or without one."""

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}[{{ message['content'] }}]\n\n"
    "{% elif message['role'] == 'user' %}HAMLET.\n{{ message['content'] }}\n\n"
    "{% else %}HORATIO.\n{{ message['content'] }}\n\n"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}HORATIO.\n{% endif %}"
)
"""A chat is a dialogue of the play: the user speaks as HAMLET, the model as HORATIO."""


def train_tokenizer(documents: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """A byte-level BPE of `vocab_size` entries; ids 0 and 1 are `BOS` and `EOS`; encoding prepends `BOS`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(BOS, special=True), AddedToken(EOS, special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)]
    )
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"the text yields {tokenizer.get_vocab_size()} tokens, not {vocab_size}")
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, max_length: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` (specials, `max_length` in tokens, template)."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
