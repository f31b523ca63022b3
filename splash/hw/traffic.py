"""Seconds of the exchanges around a layer's attention: rows that meet their history elsewhere, histories that come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from splash.hw import ops
from splash.hw.figures import Condition, Figure, either, least, most
from splash.hw.precision import Precision
from splash.hw.profile import HardwareProfile
from splash.hw.rows import num_attention_layers, num_indexers
from splash.spec.model import MLASpec, ModelSpec

LSE_BYTES = 4
CANDIDATE_BYTES = 8
"""Score and position of a key that a holder of the history proposes where others attend too."""


@dataclass(slots=True)
class Traffic:
    """What travels in a layer."""

    into_owner: Figure = 0
    """Rows whose queries the busiest owner receives,"""
    to_owners: Figure = 0
    """and all owners,"""
    to_stripes: Figure = 0
    """and every rank."""
    striped: Figure = 0
    """Rows that every rank attends to in part."""
    gathering_s: Figure = 0.0
    """Of the collectives that bring prompts' histories, without index keys."""
    candidates: Figure = 0.0
    """Bytes of them that a rank receives."""


class TrafficCost:
    """Prices what travels."""

    def __init__(self, spec: ModelSpec, profile: HardwareProfile, ranks: int, precision: Precision) -> None:
        self._profile = profile
        self._ranks = ranks
        self._away = 1 - 1 / ranks
        """Share of what a rank needs that comes from others."""
        self._layers = num_attention_layers(spec)
        self._indexers = num_indexers(spec)
        self._groups = spec.kv_groups(ranks)
        self._kv_bytes = precision.kv_bytes
        self._index = spec.indexer
        att, size = spec.attention, precision.activation_bytes
        if isinstance(att, MLASpec):
            query, output = att.num_heads * att.latent_dim, att.num_heads * att.kv_lora_rank
        else:
            output = att.num_heads * att.head_dim
            query = output + 2 * att.num_kv_heads * att.head_dim
        self._query = query * size
        """Bytes that one row sends in one layer: absorbed queries of all heads (GQA: also the new keys and values),"""
        self._output = output * size
        self._partial = output * size + LSE_BYTES * att.num_heads
        """and what comes back, from an owner or from each stripe."""

    def exchange_s(self, traffic: Traffic) -> Figure:
        """As layers enter them: all queries travel in one collective, and all outputs return in one."""
        queries = self._away * (traffic.into_owner + traffic.to_stripes) * self._query
        owned = self._away * traffic.to_owners * self._output / self._ranks
        back = owned + self._away * traffic.striped * self._partial
        exchanged = self._collective_s("all_to_all", queries) + self._collective_s("all_to_all", back)
        chosen = self._collective_s("all_gather", traffic.candidates)
        return self._layers * (exchanged + traffic.gathering_s) + self._indexers * chosen

    def gathering_s(self, start: Figure, *, whole: Condition) -> Figure:
        """Of the collective that brings one chunk's history of `start` tokens: all of it, or a rank's own KV group
        where it attends with the heads of that one alone. Pieces of a long history are taken as one."""
        num_bytes = self._away * start * self._kv_bytes
        all_of_it = self._collective_s("all_gather", num_bytes)
        if self._groups == 1:
            return all_of_it
        return either(whole, all_of_it, self._collective_s("all_to_all", num_bytes / self._groups))

    def proposed(self, rows: Figure, length: Figure, holders: Figure) -> Figure:
        """Bytes of candidates that a rank receives for rows that see `length` tokens, which `holders` share: of each
        row every holder proposes as many of its keys as the row could choose from it."""
        index = self._index
        if index is None:
            return 0.0
        offered = least(index.top_keys, length / index.pool / holders)
        return most(1, holders - 1) * rows * offered * CANDIDATE_BYTES

    def _collective_s(self, op: str, num_bytes: Figure) -> Figure:
        if not isinstance(num_bytes, np.ndarray) and not num_bytes:
            return 0.0
        return ops.collective_s(self._profile, op, self._ranks, num_bytes)
