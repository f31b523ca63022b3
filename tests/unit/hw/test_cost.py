"""The cost of a step against a slow twin: layer after layer, rank after rank, from single operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from splash.hw import ops
from splash.hw.attention import MANY, AttentionCost, PlacedReads
from splash.hw.cost import CostModel
from splash.hw.load import load_profile
from splash.hw.precision import Precision
from splash.hw.rows import ROW_PASSES
from splash.layout.layouts import LAYOUTS, Placement, Projection, assigned
from splash.layout.rows import Method
from splash.layout.work import DecodeRows, PromptRows, Work
from splash.spec.known import known_model
from splash.spec.model import GQASpec, MLASpec, ModelSpec, MoESpec
from splash.spec.storage import kv_storage, weight_storage

RANKS, MAX_ROWS = 8, 1200
P = load_profile("h200")
MODELS = ("deepseek-v3", "deepseek-v3.2", "llama-3.1-405b", "glm-5.3-flash")
ROWS = (9, 3, 5, 2, 4, 6, 1, 7)
"""Decodes by home: no two ranks alike."""


@cache
def spec_of(name: str) -> ModelSpec:
    return known_model(name)


@cache
def precision_of(name: str) -> Precision:
    return Precision.of(spec_of(name), weight_storage("bfloat16"), kv_storage("bfloat16"))


@cache
def model(name: str, *, scattered: bool = True, unabsorbed: bool = True) -> CostModel:
    return CostModel(
        spec=spec_of(name),
        profile=P,
        ranks=RANKS,
        precision=precision_of(name),
        max_rows=MAX_ROWS,
        scattered=scattered,
        unabsorbed=unabsorbed,
    )


def keeps(spec: ModelSpec) -> float:
    return float("inf") if spec.indexer is None else spec.indexer.top_k


def decodes(name: str, layout: str, rows: Sequence[int] = ROWS, length: int = 3000) -> Work:
    """`rows[home]` rows of `length` tokens and a little more for each home; under tp all have one home."""
    if LAYOUTS[layout].placement is Placement.BY_HEAD:
        rows = (sum(rows),)
    most = keeps(spec_of(name))
    groups = tuple(
        DecodeRows(assigned(LAYOUTS[layout], home), n, n * (length + home), n * min(length + home, most))
        for home, n in enumerate(rows)
    )
    return Work(groups, sampled=sum(rows))


# ---- the twin


def head_parts_s(name: str, rows: dict[str, int], heads: int) -> float:
    """q, the two halves of kv_b and o of `heads` heads in one layer, each for its own number of rows."""
    spec, dtype = spec_of(name), precision_of(name).attention
    att, hidden = spec.attention, spec.hidden_size
    if isinstance(att, GQASpec):
        kv_heads = att.num_kv_heads if heads == att.num_heads else max(1, att.num_kv_heads // RANKS)
        return float(
            ops.gemm_s(P, rows["q"], (heads + 2 * kv_heads) * att.head_dim, hidden, dtype)
            + ops.gemm_s(P, rows["o"], hidden, heads * att.head_dim, dtype)
        )
    q_in = att.q_lora_rank or hidden
    return float(
        ops.gemm_s(P, rows["q"], heads * (att.nope_dim + att.rope_dim), q_in, dtype)
        + ops.batched_gemm_s(P, heads, rows["uk"], att.kv_lora_rank, att.nope_dim, dtype)
        + ops.batched_gemm_s(P, heads, rows["uv"], att.v_dim, att.kv_lora_rank, dtype)
        + ops.gemm_s(P, rows["o"], hidden, heads * att.v_dim, dtype)
    )


def attend_s(name: str, layer: int, rows: float, context: float, selected: float, heads: int) -> float:
    """One kernel of one layer on one rank."""
    spec, kv_bytes = spec_of(name), precision_of(name).kv_bytes
    att, index = spec.attention, spec.indexer
    if not rows:
        return 0.0
    if isinstance(att, GQASpec):
        kv_heads = att.num_kv_heads if heads == att.num_heads else max(1, att.num_kv_heads // RANKS)
        token_bytes = kv_bytes * kv_heads / att.num_kv_heads
        return float(ops.gqa_decode_s(P, rows, context, heads, kv_heads, att.head_dim, token_bytes))
    shape = heads, att.latent_dim, att.kv_lora_rank, kv_bytes
    if index is None:
        return float(ops.mla_decode_s(P, rows, context, *shape))
    seconds = float(ops.sparse_mla_decode_s(P, rows, selected, *shape))
    if spec.has_indexer(layer):
        key_bytes = precision_of(name).index_bytes * index.pool
        keys = context / index.pool
        seconds += float(ops.indexer_s(P, rows, keys, index.num_heads, index.head_dim, key_bytes))
    return seconds


def replicated_s(name: str, layer: int, rows: int) -> float:
    """What a rank computes of each of its rows whatever the layout, in one attention layer."""
    spec, precision = spec_of(name), precision_of(name)
    att, index, hidden = spec.attention, spec.indexer, spec.hidden_size
    streams = 1 if spec.hyper is None else spec.hyper.streams
    seconds = ops.elementwise_s(P, ROW_PASSES * streams * hidden * precision.activation_bytes * rows)
    if isinstance(att, MLASpec):
        down = (att.q_lora_rank or 0) + att.latent_dim
        seconds += ops.gemm_s(P, rows, down, hidden, precision.attention)
        if index is not None and spec.has_indexer(layer):
            width = index.num_heads * index.head_dim
            seconds += ops.gemm_s(P, rows, width, att.q_lora_rank or hidden, precision.attention)
            seconds += ops.gemm_s(P, rows, index.head_dim + index.num_heads, hidden, precision.attention)
    return float(seconds)


def ffn_s(name: str, layer: int, rows: int) -> float:
    spec, precision = spec_of(name), precision_of(name)
    ffn, hidden = spec.ffns[layer], spec.hidden_size

    def mlp(width: int) -> float:
        own = -(-width // RANKS)
        up = ops.gemm_s(P, rows, 2 * own, hidden, precision.experts)
        return float(up + ops.gemm_s(P, rows, hidden, own, precision.experts))

    if not isinstance(ffn, MoESpec):
        return mlp(ffn.ffn)
    held = ffn.num_experts / RANKS
    hit = held * (1 - (1 - ffn.top_k / ffn.num_experts) ** rows)
    routed = ops.grouped_gemm_s(
        P,
        rows * ffn.top_k / RANKS,
        hit,
        hidden,
        ffn.expert_ffn,
        1,
        precision.experts,
        experts_held=held,
        tokens=rows,
    )
    router = ops.gemm_s(P, rows, ffn.num_experts, hidden, "float32")
    return float(routed + router) + (mlp(ffn.num_shared * ffn.expert_ffn) if ffn.num_shared else 0.0)


def exchanged_s(name: str, layer: int, work: Work) -> float:
    """The exchanges around one layer's attention, from the bytes of REFERENCE §2: a share of 1 - 1/T of what the
    busiest rank is to receive comes from others."""
    spec, precision = spec_of(name), precision_of(name)
    att, away, item = spec.attention, 1 - 1 / RANKS, precision.activation_bytes
    if isinstance(att, MLASpec):
        query, output = att.num_heads * att.latent_dim, att.num_heads * att.kv_lora_rank
    else:
        output = att.num_heads * att.head_dim
        query = output + 2 * att.num_kv_heads * att.head_dim
    into_owner, everywhere, back, candidates = [0.0] * RANKS, 0.0, 0.0, 0.0
    for group in work.decodes:
        match group.at.layout.name:
            case "dop":
                into_owner[group.at.home] += away * group.rows * query * item
                back += away * group.rows * output * item / RANKS
            case "dcp" | "cp":
                if group.at.layout.projection is Projection.SHARDED:
                    everywhere += away * group.rows * query * item
                back += away * group.rows * (output * item + 4 * att.num_heads)
                if spec.indexer is not None:
                    index, length = spec.indexer, group.context / group.rows
                    offered = min(index.top_keys, length / RANKS / index.pool)
                    candidates += (RANKS - 1) * group.rows * offered * 8 if length > index.top_k else 0.0
    seconds = ops.collective_s(P, "all_to_all", RANKS, max(into_owner) + everywhere)
    seconds += ops.collective_s(P, "all_to_all", RANKS, back)
    if spec.indexer is not None and spec.has_indexer(layer):
        seconds += ops.collective_s(P, "all_gather", RANKS, candidates)
    return float(seconds)


def closed_s(name: str, rows: int, *, scattered: bool) -> float:
    """One layer's collectives of hidden states, in two bytes."""
    num_bytes = (1 - 1 / RANKS) * rows * spec_of(name).hidden_size * 2
    if scattered:
        gather = ops.collective_s(P, "all_gather", RANKS, num_bytes)
        return float(gather + ops.collective_s(P, "reduce_scatter", RANKS, num_bytes))
    return 2 * float(ops.collective_s(P, "all_reduce", RANKS, 2 * num_bytes))


