"""Which prompt rows a step takes: chunks within the token budget, decodes first, nobody starved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from splash.layout.layouts import Assignment, Placement, Projection
from splash.layout.rows import Method
from splash.sched.record import Record
from splash.spec.model import MLASpec, ModelSpec


@dataclass(frozen=True, slots=True)
class RowBytes:
    """What one row sends in an exchange, and one cached token in a gather; elements per layer."""

    exchange: int
    gather: int

    @classmethod
    def of(cls, spec: ModelSpec) -> RowBytes:
        """REFERENCE §2: H (2 d_c + d_r) against d_c + d_r for MLA; 2 H d_h + 2 H_kv d_h against 2 H_kv d_h."""
        att = spec.attention
        if isinstance(att, MLASpec):
            return cls(att.num_heads * (2 * att.kv_lora_rank + att.rope_dim), att.latent_dim)
        kv = 2 * att.num_kv_heads * att.head_dim
        return cls(2 * att.num_heads * att.head_dim + kv, kv)


def chunk_method(at: Assignment, start: int, count: int, row: RowBytes, ranks: int) -> Method:
    """How a chunk meets its history of `start` tokens: whichever moves fewer bytes into the busiest rank.

    Owner: the exchange brings every row to one rank; a gather sends the history to each of the others. In a
    gather all ranks share the attention, so it also wins a tie. Full owner rows (dp) and tp stay local.
    """
    owned = at.layout.placement is Placement.OWNER
    if at.layout.placement is Placement.BY_HEAD or (owned and at.layout.projection is Projection.FULL):
        return Method.LOCAL
    exchanged = count * row.exchange
    gathered = start * row.gather
    if owned:
        exchanged //= ranks
    return Method.GATHER if gathered <= exchanged else Method.EXCHANGE


def share_budget(waiting: Sequence[Record], budget: int, max_chunk: int) -> list[tuple[Record, int]]:
    """Rows for the records that still have prompt to compute, in their order of admission.

    The oldest gets half of the budget at least; the other half goes to the shortest first, so that a short
    request is not held up by a long prompt, and a long prompt not by a stream of short ones.
    """
    if not waiting or budget <= 0:
        return []
    oldest = waiting[0]
    shares: dict[int, int] = {oldest.id: min(oldest.remaining, max_chunk, -(-budget // 2))}
    left = budget - shares[oldest.id]
    for record in sorted(waiting[1:], key=lambda r: r.remaining):
        if left <= 0:
            break
        shares[record.id] = min(record.remaining, max_chunk, left)
        left -= shares[record.id]
    more = min(oldest.remaining, max_chunk) - shares[oldest.id]
    shares[oldest.id] += max(0, min(left, more))
    return [(record, shares[record.id]) for record in waiting if shares.get(record.id, 0) > 0]
