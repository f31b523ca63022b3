"""In which number formats a deployment computes and stores: what the cost model needs of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Precision:
    """Names of `hw.ops.gemm_s` for the weights of each kind, and bytes of what is cached."""

    attention: str
    """MLA and GQA projections, the indexer's too."""
    experts: str
    """Routed and shared experts, dense MLPs."""
    kda: str
    dense: str
    """Router and vocabulary."""
    activation_bytes: int
    """Of one element that travels between ranks."""
    kv_bytes: float
    """Of one token and attention layer, all KV heads, without index keys."""
    index_bytes: float
    """Of one token and layer with an indexer."""
