"""What depends on the number of rows alone."""

from dataclasses import replace

import numpy as np
import pytest

from splash.hw import ops
from splash.hw.load import load_profile
from splash.hw.precision import Precision
from splash.hw.rows import busiest_rank, row_tables
from splash.spec.known import known_model
from splash.spec.model import MLASpec, MoESpec
from splash.spec.storage import kv_storage, weight_storage

RANKS, ROWS = 8, 64


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float32", 4)])
def test_hidden_states_travel_in_the_compute_type(dtype: str, size: int) -> None:
    """Red when the collectives that close a layer take a type's size for granted: a CPU rank computes in float32."""
    spec, profile = known_model("glm-4.7-flash"), load_profile("h200")
    precision = Precision(dtype, dtype, dtype, dtype, size, kv_bytes=576.0 * size, index_bytes=0.0)
    tables = row_tables(spec, profile, RANKS, precision, ROWS)
    received = (1 - 1 / RANKS) * ROWS * spec.hidden_size * size

    def seconds(op: str, num_bytes: float) -> float:
        return spec.num_layers * float(ops.collective_s(profile, op, RANKS, num_bytes))

    assert tables.closing[ROWS] == pytest.approx(2 * seconds("all_reduce", 2 * received))
    assert tables.scattered_closing[ROWS] == pytest.approx(
        seconds("all_gather", received) + seconds("reduce_scatter", received)
    )
    assert np.all(np.diff(tables.closing[np.arange(ROWS + 1)]) > 0)


def test_recurrent_layers_project_what_their_heads_need() -> None:
    """Red when a product of a KDA layer is left out, or one that the layer computes as a whole is taken apart."""
    spec, profile = known_model("glm-5.3-flash"), load_profile("h200")
    precision = Precision.of(spec, weight_storage("bfloat16"), kv_storage("bfloat16"))
    kda, layers = spec.kda, spec.num_layers - sum(spec.attends)
    assert kda is not None

    def products(num_heads: int) -> float:
        heads, dim = num_heads // RANKS, kda.head_dim
        into = (3 * heads * dim + heads + 2 * dim, spec.hidden_size)
        wide, out = (heads * dim, dim), (spec.hidden_size, heads * dim)
        return sum(float(ops.gemm_s(profile, ROWS, n, k, "bfloat16")) for n, k in (into, wide, wide, out))

    def replicated(num_heads: int) -> float:
        wider = replace(spec, kda=replace(kda, num_heads=num_heads))
        return float(row_tables(wider, profile, RANKS, precision, ROWS).replicated[ROWS])

    added = replicated(4 * kda.num_heads) - replicated(kda.num_heads)
    assert added == pytest.approx(layers * (products(4 * kda.num_heads) - products(kda.num_heads)))


def test_divided_latents_cost_their_part_and_the_gathering() -> None:
    """Red when all of the product is charged where a rank computes a part, or the parts come for nothing."""
    spec, profile = known_model("deepseek-v3"), load_profile("cpu")
    precision = Precision.of(spec, weight_storage("float32"), kv_storage("float32"))
    att, hidden = spec.attention, spec.hidden_size
    assert isinstance(att, MLASpec)
    whole, part = (
        row_tables(spec, profile, 2, precision, ROWS, divided=divided).replicated[ROWS]
        for divided in (False, True)
    )
    saved = ops.gemm_s(profile, ROWS, att.down_dim, hidden, "float32")
    saved -= ops.gemm_s(profile, ROWS, att.down_dim // 2, hidden, "float32")
    gathering = ops.collective_s(profile, "all_gather", 2, ROWS * att.down_dim * 4 / 2)
    assert whole - part == pytest.approx(spec.num_layers * (saved - gathering))


@pytest.mark.parametrize(("ranks", "rows"), [(2, 1), (2, 4), (2, 16), (4, 3), (8, 32)])
def test_the_busiest_rank_is_as_busy_as_rows_that_choose_at_random_make_it(ranks: int, rows: int) -> None:
    """Red when the spread over ranks is wrong, or counts more than there is: against many steps drawn by lot."""
    moe, draws = MoESpec(16, 4, 256, 0, "sigmoid", norm_topk=True, scaling=1.0), np.random.default_rng(7)
    most_pairs, most_hits = [], []
    for _ in range(2000):
        chosen = draws.permuted(np.tile(np.arange(16), (rows, 1)), axis=1)[:, :4]
        most_pairs.append(np.bincount(chosen.ravel() * ranks // 16, minlength=ranks).max())
        most_hits.append(np.bincount(np.unique(chosen) * ranks // 16, minlength=ranks).max())
    pairs, hits = busiest_rank(moe, ranks, np.array([rows]))
    assert pairs[0] == pytest.approx(np.mean(most_pairs), rel=0.1)
    assert hits[0] == pytest.approx(np.mean(most_hits), rel=0.1)


def test_balanced_experts_cost_what_the_mean_rank_does() -> None:
    """Red when simulated ranks wait for the busiest although their experts are balanced, or real ones do not."""
    spec, profile = known_model("glm-4.7-flash"), load_profile("h200")
    precision = Precision.of(spec, weight_storage("bfloat16"), kv_storage("bfloat16"))
    even, uneven = (
        row_tables(spec, profile, RANKS, precision, ROWS, balanced=balanced).ffn[np.arange(ROWS + 1)]
        for balanced in (True, False)
    )
    assert np.all(uneven[1:] > even[1:])
    assert uneven[0] == even[0] == 0.0
