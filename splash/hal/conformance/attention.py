"""Attention over pages against the plain reference, where pages hold NaN wherever no valid token lies."""

from __future__ import annotations

from typing import Any

import torch

from splash.core.errors import CapacityError, NotSupported
from splash.hal.conformance.cases import (
    ALL_HEADS,
    GQA,
    MLA,
    TINY_MLA,
    Batch,
    Heads,
    Rows,
    make_batch,
    page_elements,
    stripe_of,
)
from splash.hal.conformance.suite import Check, require
from splash.hal.protocol import RankContext
from splash.hal.reference import ReferenceAttention

PAST_BYTES = 1 << 31


def decode_rows(context: RankContext) -> None:
    """One row a sequence, contexts around page boundaries, alone and together."""
    size = context.backend.caps.block_size
    starts = [0, 1, size - 2, size - 1, size, 3 * size - 1, 5 * size + 3, 0]
    for heads in ALL_HEADS:
        _compare(context, heads, [Rows(start) for start in starts])
        _compare(context, heads, [Rows(2 * size)])
        _compare(context, heads, [Rows(4 * size + 1)] * 5)


def long_contexts(context: RankContext) -> None:
    """Thousands of keys, whole and striped, beside short ones."""
    size = context.backend.caps.block_size
    for heads in (TINY_MLA, GQA):
        rows = [Rows(12_000), Rows(5), Rows(2048), Rows(4095, 1, 1, 2), Rows(4096, 1, 0, 2), Rows(2100, 2)]
        _compare(context, heads, rows, dtypes=context.backend.caps.dtypes[:1])
        _compare(context, heads, [Rows(3 * 1024 + size)])


def prompt_chunks(context: RankContext) -> None:
    """Several rows a sequence: from the beginning, from the middle of a page, together with decodes."""
    size = context.backend.caps.block_size
    for heads in ALL_HEADS:
        _compare(context, heads, [Rows(0, 2 * size + 1)])
        _compare(
            context, heads, [Rows(size + 3, size), Rows(0, 1), Rows(2 * size, 3), Rows(7), Rows(0, size)]
        )


def stripes(context: RankContext) -> None:
    """Every third block only; rows before the first local key see nothing. Parts merge to the whole."""
    size = context.backend.caps.block_size
    reference, attention = ReferenceAttention(), context.backend.attention()
    for heads in ALL_HEADS:
        for rows in (
            [Rows(4 * size + 2, 1, first, 3) for first in range(3)],
            [Rows(size - 2, 2 * size, first, 2) for first in range(2)],
            [Rows(1, 3, 1, 2), Rows(0, size + 1, 1, 2), Rows(5, 1, 2, 4)],
        ):
            _compare(context, heads, rows)
        whole = make_batch(heads, [Rows(5 * size - 3, 4)], block_size=size, device=context.backend.device)
        seq = whole.seqs[0]
        parts = [
            attention.attend(
                whole.q, whole.kv, attention.prepare([stripe_of(seq, first, 2, size)], size), whole.scale
            )
            for first in range(2)
        ]
        merged = attention.merge(torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts]))
        expected = reference.attend(whole.q, whole.kv, reference.prepare(whole.seqs, size), whole.scale)
        require_close(merged, expected, "merged stripes")


def nothing_to_do(context: RankContext) -> None:
    """No rows, no sequences, sequences without rows or keys, rows that no sequence names."""
    size = context.backend.caps.block_size
    attention = context.backend.attention()
    for heads in (TINY_MLA, GQA):
        for rows in (
            [],
            [Rows(3, 0)],
            [Rows(0, 1, 1, 2)],
            [Rows(0, 3, 1, 2), Rows(size, 1), Rows(2, 1, 1, 2)],
        ):
            _compare(context, heads, rows)
            _compare(context, heads, rows, spare_rows=2)
        batch = make_batch(heads, [], block_size=size, device=context.backend.device)
        out, lse = attention.attend(batch.q, batch.kv, attention.prepare([], 16), 1.0)
        require(out.shape == (0, heads.heads, heads.d_v), "no rows give", tuple(out.shape))
        require(lse.shape == (0, heads.heads), "no rows give lse", tuple(lse.shape))


def sequences_in_any_order(context: RankContext) -> None:
    """Sequences listed in another order than their rows, with gaps, sharing pages; prepared once, used twice."""
    size = context.backend.caps.block_size
    attention, reference = context.backend.attention(), ReferenceAttention()
    for heads in ALL_HEADS:
        rows = [Rows(2 * size + 1, 3), Rows(size), Rows(3 * size), Rows(0), Rows(2 * size - 1, 2)]
        layers = [
            make_batch(
                heads,
                rows,
                block_size=size,
                device=context.backend.device,
                spare_rows=1,
                page_ids=range(20, 0, -1),
                seed=seed,
            )
            for seed in range(2)
        ]
        seqs = layers[0].seqs
        longest = seqs[2]
        prefix = longest._replace(
            row=layers[0].q.shape[0] - 1, start=size, pages=longest.pages[:2], num_keys=size + 1
        )
        prepared = attention.prepare([seqs[3], seqs[0], prefix, seqs[4], longest], size)
        for layer in layers:
            got = attention.attend(layer.q, layer.kv, prepared, layer.scale)
            expected = reference.attend(
                layer.q,
                layer.kv,
                reference.prepare([prefix, longest, seqs[0], seqs[3], seqs[4]], size),
                layer.scale,
            )
            require_close(got, expected, "sequences in another order, prepared once")


