"""Seconds of single operations on a device, from its profile.

Counts may be numbers or arrays that broadcast together; a result is what their arithmetic gives. Nothing to do costs
nothing. An operation is a roofline: the time of its arithmetic and of its memory traffic, overlapped, after a fixed
time. Overlapped times join as the root of the sum of their squares: near the ridge a kernel is slower than the larger
one, by 41 % at most. Of the norms tried on the tables of GPUs this one fits best (`bench/fit_profiles.py`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from splash.hw.figures import Figure, least, most, root
from splash.hw.profile import (
    Decode,
    Experts,
    Gemm,
    HardwareProfile,
    Indexer,
    Moe,
    Prefill,
    Product,
    ProfileError,
    Protocols,
    Quantity,
)

Count: TypeAlias = Figure
Seconds: TypeAlias = Figure
"""A float where all counts are numbers, otherwise an array of their common shape."""

BYTES = {"float32": 4.0, "bfloat16": 2.0, "fp8_block": 1.0, "int8": 1.0}
"""Of one weight, by dtype. Scales of blocks or channels are less than a hundredth of it and left out."""

ACTIVATION_BYTES = {"float32": 4.0, "bfloat16": 2.0, "fp8_block": 2.0, "int8": 2.0}
"""Of one activation before it is quantised, and of one output."""

INSTANT = 1e-300
"""Seconds that alter no other, and that can be divided by."""

FALLBACK = {"fp8_block": "bfloat16", "int8": "bfloat16", "bfloat16": "float32"}
"""The dtype to compute in where a profile has no kernel for one: weights are read as they are and converted."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a profile offers for weights of a dtype: the entry used, and the dtype it was fitted for."""

    entry: Any
    computes_in: str


def gemm_kernel(p: HardwareProfile, dtype: str) -> Kernel:
    """The matrix product that weights of `dtype` get on this device; `computes_in` differs after a fallback."""
    return _kernel(p.gemm, dtype)


def moe_kernel(p: HardwareProfile, dtype: str) -> Kernel | None:
    """As `gemm_kernel`, of routed experts; None if the profile has none for `dtype` nor for its fallbacks."""
    try:
        return _kernel(p.moe, dtype)
    except ProfileError:
        return None


def _kernel(table: Gemm | Moe, dtype: str) -> Kernel:
    if dtype not in BYTES:
        raise ProfileError(f"no cost is known of dtype '{dtype}'; known: {', '.join(BYTES)}")
    name = dtype
    while (entry := getattr(table, name)) is None:
        if name not in FALLBACK:
            raise ProfileError(f"the profile has no kernel for {dtype} weights, nor for what they convert to")
        name = FALLBACK[name]
    return Kernel(entry, name)


def gemm_s(p: HardwareProfile, m: Count, n: Count, k: Count, dtype: str) -> Seconds:
    """Of [m, k] activations by [k, n] weights of `dtype`."""
    return batched_gemm_s(p, 1, m, n, k, dtype)


def batched_gemm_s(p: HardwareProfile, batch: Count, m: Count, n: Count, k: Count, dtype: str) -> Seconds:
    """Of `batch` products in one kernel, each of [m, k] by its own [k, n]: what absorbs a query, head by head."""
    return product_s(gemm_kernel(p, dtype).entry, batch, m, n, k, dtype)


def product_s(product: Product, batch: Count, m: Count, n: Count, k: Count, dtype: str) -> Seconds:
    """As `batched_gemm_s`, of one product or more by the kernel that weights of `dtype` get."""
    return Weights.of(product, batch, n, k, dtype).seconds(m)


