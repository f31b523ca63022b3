"""Small tokenizers of each kind that checkpoints bring, trained or written down on the spot."""

from __future__ import annotations

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SAMPLE = [
    "the quick brown fox jumps over the lazy dog, and the dog does not mind",
    "한국어는 어렵지만 재미있다. 안녕하세요, 세계!",
    "family 👨‍👩‍👧‍👦 and flags 🇰🇷🇩🇪 and skin 👍🏽 and naïve café",
]


def byte_level(vocab_size: int = 420) -> Tokenizer:
    """GPT-2's kind: every byte is a token, so characters are cut anywhere."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SAMPLE, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False), AddedToken("안녕", special=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Llama 2's kind: what has no token of its own is spelled in `<0x..>` tokens, spaces are `▁`."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    pieces += [*"abcdefghijklmnopqrstuvwxyz.,!한국"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "a"), ("▁", "▁")]
    pieces += ["".join(pair) for pair in merges]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT's kind: neither bytes nor spaces in its tokens."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(SAMPLE, trainer)
    return tokenizer


def metaspace() -> Tokenizer:
    """T5's kind: `▁` opens a word, and the first one's space is dropped."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(SAMPLE, trainer)
    return tokenizer


MAKERS = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "word_piece": word_piece,
    "metaspace": metaspace,
}
