"""The schema of a hardware profile: what one rank's device can do. Every number carries its provenance.

Units are bytes, seconds, and floating point (or integer) operations, where a multiply-add is two. What is optional here
may be absent in a file: the device lacks it, or nobody has measured it; `splash/hw/ops.py` says what is used instead.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from splash.core.errors import ConfigError

PROVENANCES = ("measured", "fitted", "datasheet", "assumed")


class ProfileError(ConfigError):
    """A hardware profile is unknown, unreadable, incomplete or has a value that cannot be."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and where it comes from. The unit is that of the field it stands in."""

    value: float
    source: str

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or self.value <= 0:
            raise ValueError(f"value must be a positive number, not {self.value:g}")
        if self.source.partition(":")[0] not in PROVENANCES:
            raise ValueError(f"source must start with one of {', '.join(PROVENANCES)} and a colon")


@dataclass(frozen=True, slots=True)
class Memory:
    """Capacity in bytes; bandwidths in bytes per second."""

    capacity: Quantity
    bandwidth: Quantity
    """Of reading weights and KV once, as a step does."""
    copy_bandwidth: Quantity
    """Of copying pages and shards from a peer of the same node in the background, in bytes copied."""
    shared_by: Quantity | None = None
    """Ranks at most that divide one capacity between them, as processes of one machine do; absent where each has its
    own."""

    def sharers(self, ranks: int) -> int:
        """How many of `ranks` divide one capacity."""
        return 1 if self.shared_by is None else min(ranks, int(self.shared_by.value))

    def rank_bytes(self, ranks: int) -> int:
        """Of one rank among `ranks`."""
        return int(self.capacity.value) // self.sharers(ranks)


@dataclass(frozen=True, slots=True)
class Node:
    """How ranks are joined. Bandwidths are of one rank, one direction, in bytes per second."""

    ranks: Quantity
    """That share a node, and its links."""
    link_bandwidth: Quantity
    network_bandwidth: Quantity | None = None
    """Between nodes; absent where ranks of one node is all there is."""
    network_latency: Quantity | None = None
    """Seconds that a collective takes longer when it leaves the node, whatever its size."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The vendor's figures, dense. No cost is computed from them; they show how far an effective figure is off."""

    bandwidth: Quantity | None = None
    float32: Quantity | None = None
    bfloat16: Quantity | None = None
    fp8: Quantity | None = None
    int8: Quantity | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """What is bound by memory: norms, activations, recurrent updates."""

    bandwidth: Quantity
    fixed: Quantity


@dataclass(frozen=True, slots=True)
class ByHead:
    """As many small products as there are heads, each with its own weights, in one call."""

    flops: Quantity
    bandwidth: Quantity
    fixed: Quantity


@dataclass(frozen=True, slots=True)
class Product:
    """Matrix products of one dtype, of any shape."""

    flops: Quantity
    bandwidth: Quantity
    fixed: Quantity
    depth: Quantity | None = None
    """Seconds for each element of the inner dimension, which one unit walks alone: what a narrow product waits for."""
    ramp: Quantity | None = None
    """Elements of the inner dimension whose time a tile needs to start and to write its result."""
    quantise_bandwidth: Quantity | None = None
    """At which activations are read, and written in the weights' dtype, where the product needs that."""
    by_head: ByHead | None = None
    """Absent where they run as one large product does."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """By dtype: the products that the device has kernels for. `fp8_block` scales blocks of 128 by 128."""

    float32: Product
    bfloat16: Product
    fp8_block: Product | None = None
    int8: Product | None = None


@dataclass(frozen=True, slots=True)
class Decode:
    """Attention of decode rows over a paged cache."""

    flops: Quantity
    bandwidth: Quantity
    fixed: Quantity
    per_row: Quantity | None = None
    """Seconds that each row adds, whatever its length."""
    per_token: Quantity | None = None
    """Seconds for each token of one context: how fast a device reads for a single row."""
    split: Quantity | None = None
    """Seconds at most to split contexts over the device's units and to merge their parts."""
    heads_multiple: Quantity | None = None
    """Query heads (per KV head) are padded to a multiple of it."""
    by_heads: Mapping[int, Quantity] | None = None
    """`flops` of kernels for few query heads, by the most that each takes; a call gets the narrowest that takes its
    heads, and `flops` is that of the widest kernel."""
    per_head: Quantity | None = None
    """Seconds that each query head of each row adds: its query is read, and what units have of its output merged."""
    gather_bandwidth: Quantity | None = None
    """At which cached tokens are copied together before anything is computed over them; absent where a kernel reads
    pages where they lie."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Attention of prompt chunks. Arithmetic and traffic are added: chunks overlap them badly."""

    flops: Quantity
    bandwidth: Quantity
    fixed: Quantity
    per_token: Quantity | None = None
    """Seconds for each token of one context, which a unit walks alone: what chunks with few heads wait for."""
    tile: Quantity | None = None
    """Rows and keys of a square that is computed whole, if one pair of it is causal; see `ops.prefill_pairs`."""