class Weights(NamedTuple):
    """What products by weights of one shape take, by the rows that they are multiplied with."""

    fixed_s: float
    row_compute_s: Count
    num_bytes: Count
    row_bytes: Count
    byte_s: Count
    depth_s: Count
    row_quantise_s: Count | None

    @classmethod
    def of(cls, product: Product, batch: Count, n: Count, k: Count, dtype: str) -> Weights:
        """Of `batch` weights [k, n] by the kernel that those of `dtype` get."""
        alone = np.all(batch == 1) if isinstance(batch, np.ndarray) else batch == 1
        shape = product if product.by_head is None or alone else product.by_head
        activations, weights = ACTIVATION_BYTES[dtype], BYTES[dtype]
        quantise = product.quantise_bandwidth
        return cls(
            fixed_s=shape.fixed.value,
            row_compute_s=2.0 * batch * n * (k + _value(product.ramp)) / shape.flops.value,
            num_bytes=n * k * weights,
            row_bytes=k * (activations if quantise is None else weights) + n * activations,
            byte_s=batch / shape.bandwidth.value,
            depth_s=k * _value(product.depth),
            row_quantise_s=None if quantise is None else batch * k * (activations + weights) / quantise.value,
        )

    def seconds(self, rows: Count) -> Seconds:
        compute = rows * self.row_compute_s
        traffic = (self.num_bytes + rows * self.row_bytes) * self.byte_s
        seconds = self.fixed_s + _overlap(compute, traffic, self.depth_s)
        if self.row_quantise_s is not None:
            seconds = seconds + rows * self.row_quantise_s
        return (rows > 0) * seconds


def grouped_gemm_s(
    p: HardwareProfile,
    rows: Count,
    experts_hit: Count,
    hidden: int,
    ffn: int,
    shard_width: int,
    dtype: str,
    *,
    experts_held: Count | None = None,
    tokens: Count = 0.0,
) -> Seconds:
    """Of the routed experts' gate, up and down on one rank.

    `rows` are (token, expert) pairs computed here, `experts_hit` the experts whose weights are read here, and
    `shard_width` the ranks that one expert is divided by (1 with expert parallelism). `experts_held` are those that lie
    here (as many as are hit, if unsaid), `tokens` those that are sorted by expert here.
    """
    columns = ffn / shard_width
    held = experts_hit if experts_held is None else experts_held
    weights = 3.0 * experts_hit * hidden * columns * BYTES[dtype]
    activations = rows * (2.0 * hidden + 3.0 * columns) * ACTIVATION_BYTES[dtype]
    kernel = moe_kernel(p, dtype)
    if kernel is None:
        return _roofline(gemm_kernel(p, dtype).entry, 6.0 * rows * hidden * columns, weights + activations)
    experts: Experts = kernel.entry
    padded = rows + experts_hit * _value(experts.padding)
    compute = 6.0 * padded * hidden * columns / _by_width(experts.flops, columns)
    seconds = experts.fixed.value + _overlap(compute, (weights + activations) / experts.bandwidth.value)
    seconds = seconds + experts_hit * _value(experts.per_hit)
    return (rows > 0) * (seconds + held * _value(experts.per_expert) + tokens * _value(experts.per_token))


def _by_width(flops: Mapping[int, Quantity], columns: float) -> float:
    """Log-log between the listed widths; in proportion below the narrowest, constant above the widest."""
    widths = list(flops)
    at = bisect_left(widths, columns)
    if at == 0:
        return flops[widths[0]].value * columns / widths[0]
    if at == len(widths):
        return flops[widths[-1]].value
    low, high = widths[at - 1], widths[at]
    share = math.log(columns / low) / math.log(high / low)
    return float(flops[low].value ** (1 - share) * flops[high].value ** share)


def mla_decode_s(
    p: HardwareProfile,
    rows: Count,
    kv_tokens: Count,
    heads: Count,
    latent_dim: int,
    value_dim: int,
    token_bytes: float,
) -> Seconds:
    """Of absorbed attention over the latent cache.

    `rows` are query rows, one a request, `kv_tokens` the sum of the contexts that they read, `heads` those computed
    here. `latent_dim` is what a query is multiplied with (512 + 64), `value_dim` what is summed (512), and
    `token_bytes` what one token and layer has in the cache; near a byte a number, the profile's entry for fp8 is used.
    """
    return mla_decoding(p, heads, latent_dim, value_dim, token_bytes).seconds(rows, kv_tokens)


def sparse_mla_decode_s(
    p: HardwareProfile,
    rows: Count,
    kv_tokens_selected: Count,
    heads: Count,
    latent_dim: int,
    value_dim: int,
    token_bytes: float,
) -> Seconds:
    """As `mla_decode_s`, over the sum of the tokens that the rows selected; dense where the profile has no sparse."""
    attending = mla_decoding(p, heads, latent_dim, value_dim, token_bytes, sparse=True)
    return attending.seconds(rows, kv_tokens_selected)