def large_and_small_scores(context: RankContext) -> None:
    """Scores whose exponentials overflow fp32, and tiny ones."""
    size = context.backend.caps.block_size
    for heads in (TINY_MLA, GQA):
        for magnitude in (12.0, 1e-3):
            _compare(
                context,
                heads,
                [Rows(3 * size + 1), Rows(size, 5)],
                magnitude=magnitude,
                slack=max(1.0, magnitude**3),
            )


def pages_past_two_gib(context: RankContext) -> None:
    """Page ids whose byte offset exceeds 2³¹, in every dtype."""
    size = context.backend.caps.block_size
    for name in context.backend.caps.dtypes:
        dtype = getattr(torch, name)
        for heads in (MLA, GQA):
            page_bytes = page_elements(heads, size) * dtype.itemsize
            num_pages = PAST_BYTES // page_bytes + 12
            try:
                pool = context.backend.pool(context.comm, num_pages * page_bytes)
            except CapacityError as error:
                raise NotSupported(f"no room for pools of 2 GiB: {error}") from error
            pages = pool.bytes.view(num_pages, page_bytes).view(dtype)
            ids = [num_pages - 1, 3, num_pages - 2, *range(num_pages - 9, num_pages - 3)]
            _compare(
                context,
                heads,
                [Rows(2 * size + 1), Rows(size + 1, 2), Rows(4)],
                dtypes=(name,),
                pool=pages,
                page_ids=ids,
            )
            context.comm.barrier()
            del pages
            pool.close()


def merges(context: RankContext) -> None:
    """Any number of parts, empty ones among them; only empty ones give 0 and -inf."""
    attention, reference = context.backend.attention(), ReferenceAttention()
    generator = torch.Generator().manual_seed(3)
    for name in context.backend.caps.dtypes:
        for parts, rows, heads, width in ((1, 3, 2, 8), (2, 5, 4, 16), (5, 4, 3, 8), (3, 0, 4, 8)):
            outs = torch.randn(parts, rows, heads, width, generator=generator).to(getattr(torch, name))
            lses = torch.randn(parts, rows, heads, generator=generator) * 20
            empty = torch.rand(parts, rows, heads, generator=generator) < 0.3
            if rows:
                empty[:, 0] = True
            lses[empty] = -torch.inf
            outs[empty] = 0
            outs, lses = outs.to(context.backend.device), lses.to(context.backend.device)
            require_close(
                attention.merge(outs, lses), reference.merge(outs, lses), f"merge of {parts} {name}"
            )


def _compare(
    context: RankContext,
    heads: Heads,
    rows: list[Rows],
    *,
    dtypes: tuple[str, ...] = (),
    slack: float = 1.0,
    **options: Any,
) -> None:
    for name in dtypes or context.backend.caps.dtypes:
        batch = make_batch(
            heads,
            rows,
            block_size=context.backend.caps.block_size,
            dtype=getattr(torch, name),
            device=context.backend.device,
            seed=len(rows) + 17 * context.rank,
            **options,
        )
        _compare_batch(context, batch, slack)


def _compare_batch(context: RankContext, batch: Batch, slack: float) -> None:
    attention, reference = context.backend.attention(), ReferenceAttention()
    got = attention.attend(batch.q, batch.kv, attention.prepare(batch.seqs, batch.kv.k.shape[1]), batch.scale)
    expected = reference.attend(
        batch.q, batch.kv, reference.prepare(batch.seqs, batch.kv.k.shape[1]), batch.scale
    )
    kind = f"q {list(batch.q.shape)} {batch.q.dtype}, k {list(batch.kv.k.shape[1:])}"
    require_close(got, expected, f"attention of {kind}", slack)


def require_close(
    got: tuple[torch.Tensor, torch.Tensor],
    expected: tuple[torch.Tensor, torch.Tensor],
    what: str,
    slack: float = 1.0,
) -> None:
    """Both in the precision of q's dtype (times `slack`), and exactly where nothing was seen."""
    for value, right, part in zip(got, expected, ("output", "lse"), strict=True):
        require(
            value.shape == right.shape, what, part, "has shape", tuple(value.shape), "not", tuple(right.shape)
        )
        require(value.dtype == right.dtype, what, part, "is", value.dtype, "not", right.dtype)
    empty = expected[1] == -torch.inf
    require(torch.equal(got[1] == -torch.inf, empty), what, "disagrees about which rows see no key")
    require(not got[0][empty].any().item(), what, "is not 0 where no key is seen")
    tolerance = slack * (2e-5 if got[0].dtype == torch.float32 else 2e-2)
    _require_near(got[0], expected[0], tolerance, f"{what}: output")
    _require_near(got[1][~empty], expected[1][~empty], tolerance, f"{what}: lse")


def _require_near(value: torch.Tensor, right: torch.Tensor, tolerance: float, what: str) -> None:
    error = (value.double() - right.double()).abs()
    bad = ~(error <= tolerance * (1 + right.double().abs()))  # NaN counts
    require(not bad.any().item(), what, "is off by", error.max().item() if error.numel() else 0)


CHECKS: tuple[Check, ...] = (
    decode_rows,
    long_contexts,
    prompt_chunks,
    stripes,
    nothing_to_do,
    sequences_in_any_order,
    large_and_small_scores,
    pages_past_two_gib,
    merges,
)
