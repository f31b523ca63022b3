"""What context costs a recurrent layer: python -m bench.kda [--json FILE]

One KDA layer of a scaled-down GLM-5.3-Flash (hidden 1024, 8 heads of 128, fp32) takes a context in chunks and then
decodes, in the pages of a state out of order; a dense latent attention of as many heads (latent 512) decodes at the
same contexts for contrast. One thread. Seconds are medians.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch

from bench.machine import idleness, provenance, warn_if_busy
from splash.exec.states import StateTable, joined, state_views
from splash.hal.conformance.cases import Heads, Rows, make_batch
from splash.kv.state import MATRICES, TAPS, StateFormat, StateSection
from splash.model.layers.kda import KDA
from splash.model.recurrent import RecurrentRows
from splash.model.weights import KDAWeights
from splash.spec.model import KDASpec

HIDDEN = 1024
SPEC = KDASpec(num_heads=8, head_dim=128, conv_kernel=4, gate_lower_bound=-5.0)
MLA = Heads(8, 1, 512, 512, mla=True)
CONTEXTS = (1024, 4096, 16_384, 65_536)
CHUNK = 512
BATCHES = (1, 8)
PAGE_BYTES = 186 * 1024
"""About a page of GLM-5.3-Flash of 16 tokens in bf16; a multiple of a row."""
BLOCK = 16
REPEATS = 30


def random_layer(states: Any) -> KDA:
    width = SPEC.num_heads * SPEC.head_dim

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns) * columns**-0.5

    weights = KDAWeights(
        project=matrix(3 * width + SPEC.num_heads + 2 * SPEC.head_dim, HIDDEN),
        f_b=matrix(width, SPEC.head_dim),
        g_b=matrix(width, SPEC.head_dim),
        conv=matrix(3 * width, SPEC.conv_kernel).t().contiguous(),
        decay=torch.ones(SPEC.num_heads),
        dt_bias=torch.full((width,), -4.0),
        o_norm=torch.ones(SPEC.head_dim),
        o=matrix(HIDDEN, width),
    )
    return KDA(SPEC, weights, states, layer=0, norm_eps=1e-5)


def seconds(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """The median of `repeats` runs, after two that do not count."""
    taken = []
    for _ in range(repeats + 2):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[2:])


def measure_kda() -> list[dict[str, Any]]:
    """A row for each context: prefill tokens per second up to it from the one before, decode seconds at it."""
    heads, d = SPEC.num_heads, SPEC.head_dim
    sections = (
        StateSection(MATRICES, 1, heads * d, d, "float32"),
        StateSection(TAPS, 1, (SPEC.conv_kernel - 1) * 3 * heads, d, "float32", heads * d * d * 4),
    )
    state = StateFormat(sections, PAGE_BYTES)
    count = max(BATCHES)
    pages = torch.randperm(count * state.num_pages).view(count, -1)
    pool = torch.zeros(count * state.num_pages * PAGE_BYTES, dtype=torch.uint8)
    tables = [StateTable(state, row.tolist()) for row in pages]
    layer = random_layer(state_views(pool, state))
    whole = RecurrentRows(slice(0, 0), None, ((slice(0, CHUNK), tables[0].rows),))
    rows, done = [], 0
    for context in CONTEXTS:
        started = time.perf_counter()
        for _ in range(done, context, CHUNK):
            layer(torch.randn(CHUNK, HIDDEN), whole)
        prefill = (context - done) / (time.perf_counter() - started)
        done = context
        row: dict[str, Any] = {"context": context, "prefill_tokens_per_s": round(prefill)}
        for batch in BATCHES:
            h = torch.randn(batch, HIDDEN)
            at = RecurrentRows(slice(0, batch), joined([t.rows for t in tables[:batch]]), ())
            row[f"kda_decode_s_{batch}"] = seconds(lambda h=h, at=at: layer(h, at))  # type: ignore[misc]
        rows.append(row)
    return rows


def measure_dense(context: int) -> float:
    """Seconds of one decode row over all tokens of a context, without projections."""
    from splash_cpu.attention import CpuAttention

    attention = CpuAttention()
    batch = make_batch(MLA, [Rows(context - 1)], block_size=BLOCK, dtype=torch.float32, device="cpu", seed=0)
    prepared = attention.prepare(batch.seqs, BLOCK)
    return seconds(lambda: attention.attend(batch.q, batch.kv, prepared, batch.scale))


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path))
def main(json_file: Path | None) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    state = idleness()
    warn_if_busy(state)
    with torch.inference_mode():
        rows = measure_kda()
        for row in rows:
            row["dense_attention_s_1"] = measure_dense(row["context"])
            print(
                f"context {row['context']:6}: KDA {1e3 * row['kda_decode_s_1']:.3f} ms for 1 request,"
                f" {1e3 * row['kda_decode_s_8']:.3f} for 8; dense attention {1e3 * row['dense_attention_s_1']:.3f} ms;"
                f" prefill {row['prefill_tokens_per_s']} tokens/s"
            )
    if json_file is not None:
        data = {**provenance(), "idleness": state, "chunk": CHUNK, "rows": rows}
        json_file.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