def gqa_decode_s(
    p: HardwareProfile,
    rows: Count,
    kv_tokens: Count,
    heads: Count,
    kv_heads: Count,
    head_dim: int,
    token_bytes: Count,
) -> Seconds:
    """Of grouped attention: `heads` query heads over `kv_heads`, whose k and v are `token_bytes` a token."""
    return gqa_decoding(p, heads, kv_heads, head_dim, token_bytes).seconds(rows, kv_tokens)


def mla_decoding(
    p: HardwareProfile,
    heads: Count,
    latent_dim: int,
    value_dim: int,
    token_bytes: float,
    *,
    sparse: bool = False,
) -> Decoding:
    """What `mla_decode_s`, or `sparse_mla_decode_s`, says of some rows and tokens."""
    kernels = p.attention
    fp8 = kernels.mla_decode_fp8 if token_bytes < 1.5 * latent_dim else None
    decode = (kernels.sparse_mla_decode if sparse else fp8) or kernels.mla_decode
    return Decoding.of(decode, heads, latent_dim + value_dim, token_bytes)


def gqa_decoding(
    p: HardwareProfile, heads: Count, kv_heads: Count, head_dim: int, token_bytes: Count
) -> Decoding:
    """What `gqa_decode_s` says of some rows and tokens."""
    decode = p.attention.gqa_decode
    computed = kv_heads * _round_up(heads / kv_heads, _multiple(decode))
    return Decoding.of(decode, computed, 2 * head_dim, token_bytes)


class Decoding(NamedTuple):
    """What decodes take with so many heads, by their rows and the tokens that these read."""

    fixed_s: float
    token_compute_s: Count
    token_read_s: Count
    token_gather_s: Count | None
    row_query_s: Count
    row_s: Count
    split_s: float | None
    walk: Quantity | None

    @classmethod
    def of(cls, decode: Decode, heads: Count, width: int, token_bytes: Count) -> Decoding:
        bandwidth, gather = decode.bandwidth.value, decode.gather_bandwidth
        return cls(
            fixed_s=decode.fixed.value,
            token_compute_s=2.0 * _round_up(heads, _multiple(decode)) * width / _by_heads(decode, heads),
            token_read_s=token_bytes / bandwidth,
            token_gather_s=None if gather is None else token_bytes / gather.value,
            row_query_s=heads * width * ACTIVATION_BYTES["bfloat16"] / bandwidth,
            row_s=_value(decode.per_row) + heads * _value(decode.per_head),
            split_s=None if decode.split is None else decode.split.value,
            walk=decode.per_token,
        )

    def seconds(self, rows: Count, kv_tokens: Count) -> Seconds:
        compute = kv_tokens * self.token_compute_s
        traffic = kv_tokens * self.token_read_s + rows * self.row_query_s
        read = _overlap(compute, traffic, _one_row(rows, kv_tokens, self.walk))
        seconds = self.fixed_s + read + rows * self.row_s
        if self.split_s is not None:
            seconds = seconds + self.split_s * read / (read + self.fixed_s + INSTANT)
        if self.token_gather_s is not None:
            seconds = seconds + kv_tokens * self.token_gather_s
        return (kv_tokens > 0) * seconds


def _by_heads(decode: Decode, heads: Count) -> Count:
    """FLOP/s of the narrowest kernel that takes `heads`."""
    kernels = decode.by_heads or {}
    if isinstance(heads, np.ndarray):
        flops = [*(kernel.value for kernel in kernels.values()), decode.flops.value]
        narrowest: Count = np.array(flops)[np.searchsorted(list(kernels), heads)]
        return narrowest
    return next((kernel.value for limit, kernel in kernels.items() if heads <= limit), decode.flops.value)


def _one_row(rows: Count, kv_tokens: Count, per_token: Quantity | None) -> Seconds:
    """Of walking along the context of one of `rows` rows, as long as the others."""
    return 0.0 if per_token is None else kv_tokens / (rows + (rows == 0)) * per_token.value


def _multiple(decode: Decode) -> float:
    return decode.heads_multiple.value if decode.heads_multiple else 1.0


