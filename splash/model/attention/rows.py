"""One rank's part in the attention of one step: index tensors and counts, built once and used by every layer.

`exec.inputs` derives it from `layout.exchange.Routes`. "Here" means: on this rank, with all heads. Rows that
attend here are, in order: those that this rank owns (dop), stripes whose queries travelled (dcp), stripes whose
queries were computed whole (cp), and rows that stay here altogether (dp). The first three go back by head.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from splash.model.attention.index import Index
from splash.model.attention.pooling import PoolRows
from splash.model.attention.selection import SelectingRows
from splash.model.recurrent import RecurrentRows
from splash.model.rope import RopeRows


class Appends(NamedTuple):
    """New KV entry `entries[i]` goes to token `offsets[i]` of page `pages[i]`, in every layer and field."""

    entries: Index
    pages: torch.Tensor
    offsets: torch.Tensor


class QueryExchange(NamedTuple):
    """Exchange A: queries by head to where their history lies, and new KV to holders that did not compute it."""

    rows: Index
    """Own queries to send, destination after destination."""
    sent: tuple[int, ...]
    """How many of them go to each rank."""
    received: int
    """Rows that arrive here from every rank."""
    entries: tuple[torch.Tensor, ...]
    """Per destination: new KV entries to send (empty: none in this step)."""
    entries_received: tuple[int, ...]
    send_counts: tuple[int, ...]
    recv_counts: tuple[int, ...]


class OutputExchange(NamedTuple):
    """Exchange B: outputs back by head. Of the rows that attended here, `owned` whole ones and `partial` ones."""

    owned: int
    partial: int
    """Equal on all ranks; they come back from every rank and are merged."""
    owned_from: tuple[int, ...]
    """Whole rows that come from each rank."""
    send_counts: tuple[int, ...]
    recv_counts: tuple[int, ...]


class HistoryPart(NamedTuple):
    """One bounded piece of a gathered history."""

    pages: tuple[torch.Tensor, ...]
    """Per group that this rank sends: its local pages."""
    tokens: tuple[int, ...]
    """Tokens of each group that every rank sends."""
    seqs: Any
    """Prepared: all queries see all of the piece. None if they select."""


class Gather(NamedTuple):
    """A span whose history comes to its queries, which are `queries` of this rank's own or full ones."""

    full: bool
    queries: slice
    parts: tuple[HistoryPart, ...]
    entries: slice
    """The span's own new KV among this rank's entries; with full heads, group after group for each row."""
    own_seqs: Any
    """Prepared: the queries see the span's own tokens, causally. None if they select."""


class AttentionRows(NamedTuple):
    num_rows: int
    num_sharded: int
    """Rows [0, num_sharded) are projected here by head."""
    num_own: int
    """The first of them attend here with their own heads over this rank's pages."""
    full_queries: Index
    """Rows whose queries are computed here whole: stripes (cp), rows that stay (dp), shares of gathered spans."""
    num_full_paged: int
    """So many of them attend over pages: all but the gathered ones, which are last."""
    full_kv: Index
    """Rows whose new KV is computed here for all groups (GQA)."""
    rope: RopeRows
    rope_sharded: RopeRows
    rope_full_queries: RopeRows
    rope_full_kv: RopeRows
    appends: Appends
    query_exchange: QueryExchange | None
    own_seqs: Any
    """Prepared, for those of the first `num_own` queries that do not select; None if there are none."""
    num_here: int
    here_seqs: Any
    """As `own_seqs`, for the rows that attend here: row g * num_here + i is KV group g of row i."""
    gathers: tuple[Gather, ...]
    output_exchange: OutputExchange | None
    num_returning: int
    """The first rows that attend here go back by head; the rest are finished here."""
    finish_by_head: Index | None
    """Rows that this rank finishes by head, in the order: own, gathered, owned by each rank, partial."""
    finish_full: Index | None
    """Rows that this rank finishes with all heads: those that stay here, gathered shares."""
    recurrent: RecurrentRows | None = None
    """Set where the model has recurrent layers."""
    rope_index: RopeRows | None = None
    """The indexer's rotations of all rows; set where the model has one."""
    pools: PoolRows | None = None
    """Set where index keys are those of pools."""
    selecting: SelectingRows | None = None
    """None: every row attends to all that it sees."""