@dataclass(frozen=True, slots=True)
class Indexer:
    """The scores of all index keys of a context, and the choice of the best."""

    flops: Quantity
    bandwidth: Quantity
    """Of reading index keys."""
    fixed: Quantity
    """Of both kernels, and of the small ones around them."""
    per_token: Quantity | None = None
    """Seconds for each token of one context: a row's scores are selected from alone."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention kernels, each on one rank's rows and heads."""

    mla_decode: Decode
    mla_prefill: Prefill
    gqa_decode: Decode
    gqa_prefill: Prefill
    mla_decode_fp8: Decode | None = None
    """Over a cache of one byte a number."""
    sparse_mla_decode: Decode | None = None
    """Over selected tokens: reads are scattered."""
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts of one dtype, gate, up and down."""

    flops: Mapping[int, Quantity]
    """By the columns of one expert that a rank holds: its FFN width over the ranks that it is divided by."""
    bandwidth: Quantity
    fixed: Quantity
    padding: Quantity | None = None
    """Rows that each expert computes for nothing, on average."""
    per_expert: Quantity | None = None
    """Seconds for each expert that the rank holds, hit or not."""
    per_hit: Quantity | None = None
    """Seconds for each expert that is hit: where experts are computed one after the other."""
    per_token: Quantity | None = None
    """Seconds for each token that the rank sees, whether an expert here computes it or not."""

    def __post_init__(self) -> None:
        if not self.flops:
            raise ValueError("flops must have a value for one width at least")


@dataclass(frozen=True, slots=True)
class Moe:
    """Routed experts by dtype, as with matrix products."""

    float32: Experts | None = None
    bfloat16: Experts | None = None
    fp8_block: Experts | None = None
    int8: Experts | None = None


@dataclass(frozen=True, slots=True)
class Protocols:
    """Seconds of a call are the smaller of `alpha + x / beta` and `alpha_large + x / beta_large`.

    x is the bytes that one rank receives; see `ops.collective_s`. One protocol is enough.
    """

    alpha: Quantity
    beta: Quantity
    alpha_large: Quantity | None = None
    beta_large: Quantity | None = None

    def __post_init__(self) -> None:
        if (self.alpha_large is None) != (self.beta_large is None):
            raise ValueError("alpha_large and beta_large belong together")


@dataclass(frozen=True, slots=True)
class Collectives:
    """The collectives that a communicator has, each by the number of ranks in the group."""

    all_reduce: Mapping[int, Protocols]
    all_gather: Mapping[int, Protocols]
    reduce_scatter: Mapping[int, Protocols]
    all_to_all: Mapping[int, Protocols]
    broadcast: Mapping[int, Protocols]

    def __post_init__(self) -> None:
        for field in fields(self):
            sizes = self.of(field.name)
            if not sizes or min(sizes) < 2:
                raise ValueError(f"{field.name} needs groups of two ranks or more, not {sorted(sizes)}")

    def of(self, op: str) -> Mapping[int, Protocols]:
        """One collective by name."""
        table: Mapping[int, Protocols] = getattr(self, op)
        return table


@dataclass(frozen=True, slots=True)
class Host:
    """Costs outside the kernels, in seconds."""

    step_overhead: Quantity
    """Of one step beside its forward pass, without the share per request. Launching its kernels is in it: one by one
    while the device computes, or all as one graph."""
    request_overhead: Quantity | None = None
    """Of one request in a step: its part in planning, inputs, sampling and text."""
    layer_overhead: Quantity | None = None
    """Of one layer, for all that is neither a product nor attention nor a collective."""


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """What one rank has. The name is the profile's file name."""

    name: str
    device: str
    """The kind of device, for people: no code asks for it."""
    summary: str
    memory: Memory
    node: Node
    gemm: Gemm
    attention: Attention
    elementwise: Stream
    collective: Collectives
    host: Host
    aliases: tuple[str, ...] = ()
    """Other names that load this profile."""
    moe: Moe = Moe()
    peak: Peak = Peak()