def twin_s(name: str, work: Work, *, scattered: bool) -> dict[str, float]:
    """Of decodes in one layout, all layers of which attend."""
    spec = spec_of(name)
    (layout,) = {group.at.layout for group in work.decodes}
    heads, count = spec.attention.num_heads, work.num_rows
    rows_of = [sum(g.rows for g in work.decodes if g.at.home == rank) for rank in range(RANKS)]
    context = [sum(g.context for g in work.decodes if g.at.home == rank) for rank in range(RANKS)]
    selected = [sum(g.selected for g in work.decodes if g.at.home == rank) for rank in range(RANKS)]
    own = max(*rows_of, -(-count // RANKS)) if scattered else count
    of_ranks = [0.0] * RANKS
    common = {"exchange": 0.0, "experts": 0.0, "collectives": 0.0, "alike": 0.0}
    for layer in range(spec.num_layers):
        for rank in range(RANKS):
            match layout.name:
                case "tp":
                    by = attend_s(name, layer, count, sum(context), sum(selected), heads // RANKS)
                    by += head_parts_s(name, dict.fromkeys(("q", "uk", "uv", "o"), count), heads // RANKS)
                case "dp":
                    by = attend_s(name, layer, rows_of[rank], context[rank], selected[rank], heads)
                    by += head_parts_s(name, dict.fromkeys(("q", "uk", "uv", "o"), rows_of[rank]), heads)
                case "dop":
                    by = attend_s(name, layer, rows_of[rank], context[rank], selected[rank], heads)
                    by += head_parts_s(name, dict.fromkeys(("q", "uk", "uv", "o"), count), heads // RANKS)
                case "dcp":
                    by = attend_s(name, layer, count, sum(context) / RANKS, sum(selected) / RANKS, heads)
                    by += head_parts_s(name, dict.fromkeys(("q", "uk", "uv", "o"), count), heads // RANKS)
                case "cp":  # finishes by head
                    by = attend_s(name, layer, count, sum(context) / RANKS, sum(selected) / RANKS, heads)
                    by += head_parts_s(name, {"q": count, "uk": count, "uv": 0, "o": 0}, heads)
                    by += head_parts_s(name, {"q": 0, "uk": 0, "uv": count, "o": count}, heads // RANKS)
            of_ranks[rank] += by
        common["exchange"] += exchanged_s(name, layer, work)
        common["experts"] += ffn_s(name, layer, count)
        common["collectives"] += closed_s(name, count, scattered=scattered)
        common["alike"] += replicated_s(name, layer, own)
    host = P.host
    vocabulary = ops.gemm_s(
        P, work.sampled, -(-spec.vocab_size // RANKS), spec.hidden_size, precision_of(name).dense
    )
    overhead = host.step_overhead.value + float(vocabulary)
    overhead += host.request_overhead.value * work.sampled if host.request_overhead else 0.0
    overhead += host.layer_overhead.value * spec.num_layers if host.layer_overhead else 0.0
    common["overhead"] = overhead
    return {**common, "total": max(of_ranks) + sum(common.values())}


# ---- decodes


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3.2", "llama-3.1-405b"])
def test_decodes_cost_what_their_layers_and_ranks_do(name: str, layout: str) -> None:
    """Red when a part is left out, is charged to the wrong ranks or heads, or counts the wrong layers."""
    work = decodes(name, layout)
    found, expected = model(name, scattered=False).step(work), twin_s(name, work, scattered=False)
    for part in ("exchange", "experts", "collectives", "overhead"):
        assert float(np.max(getattr(found, part))) == pytest.approx(expected[part]), part
    assert float(np.max(found.total)) == pytest.approx(expected["total"])


@pytest.mark.parametrize(("layout", "scatters"), [("dp", True), ("cp", False), ("dop", False), ("tp", False)])
def test_rows_are_scattered_where_full_projections_compute_all_of_them(layout: str, scatters: bool) -> None:
    """Red when scattered rows are priced where rows cannot be divided, or not where they can."""
    work = decodes("deepseek-v3", layout)
    found = model("deepseek-v3").step(work)
    assert float(found.collectives) == pytest.approx(
        twin_s("deepseek-v3", work, scattered=scatters)["collectives"]
    )
    if layout == "dp":
        expected = twin_s("deepseek-v3", work, scattered=True)
        assert float(np.max(found.total)) == pytest.approx(expected["total"])


def test_few_rows_stay_on_every_rank_where_that_is_faster() -> None:
    """Red when rows are divided because they may be: one row a rank takes two small all-reduces a layer, which are
    faster here than a gather and a scatter."""
    few = decodes("deepseek-v3", "dp", rows=(1,) * RANKS)
    expected = {scattered: twin_s("deepseek-v3", few, scattered=scattered) for scattered in (False, True)}
    assert expected[False]["total"] < expected[True]["total"]
    found = model("deepseek-v3").step(few)
    assert float(found.collectives) == pytest.approx(expected[False]["collectives"])
    assert float(np.max(found.total)) == pytest.approx(expected[False]["total"])


def test_fewer_rows_than_ranks_are_not_scattered() -> None:
    """Red when a step of two rows is divided over eight ranks."""
    work = decodes("deepseek-v3", "dp", rows=(1, 1))
    spec = spec_of("deepseek-v3")
    received = 2 * (1 - 1 / RANKS) * work.num_rows * spec.hidden_size * 2
    closing = 2 * spec.num_layers * float(ops.collective_s(P, "all_reduce", RANKS, received))
    assert float(model("deepseek-v3").step(work).collectives) == pytest.approx(closing)


@pytest.mark.parametrize("name", MODELS)
def test_only_layouts_whose_queries_leave_their_rank_exchange(name: str) -> None:
    """Red when tp or dp is charged for an exchange, or dop, dcp or cp is not."""
    seconds = {x: float(model(name).step(decodes(name, x)).exchange) for x in LAYOUTS}
    assert seconds["tp"] == seconds["dp"] == 0
    assert all(seconds[x] > 0 for x in ("dop", "dcp", "cp"))
    assert seconds["dcp"] > seconds["cp"], "the q gather"


@pytest.mark.parametrize("name", ["deepseek-v3", "llama-3.1-405b"])
def test_rows_of_several_layouts_exchange_together(name: str) -> None:
    """Red when queries to owners and queries to all ranks are charged as two collectives: a layer enters one."""
    groups = decodes(name, "dop").decodes + decodes(name, "dcp").decodes + decodes(name, "cp").decodes
    work = Work(groups, sampled=3 * sum(ROWS))
    found = float(model(name).step(work).exchange)
    assert found == pytest.approx(spec_of(name).num_layers * exchanged_s(name, 0, work))
    apart = sum(float(model(name).step(decodes(name, layout)).exchange) for layout in ("dop", "dcp", "cp"))
    assert found < apart


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_array_of_steps_costs_what_each_of_them_costs(name: str, layout: str) -> None:
    """Red when a jump of the simulator is not the single steps that it stands for."""
    single = [decodes(name, layout, length=length) for length in (1000, 1001, 1002)]
    together = Work(
        tuple(
            group._replace(
                context=np.array([work.decodes[i].context for work in single]),
                selected=np.array([work.decodes[i].selected for work in single]),
            )
            for i, group in enumerate(single[0].decodes)
        ),
        sampled=single[0].sampled,
    )
    found = np.broadcast_to(model(name).step(together).total, 3)
    assert found.tolist() == [model(name).step_s(work) for work in single], "to the last bit"


@pytest.mark.parametrize("layout", ["dp", "dop", "cp"])
def test_decodes_cost_the_same_before_and_after_chunks_beside_them(layout: str) -> None:
    """Red when chunks are added to what is remembered of the decodes, or the decodes of another step are remembered."""
    name = "deepseek-v3.2"
    at, costs = assigned(LAYOUTS[layout], 2), model(name)
    method = Method.LOCAL if layout == "dp" else Method.GATHER
    alone, other = decodes(name, layout), decodes(name, layout, length=4000)
    beside = Work(alone.decodes, (PromptRows(at, method, 8192, CHUNK),), alone.sampled)
    asked = [costs.step_s(work) for work in (alone, beside, beside, alone, other, beside, alone)]
    known = {
        id(work): CostModel(
            spec=spec_of(name), profile=P, ranks=RANKS, precision=precision_of(name), max_rows=MAX_ROWS
        ).step_s(work)
        for work in (alone, beside, other)
    }
    assert asked == [known[id(work)] for work in (alone, beside, beside, alone, other, beside, alone)]
    assert len(set(asked)) == 3


def test_recurrent_layers_read_no_cache_and_exchange_nothing() -> None:
    """Red when KDA layers are counted among those that attend: a hybrid's attention grows with its context, and its
    exchange weighs, by its attention layers alone."""
    hybrid = spec_of("glm-5.3-flash")
    attending = sum(hybrid.attends)
    assert 0 < attending < hybrid.num_layers
    dense = replace(hybrid, kda=None, attends=(), indexed=(), indexer=None)
    only_kda = replace(hybrid, indexed=(), indexer=None)

    def cost(spec: ModelSpec) -> CostModel:
        precision = Precision.of(spec, weight_storage("bfloat16"), kv_storage("bfloat16"))
        return CostModel(spec=spec, profile=P, ranks=RANKS, precision=precision, max_rows=MAX_ROWS)

    def grown(spec: ModelSpec) -> float:
        short, long = (
            Work((DecodeRows(assigned(LAYOUTS["dop"], 0), 8, tokens, tokens),), sampled=8)
            for tokens in (80_000, 800_000)
        )
        return float(np.max(cost(spec).step(long).attention - cost(spec).step(short).attention))

    share = attending / hybrid.num_layers
    assert grown(only_kda) == pytest.approx(share * grown(dense))
    work = Work((DecodeRows(assigned(LAYOUTS["dop"], 0), 8, 8000, 8000),), sampled=8)
    assert cost(only_kda).step(work).exchange == pytest.approx(share * cost(dense).step(work).exchange)


# ---- prompts

CHUNK = 512


def chunk_reads(layout: str, method: Method) -> tuple[bool, float, bool]:
    """Whether the busiest rank attends with all heads, its share of the pairs, and whether the queries came to it."""
    exchanged = method is Method.EXCHANGE
    match layout:
        case "tp":
            return False, 1.0, False
        case "dp":
            return True, 1.0, False
        case "dop":
            return exchanged, 1.0, exchanged
        case "dcp":
            return exchanged, 1 / RANKS if exchanged else 1.0, exchanged
    return True, 1 / RANKS, exchanged


@pytest.mark.parametrize(
    ("layout", "method"),
    [
        ("tp", Method.LOCAL),
        ("dp", Method.LOCAL),
        ("dop", Method.EXCHANGE),
        ("dop", Method.GATHER),
        ("dcp", Method.EXCHANGE),
        ("dcp", Method.GATHER),
        ("cp", Method.EXCHANGE),
        ("cp", Method.GATHER),
    ],
)
@pytest.mark.parametrize("unabsorbed", [True, False])
def test_a_chunk_beside_decodes_adds_its_own_attention(layout: str, method: Method, unabsorbed: bool) -> None:
    """Red when a chunk is attended by the wrong heads or ranks, or un-absorbed where its queries came to the cache."""
    name, start = "deepseek-v3", 4096
    spec, precision = spec_of(name), precision_of(name)
    att = spec.attention
    assert isinstance(att, MLASpec)
    costs = model(name, scattered=False, unabsorbed=unabsorbed)
    chunk = PromptRows(assigned(LAYOUTS[layout], 0), method, start, CHUNK)
    beside = decodes(name, "tp")
    mixed = costs.step(Work(beside.decodes, (chunk,), beside.sampled))
    whole, share, exchanged = chunk_reads(layout, method)
    heads = att.num_heads if whole else att.num_heads // RANKS
    pairs = share * (CHUNK * start + CHUNK * (CHUNK + 1) / 2)
    tiled = share * ops.prefill_pairs(P.attention.mla_prefill, CHUNK, start)
    tokens = start + CHUNK
    seconds = float(
        ops.mla_prefill_s(
            P, pairs, tokens, heads, att.latent_dim, att.kv_lora_rank, precision.kv_bytes, longest=tokens
        )
    )
    if unabsorbed and not exchanged:
        up = ops.gemm_s(P, tokens, heads * (att.nope_dim + att.v_dim), att.kv_lora_rank, precision.attention)
        qk = att.nope_dim + att.rope_dim
        direct = ops.mla_prefill_s(
            P, tiled, tokens, heads, qk, att.v_dim, 2 * heads * (qk + att.v_dim), longest=tokens
        )
        own = CHUNK // RANKS if layout == "cp" else CHUNK
        absorbing = head_parts_s(name, {"q": 0, "uk": own, "uv": own, "o": 0}, heads)
        seconds = min(seconds + absorbing, float(up + direct))
    alone = costs.step(Work(beside.decodes, (), beside.sampled))
    added = float(np.max(mixed.attention + mixed.projections)) - float(
        np.max(alone.attention + alone.projections)
    )
    projected = _projected_s(
        name, layout, method, beside.num_rows, exchanged=exchanged, unabsorbed=unabsorbed
    )
    assert added == pytest.approx(spec.num_layers * (seconds + projected), rel=1e-6)
    assert float(mixed.experts) == pytest.approx(
        sum(ffn_s(name, layer, beside.num_rows + CHUNK) for layer in range(spec.num_layers))
    )


def _projected_s(
    name: str, layout: str, method: Method, beside: int, *, exchanged: bool, unabsorbed: bool
) -> float:
    """What a layer's projections take longer through the chunk. Absorbing is charged to rows whose queries travel,
    and to all where there is no other form."""
    heads = spec_of(name).attention.num_heads
    parts = ("q", "uk", "uv", "o") if exchanged or not unabsorbed else ("q", "o")
    none = dict.fromkeys(("q", "uk", "uv", "o"), 0)
    before = dict.fromkeys(none, beside)
    shard, whole = dict(before), dict(none)
    for part in parts:
        if layout == "dp":
            whole[part] = CHUNK
        elif layout == "cp" and method is Method.GATHER:
            whole[part] = CHUNK // RANKS
        elif layout == "cp" and part in ("q", "uk"):
            whole[part] = CHUNK
        else:
            shard[part] += CHUNK
    longer = head_parts_s(name, shard, heads // RANKS) - head_parts_s(name, before, heads // RANKS)
    more = replicated_s(name, 0, beside + CHUNK) - replicated_s(name, 0, beside)
    return longer + head_parts_s(name, whole, heads) + more


def test_history_travels_where_a_chunk_gathers_it() -> None:
    """Red when a gather costs nothing, or does not grow with the history."""
    spec, precision = spec_of("deepseek-v3"), precision_of("deepseek-v3")

    def exchange(start: int) -> float:
        chunk = PromptRows(assigned(LAYOUTS["dop"], 0), Method.GATHER, start, CHUNK)
        return float(model("deepseek-v3").step(Work((), (chunk,), 0)).exchange)

    received = (1 - 1 / RANKS) * 4096 * precision.kv_bytes
    assert exchange(0) == 0
    assert exchange(4096) == pytest.approx(
        spec.num_layers * float(ops.collective_s(P, "all_gather", RANKS, received))
    )


def test_a_history_travels_to_the_heads_that_need_it() -> None:
    """Red when all KV heads are gathered where a rank attends with its own, or several histories as one collective."""
    spec, precision = spec_of("llama-3.1-405b"), precision_of("llama-3.1-405b")

    def exchange(layout: str, *starts: int) -> float:
        chunks = tuple(PromptRows(assigned(LAYOUTS[layout], 0), Method.GATHER, at, CHUNK) for at in starts)
        return float(model("llama-3.1-405b").step(Work((), chunks, 0)).exchange)

    def expected(op: str, start: int, share: float) -> float:
        received = share * (1 - 1 / RANKS) * start * precision.kv_bytes
        return spec.num_layers * float(ops.collective_s(P, op, RANKS, received))

    assert (
        exchange("dop", 4096)
        == exchange("dcp", 4096)
        == pytest.approx(expected("all_to_all", 4096, 1 / RANKS))
    )
    assert exchange("cp", 4096) == pytest.approx(expected("all_gather", 4096, 1))
    assert exchange("dop", 4096, 8192) == pytest.approx(exchange("dop", 4096) + exchange("dop", 8192))


def test_candidates_travel_where_a_chunk_gathers_and_index_keys_do_not() -> None:
    """Red when index keys are gathered with the latents, or an owner's choice is known to the others for nothing."""
    spec, precision, start = spec_of("deepseek-v3.2"), precision_of("deepseek-v3.2"), 65536
    assert spec.indexer is not None
    assert precision.index_bytes > 0

    def exchange(layout: str) -> float:
        chunk = PromptRows(assigned(LAYOUTS[layout], 0), Method.GATHER, start, CHUNK)
        return float(model("deepseek-v3.2").step(Work((), (chunk,), 0)).exchange)

    def expected(holders: int) -> float:
        history = ops.collective_s(P, "all_gather", RANKS, (1 - 1 / RANKS) * start * precision.kv_bytes)
        candidates = holders * CHUNK * spec.indexer.top_keys * 8  # type: ignore[union-attr]
        chosen = ops.collective_s(P, "all_gather", RANKS, candidates)
        return spec.num_layers * float(history) + sum(spec.indexed) * float(chosen)

    assert exchange("dop") == pytest.approx(expected(1))
    assert exchange("dcp") == exchange("cp") == pytest.approx(expected(RANKS - 1))


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3.2", "llama-3.1-405b"])
def test_chunks_of_many_owners_are_attended_as_those_of_few_are(name: str) -> None:
    """Red when what is priced as one array over owners differs, in any bit, from owners one by one."""
    attention = AttentionCost(spec_of(name), P, RANKS, precision_of(name), MAX_ROWS)
    price = partial(attention.prompt_s, whole=True, absorbed=False)

    def priced(chunks: Sequence[tuple[int | None, int, int]]) -> Any:
        placed = PlacedReads(attention.prefill, RANKS)
        for rank, start, count in chunks:
            placed.on(rank).add(start, count, attention.keeps, share=1.0, projected=count)
        return placed.priced(price)

    chunks = [(rank, 1000 * rank, 100 + rank) for rank in range(RANKS)]
    assert len(chunks) > MANY
    assert priced(chunks).tolist() == [priced([(None, start, count)]) for _, start, count in chunks]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_scored_or_proposed_while_rows_see_all_that_they_may_choose(layout: str) -> None:
    """Red when indexers are charged within top-k, where no score is computed, or not beyond."""
    sparse = spec_of("deepseek-v3.2")
    dense_scores = replace(sparse, indexed=(False,) * sparse.num_layers)

    def seconds(spec: ModelSpec, length: int) -> float:
        costs = CostModel(
            spec=spec, profile=P, ranks=RANKS, precision=precision_of("deepseek-v3.2"), max_rows=MAX_ROWS
        )
        found = costs.step(decodes("deepseek-v3.2", layout, length=length))
        return float(np.max(found.attention + found.exchange))

    assert seconds(sparse, 1000) == pytest.approx(seconds(dense_scores, 1000))
    assert seconds(sparse, 3000) > 1.001 * seconds(dense_scores, 3000)


# ---- several steps at once, and changes


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["deepseek-v3.2", "llama-3.1-405b", "glm-5.3-flash"])
def test_steps_with_the_same_decodes_cost_what_each_of_them_costs(name: str, layout: str) -> None:
    """Red when one step's chunks are counted in the next."""
    work, home = decodes(name, layout), 3 if LAYOUTS[layout].placement is not Placement.BY_HEAD else 0
    method = Method.LOCAL if layout in ("tp", "dp") else Method.EXCHANGE
    chunk = PromptRows(assigned(LAYOUTS[layout], home), method, 500, 300)
    steps = [(), (chunk,), (chunk._replace(start=4000), chunk), ()]
    works = [work._replace(prompts=chunks) for chunks in steps]
    each = [model(name).step_s(one) for one in works]
    assert model(name).steps_s(works) == each
    assert each[0] < each[1] < each[2]
