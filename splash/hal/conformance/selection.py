"""The choice of tokens and the attention over chosen ones, against the plain reference; pages hold NaN elsewhere."""

from __future__ import annotations

import numpy as np
import torch

from splash.core.errors import CapacityError, NotSupported
from splash.hal.conformance.attention import PAST_BYTES, require_close
from splash.hal.conformance.cases import (
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
from splash.hal.protocol import RankContext, SeqRows
from splash.hal.ranking import NOTHING, best, positions_of, ranked
from splash.hal.reference import ReferenceAttention

INDEX = Heads(heads=8, kv_heads=1, d_k=32, d_v=32, mla=True)
"""An indexer's queries and its one key per token."""


def chosen_tokens(context: RankContext) -> None:
    """Decode rows and prompt chunks, fewer and more tokens than are chosen, whole and striped."""
    size = context.backend.caps.block_size
    rows = [Rows(0), Rows(size - 1), Rows(5 * size + 2), Rows(0, 2 * size + 1), Rows(3 * size - 2, size)]
    stripes = [Rows(4 * size + 2, 1, first, 3) for first in range(3)] + [Rows(1, 2 * size, 1, 2)]
    for name in context.backend.caps.dtypes:
        for top_k in (1, size // 2 + 1, 3 * size):
            for each in (rows, stripes, [Rows(2 * size, 3)]):
                _compare_choice(context, each, top_k, getattr(torch, name))


def many_tokens(context: RankContext) -> None:
    """Thousands of keys, of which a few hundred are chosen."""
    _compare_choice(context, [Rows(5_000), Rows(3_000, 2), Rows(4_096, 1, 1, 2)], 300, torch.float32)


def pools_of_tokens(context: RankContext) -> None:
    """One key for several tokens: a row chooses among those whose last token it sees, whole and striped."""
    size = context.backend.caps.block_size
    rows = [Rows(1), Rows(2), Rows(5 * size + 2), Rows(0, 2 * size + 1), Rows(3 * size - 2, size)]
    stripes = [Rows(4 * size + 2, 1, first, 3) for first in range(3)] + [Rows(1, 2 * size, 1, 2)]
    for pool in (2, 4):
        for top_k in (1, size):
            for each in (rows, stripes):
                _compare_choice(context, each, top_k, torch.float32, pool=pool)


def ties_go_to_the_lower_position(context: RankContext) -> None:
    """Equal scores, zeros among them, on pages in any order: what a row chooses depends on positions alone."""
    size, attention = context.backend.caps.block_size, context.backend.attention()
    batch = _index_batch(context, [Rows(6 * size), Rows(3 * size, 4)], torch.float32)
    keys = batch.kv.k[:, :, 0]
    keys.copy_(torch.where(keys.isnan(), keys, 1.0))
    q = torch.where(torch.arange(len(batch.q), device=batch.q.device)[:, None, None] == 0, batch.q.abs(), 0.0)
    weights = torch.ones(q.shape[:2], device=q.device)
    prepared = attention.prepare_selection(batch.seqs, size, size)
    chosen = positions_of(attention.select(q, weights, keys, prepared)).sort().values
    first = torch.arange(size, device=chosen.device)
    require(torch.equal(chosen, first.expand_as(chosen)), "of equal scores", chosen.tolist(), "are chosen")


def parts_choose_as_the_whole(context: RankContext) -> None:
    """Stripes' best tokens, merged, are the best of all."""
    size, attention = context.backend.caps.block_size, context.backend.attention()
    batch = _index_batch(context, [Rows(7 * size - 3, 4)], torch.float32)
    keys, weights, top_k = batch.kv.k[:, :, 0], _weights(batch), 2 * size + 1

    def choose(seq: SeqRows) -> torch.Tensor:
        return attention.select(batch.q, weights, keys, attention.prepare_selection([seq], size, top_k))

    merged = best(torch.cat([choose(stripe_of(batch.seqs[0], r, 3, size)) for r in range(3)], 1), top_k)
    whole = choose(batch.seqs[0])
    require(_same_tokens(merged, whole), "stripes' best tokens are not those of the whole")


def nothing_to_choose(context: RankContext) -> None:
    """No rows, no sequences, sequences without keys, rows that no sequence names."""
    size, attention = context.backend.caps.block_size, context.backend.attention()
    for rows in ([], [Rows(0, 1, 1, 2)], [Rows(3, 0)], [Rows(0, 3, 1, 2), Rows(size), Rows(2, 1, 1, 2)]):
        _compare_choice(context, rows, 4, torch.float32, spare_rows=2)
    batch = _index_batch(context, [], torch.float32)
    prepared = attention.prepare_selection([], size, 4)
    chosen = attention.select(batch.q, _weights(batch), batch.kv.k[:, :, 0], prepared)
    require(chosen.shape == (0, 4), "no rows give", tuple(chosen.shape))


def attention_over_chosen_tokens(context: RankContext) -> None:
    """Any tokens in any order, fewer in some rows, none in others; zero rows and zero columns."""
    size, attention, reference = (
        context.backend.caps.block_size,
        context.backend.attention(),
        ReferenceAttention(),
    )
    for name in context.backend.caps.dtypes:
        for heads in (TINY_MLA, MLA):
            rows = [Rows(4 * size), Rows(2 * size - 1), Rows(5 * size + 3)]
            batch = _batch(context, heads, rows, getattr(torch, name))
            for width in (0, 1, size + 3, 5 * size + 4):
                tokens = _some_tokens(batch, width, size)
                for q, some in ((batch.q, tokens), (batch.q[:0], tokens[:0])):
                    got = attention.attend_selected(q, batch.kv, some, batch.scale)
                    wanted = reference.attend_selected(q, batch.kv, some, batch.scale)
                    require_close(got, wanted, f"attention over {width} chosen tokens, {name}")


def all_tokens_are_dense_attention(context: RankContext) -> None:
    """Choosing everything that a row sees is dense attention."""
    size, attention = context.backend.caps.block_size, context.backend.attention()
    batch = _batch(context, TINY_MLA, [Rows(3 * size + 1, 5), Rows(size), Rows(0, 3)], torch.float32)
    tokens = torch.full((len(batch.q), 4 * size + 6), -1, dtype=torch.int64, device=batch.q.device)
    for seq in batch.seqs:
        for i in range(seq.count):
            tokens[seq.row + i, : seq.start + i + 1] = _slots(seq, size)[: seq.start + i + 1]
    got = attention.attend_selected(batch.q, batch.kv, tokens, batch.scale)
    dense = attention.attend(batch.q, batch.kv, attention.prepare(batch.seqs, size), batch.scale)
    require_close(got, dense, "attention over all tokens against dense attention")


def chosen_tokens_past_two_gib(context: RankContext) -> None:
    """Pages whose byte offset exceeds 2³¹, for keys and for chosen tokens."""
    size = context.backend.caps.block_size
    attention, reference = context.backend.attention(), ReferenceAttention()
    page_bytes = page_elements(MLA, size) * 4
    num_pages = PAST_BYTES // page_bytes + 6
    try:
        pool = context.backend.pool(context.comm, num_pages * page_bytes)
    except CapacityError as error:
        raise NotSupported(f"no room for pools of 2 GiB: {error}") from error
    pages = pool.bytes.view(num_pages, page_bytes).view(torch.float32)
    ids = [num_pages - 1, 2, num_pages - 2, num_pages - 4, num_pages - 5]
    batch = _batch(context, MLA, [Rows(2 * size + 1), Rows(size)], torch.float32, pool=pages, page_ids=ids)
    tokens = _some_tokens(batch, size + 2, size)
    got = attention.attend_selected(batch.q, batch.kv, tokens, batch.scale)
    require_close(got, reference.attend_selected(batch.q, batch.kv, tokens, batch.scale), "tokens past 2 GiB")
    prepared = attention.prepare_selection(batch.seqs, size, size)
    chosen = attention.select(batch.q, _weights(batch), batch.kv.k[:, :, 0], prepared)
    wanted = reference.select(
        batch.q, _weights(batch), batch.kv.k[:, :, 0], reference.prepare_selection(batch.seqs, size, size)
    )
    require(_same_tokens(chosen, wanted), "keys past 2 GiB are chosen differently")
    context.comm.barrier()
    del pages, batch
    pool.close()


def ranked_tokens_sort(context: RankContext) -> None:
    """The order of ranked tokens is that of scores, signs, zeros and infinities included, then of positions."""
    scores, positions = [-torch.inf, -2.5, -1e-30, 0.0, 1e-30, 3.0, torch.inf], [5, 1, 4_000_000_000]
    numbers = torch.tensor(scores, device=context.backend.device)[:, None]
    tokens = ranked(numbers, torch.tensor(positions, device=numbers.device))
    order = tokens.flatten().sort(descending=True).indices.tolist()
    wanted = sorted(range(21), key=lambda i: (-scores[i // 3], positions[i % 3]))
    negative_zero = ranked(torch.tensor([-0.0]), torch.tensor(positions)).to(tokens.device)
    require(torch.equal(negative_zero, tokens[3]), "-0.0 and 0.0 are ranked differently")
    require(order == wanted, "ranked tokens sort as", order, "not", wanted)
    require(int(tokens.min()) > NOTHING, "a token is below nothing")


def _batch(
    context: RankContext, heads: Heads, rows: list[Rows], dtype: torch.dtype, **options: object
) -> Batch:
    return make_batch(
        heads,
        rows,
        block_size=context.backend.caps.block_size,
        dtype=dtype,
        device=context.backend.device,
        seed=len(rows) + 31 * context.rank,
        **options,  # type: ignore[arg-type]
    )


def _index_batch(context: RankContext, rows: list[Rows], dtype: torch.dtype, **options: object) -> Batch:
    return _batch(context, INDEX, rows, dtype, **options)


def _weights(batch: Batch) -> torch.Tensor:
    """[rows, heads] fp32, of both signs."""
    generator = torch.Generator().manual_seed(len(batch.q))
    return torch.randn(batch.q.shape[:2], generator=generator).to(batch.q.device)


def _compare_choice(
    context: RankContext,
    rows: list[Rows],
    top_k: int,
    dtype: torch.dtype,
    *,
    spare_rows: int = 0,
    pool: int = 1,
) -> None:
    """The same tokens as the reference; where a rounding error may decide, scores as good as its worst."""
    size, attention, reference = (
        context.backend.caps.block_size,
        context.backend.attention(),
        ReferenceAttention(),
    )
    batch = _index_batch(context, rows, dtype, spare_rows=spare_rows)
    keys, weights = batch.kv.k[:, pool - 1 :: pool, 0], _weights(batch)
    mine, plain = (each.prepare_selection(batch.seqs, size, top_k, pool) for each in (attention, reference))
    got = attention.select(batch.q, weights, keys, mine)
    wanted = reference.select(batch.q, weights, keys, plain)
    require(got.shape == (len(batch.q), top_k), "chosen tokens have shape", tuple(got.shape))
    for seq in batch.seqs:
        beyond = got[seq.row : seq.row + seq.count, min(top_k, seq.num_keys // pool) :]
        require(bool((beyond == NOTHING).all()), "columns beyond the sequence's keys are not empty")
    require(
        _same_tokens(got, wanted),
        f"{top_k} of {[r.start for r in rows]} tokens are chosen differently, {dtype}",
    )


def _same_tokens(tokens: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether each row has the same positions, or else others with nearly the same scores."""
    mine, theirs = positions_of(tokens).sort().values, positions_of(wanted).sort().values
    if torch.equal(mine, theirs):
        return True
    same_number = torch.equal((mine < 0).sum(1), (theirs < 0).sum(1))
    differ = (mine != theirs).any(1)
    scores, right = _scores(tokens[differ]), _scores(wanted[differ])
    return same_number and bool(((scores - right).abs() <= 1e-5 * (1 + right.abs())).all())


def _scores(tokens: torch.Tensor) -> torch.Tensor:
    """The scores of ranked tokens, best first; 0 for nothing."""
    ordered = (tokens >> 32).to(torch.int32)
    scores = torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).view(torch.float32)
    return torch.where(tokens == NOTHING, 0.0, scores).sort(descending=True).values


def _slots(seq: SeqRows, block_size: int) -> torch.Tensor:
    """page * block_size + offset of each local token of a sequence."""
    token = np.arange(seq.num_keys)
    return torch.from_numpy(seq.pages[token // block_size] * block_size + token % block_size)


def _some_tokens(batch: Batch, width: int, block_size: int) -> torch.Tensor:
    """[rows, width]: random tokens of each row's sequence, -1 in between; the last row has none."""
    generator = torch.Generator().manual_seed(width)
    tokens = torch.full((len(batch.q), width), -1, dtype=torch.int64)
    for seq in batch.seqs[:-1]:
        slots = _slots(seq, block_size)
        some = slots[torch.randperm(len(slots), generator=generator)][:width]
        places = torch.randperm(width, generator=generator)[: len(some)]
        tokens[seq.row, places] = some
    return tokens.to(batch.q.device)


CHECKS: tuple[Check, ...] = (
    ranked_tokens_sort,
    chosen_tokens,
    many_tokens,
    pools_of_tokens,
    ties_go_to_the_lower_position,
    parts_choose_as_the_whole,
    nothing_to_choose,
    attention_over_chosen_tokens,
    all_tokens_are_dense_attention,
    chosen_tokens_past_two_gib,
)