def _value(quantity: Quantity | None) -> float:
    """Zero for what a profile leaves out."""
    return 0.0 if quantity is None else quantity.value


def _round_up(count: Count, multiple: float) -> Count:
    return -(-count // multiple) * multiple


def indexer_s(
    p: HardwareProfile, rows: Count, kv_tokens: Count, heads: int, head_dim: int, key_bytes: float
) -> Seconds:
    """Of scoring `kv_tokens` (query row, key) pairs and choosing each row's best.

    In decode every row has keys of its own. A prompt chunk's rows share theirs, so `key_bytes` is that of one pair:
    a key's bytes divided by the rows that read it together.
    """
    indexer = p.attention.indexer
    flops = kv_tokens * (2.0 * heads * head_dim)
    if indexer is None:
        return _roofline(p.gemm.bfloat16, flops, kv_tokens * (key_bytes + 8.0))
    return _roofline(indexer, flops, kv_tokens * key_bytes) + _one_row(rows, kv_tokens, indexer.per_token)


def prefill_pairs(prefill: Prefill, rows: Count, history: Count) -> Count:
    """(query, key) pairs that a chunk of `rows` after `history` tokens computes: causal ones, in whole tiles."""
    tile = _value(prefill.tile) or 1.0
    padded = _round_up(rows, tile)
    return padded * (_round_up(history, tile) + (padded + tile) / 2)


def mla_prefill_s(
    p: HardwareProfile,
    pairs: Count,
    kv_tokens: Count,
    heads: Count,
    qk_dim: int,
    v_dim: int,
    token_bytes: Count,
    *,
    longest: Count = 0.0,
) -> Seconds:
    """Of prompt chunks: `pairs` (query, key) pairs over `kv_tokens` tokens of `token_bytes`.

    `prefill_pairs` gives the pairs of a chunk. Un-absorbed attention has dims of 192 and 128 and reads keys and values
    of all heads, absorbed has 576 and 512 and reads latents. `longest` is the context of the longest request; what is
    not said costs nothing.
    """
    width = heads * (qk_dim + v_dim)
    return Prefilling.of(p.attention.mla_prefill, width, token_bytes).seconds(pairs, kv_tokens, longest)


def gqa_prefill_s(
    p: HardwareProfile,
    pairs: Count,
    kv_tokens: Count,
    heads: Count,
    head_dim: int,
    token_bytes: Count,
    *,
    longest: Count = 0.0,
) -> Seconds:
    """As `mla_prefill_s`, with keys and values of one width."""
    width = heads * 2 * head_dim
    return Prefilling.of(p.attention.gqa_prefill, width, token_bytes).seconds(pairs, kv_tokens, longest)


class Prefilling(NamedTuple):
    """What prompt chunks take with so many heads, by their pairs and the tokens that they read."""

    fixed_s: float
    pair_s: Count
    token_s: Count
    walk_s: float

    @classmethod
    def of(cls, prefill: Prefill, width: Count, token_bytes: Count) -> Prefilling:
        """`width`: numbers of a query and an output of all heads."""
        flops, bandwidth = prefill.flops.value, prefill.bandwidth.value
        walk_s = _value(prefill.per_token)
        return cls(prefill.fixed.value, 2.0 * width / flops, token_bytes / bandwidth, walk_s)

    def seconds(self, pairs: Count, kv_tokens: Count, longest: Count) -> Seconds:
        compute = _overlap(pairs * self.pair_s, longest * self.walk_s)
        return (pairs > 0) * (self.fixed_s + compute + kv_tokens * self.token_s)


def recurrent_s(p: HardwareProfile, rows: Count, heads: Count, head_dim: int, state_bytes: float) -> Seconds:
    """Of one recurrent update: each row reads and writes the `state_bytes` of its heads, and q, k, v, gate, output."""
    return elementwise_s(
        p, rows * (2.0 * state_bytes + 5.0 * heads * head_dim * ACTIVATION_BYTES["bfloat16"])
    )


def elementwise_s(p: HardwareProfile, num_bytes: Count) -> Seconds:
    """Of streaming `num_bytes`, read and written together, in one kernel."""
    stream = p.elementwise
    return (num_bytes > 0) * (stream.fixed.value + num_bytes / stream.bandwidth.value)


def collective_s(p: HardwareProfile, op: str, ranks: int, num_bytes: Count) -> Seconds:
    """Of one collective in a group of `ranks`; `num_bytes` are those that one rank *receives*.

    With T ranks and f = 1 - 1/T a rank receives 2 f n in an all-reduce of n bytes (as in a ring), f n in an all-gather
    or an all-to-all whose result has n bytes, f n in a reduce-scatter of n bytes of input, and n in a broadcast.
    A size that the profile lacks lies between its neighbours, linear in the logarithm of the ranks; beyond the largest
    it costs as that one does, and leaving the node costs as `_across_nodes` says. No byte, or one rank, costs nothing.
    """
    sizes = p.collective.of(op)
    if ranks < 2:
        return 0.0 * num_bytes
    if ranks in sizes:
        return (num_bytes > 0) * _protocols(sizes[ranks], num_bytes)
    node = int(p.node.ranks.value)
    local = {size: protocols for size, protocols in sizes.items() if size <= node}
    across = {size: protocols for size, protocols in sizes.items() if size > node}
    if ranks > node and not across:
        seconds = _across_nodes(p, op, ranks, num_bytes)
    else:
        seconds = _interpolated(across if ranks > node else local, ranks, num_bytes)
    return (num_bytes > 0) * seconds


def _interpolated(sizes: Mapping[int, Protocols], ranks: int, num_bytes: Count) -> Seconds:
    known = list(sizes)
    at = bisect_left(known, ranks)
    if at == len(known) or at == 0:
        return _protocols(sizes[known[min(at, len(known) - 1)]], num_bytes)
    low, high = known[at - 1], known[at]
    share = math.log(ranks / low) / math.log(high / low)
    return (1 - share) * _protocols(sizes[low], num_bytes) + share * _protocols(sizes[high], num_bytes)


def _protocols(protocols: Protocols, num_bytes: Count) -> Seconds:
    small = protocols.alpha.value + num_bytes / protocols.beta.value
    if protocols.alpha_large is None or protocols.beta_large is None:
        return small
    large = protocols.alpha_large.value + num_bytes / protocols.beta_large.value
    return least(small, large)


def _across_nodes(p: HardwareProfile, op: str, ranks: int, num_bytes: Count) -> Seconds:
    """As within one whole node, or as the network carries the share that leaves it, whichever is slower.

    Of an all-to-all each rank receives all but its own node's part from outside. The others run as one ring for each
    rank of a node, so a rank's network port carries one part in `node.ranks`.
    """
    if p.node.network_bandwidth is None or p.node.network_latency is None:
        raise ProfileError(
            f"{p.name}: a group of {ranks} ranks does not fit a node of {p.node.ranks.value:g}, and the profile "
            "has no [node] network_bandwidth and network_latency"
        )
    node = p.node.ranks.value
    outside = (ranks - node) / (ranks - 1) if op == "all_to_all" else 1 / node
    inside = _interpolated(p.collective.of(op), int(node), num_bytes)
    network = num_bytes * outside / p.node.network_bandwidth.value
    return p.node.network_latency.value + most(inside, network)


def copy_s(p: HardwareProfile, num_bytes: Count, *, between_nodes: bool = False) -> Seconds:
    """Of copying bytes from a peer's memory in the background of inference: as the copier copies within a node, and at
    most as fast as the network between nodes."""
    bandwidth = p.memory.copy_bandwidth.value
    if between_nodes:
        if p.node.network_bandwidth is None:
            raise ProfileError(
                f"{p.name}: bytes are copied between nodes of {p.node.ranks.value:g} ranks, and the profile has no "
                "[node] network_bandwidth"
            )
        bandwidth = min(bandwidth, p.node.network_bandwidth.value)
    return num_bytes / bandwidth


def _roofline(kernel: Product | Indexer, flops: Count, num_bytes: Count) -> Seconds:
    overlapped = _overlap(flops / kernel.flops.value, num_bytes / kernel.bandwidth.value)
    return (flops > 0) * (kernel.fixed.value + overlapped)


def _overlap(*seconds: Count) -> Seconds:
    first, *others = seconds
    squares = first * first
    for time in others:  # not `sum`, which from Python 3.12 on rounds numbers otherwise than arrays
        squares = squares + time * time
    return root(squares)
