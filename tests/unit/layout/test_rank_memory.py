"""KV capacity of the three deployments of REFERENCE §4, and what it is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from splash.core.errors import ConfigError
from splash.layout.capacity import RankMemory, rank_memory
from splash.layout.holders import Topology
from splash.layout.layouts import CP, DCP, DOP, DP, LAYOUTS, TP, Layout
from splash.spec.config import normalise
from splash.spec.model import ModelSpec
from splash.spec.storage import WeightBytes, WeightStorage, kv_storage, rank_weight_bytes, weight_storage
from splash.spec.tensors import Part
from tests.unit import config_shapes as shapes

GIB = 2**30
RANKS = 8
TOPO = Topology(RANKS, 1)
VISION = round(2 * 0.56e9)
"""GLM-5.3-Flash's vision tower in BF16, which the table counts on every rank (MODELS §3.4)."""


@dataclass(frozen=True)
class Row:
    """A row of the table: GiB of weights as tp and dp hold them, million tokens of tp, dp and dop."""

    shape: dict[str, Any]
    weights: str
    device_gib: float
    fraction: float
    kv: str
    own: str
    full: str
    tokens: tuple[str, str, str]
    ratio: str
    request_tokens: int | None = None
    reserve: int = 0

    @property
    def spec(self) -> ModelSpec:
        return normalise(self.shape)

    def memory(self) -> RankMemory:
        return rank_memory(
            self.spec,
            ranks=RANKS,
            device_bytes=int(self.device_gib * GIB),
            memory_fraction=self.fraction,
            weights=weight_storage(self.weights),
            kv=kv_storage(self.kv),
            request_tokens=self.request_tokens,
            reserve=self.reserve,
        )


ROWS = {
    "V3.2": Row(
        shapes.DEEPSEEK_V3_2,
        "fp8_block",
        140.4,
        0.90,
        "fp8",
        "80.1",
        "88.6",
        ("1.03", "6.75", "8.27"),
        "1.226",
    ),
    "GLM-5.3": Row(
        shapes.GLM_5_3, "fp8_block", 179.06, 0.85, "fp8", "88.2", "97.6", ("1.27", "8.69", "10.2"), "1.173"
    ),
    "Flash": Row(
        shapes.GLM_5_3_FLASH,
        "int8",
        63.98,
        0.85,
        "bfloat16",
        "37.9",
        "38.9",
        ("1.45", "8.25", "8.77"),
        "1.063",
        request_tokens=32_768,
        reserve=VISION,
    ),
}


def _table_weights(spec: ModelSpec) -> WeightBytes:
    """The table's arithmetic: a byte for each parameter of a matrix, two in vocabulary and router; no scales, no
    norms and no hyper-connections."""
    counts = rank_weight_bytes(spec, WeightStorage("counts", 1, 1), ranks=RANKS)
    parts = {
        part: count * (2 if part in (Part.VOCABULARY, Part.ROUTER) else 1)
        for part, count in counts.parts.items()
        if part not in (Part.NORMS, Part.HYPER)
    }
    return WeightBytes(RANKS, parts, 0, counts.shard)


def _agrees(value: float, printed: str) -> bool:
    """To the last digit printed; its rounding has a little room, for device sizes are printed rounded too."""
    digits = len(printed.partition(".")[2])
    return abs(value - float(printed)) <= 0.6 * 10**-digits


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_table_is_reproduced_to_its_digits(row: Row) -> None:
    """Red when a term of the sum, the pages or the share of a state changes: the weights here are the table's."""
    memory = replace(row.memory(), weights=_table_weights(row.spec))
    assert _agrees((memory.weights.own + memory.reserve) / GIB, row.own)
    assert _agrees((memory.weights.full + memory.reserve) / GIB, row.full)
    tokens = [memory.tokens(layout, TOPO) for layout in (TP, DP, DOP)]
    for n, printed in zip(tokens, row.tokens, strict=True):
        assert _agrees(n / 1e6, printed), (n, printed)
    assert _agrees(tokens[2] / tokens[1], row.ratio)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_weights_as_stored_change_the_table_by_less_than_a_percent(row: Row) -> None:
    """Red when what the table leaves out (scales, norms, hyper-connections, what stays wide) grows, or is lost."""
    memory, table = row.memory(), replace(row.memory(), weights=_table_weights(row.spec))
    for layout in (TP, DP, DOP):
        assert 0.99 < memory.tokens(layout, TOPO) / table.tokens(layout, TOPO) < 1
    assert memory.weights.own == pytest.approx(table.weights.own, rel=4e-3)


def test_terms_add_up() -> None:
    """Red when a layout is charged with shards that it does not need, or not with those it does."""
    memory = ROWS["GLM-5.3"].memory()
    for layout in LAYOUTS.values():
        replicas = 7 * memory.weights.shard if layout in (DP, CP) else 0
        assert memory.free(layout) == memory.usable - memory.weights.own - replicas
        used = memory.pages(layout, TOPO) * memory.page_bytes
        assert 0 <= memory.free(layout) - used < memory.page_bytes
        assert memory.tokens(layout, TOPO) % memory.block_size == 0
    assert memory.tokens(DCP, TOPO) == memory.tokens(DOP, TOPO) == 8 * memory.tokens(TP, TOPO)


def test_index_keys_only_where_an_indexer_is() -> None:
    """Red when layers that share a selection cache keys for it: the others give 14 % more tokens in every layout."""
    memory = ROWS["GLM-5.3"].memory()
    everywhere = replace(ROWS["GLM-5.3"].spec, indexed=(True,) * 78)
    more = rank_memory(
        everywhere,
        ranks=RANKS,
        device_bytes=memory.device,
        memory_fraction=memory.fraction,
        weights=weight_storage("fp8_block"),
        kv=kv_storage("fp8"),
    )
    for layout in LAYOUTS.values():
        same_weights = replace(more, weights=memory.weights)
        assert memory.tokens(layout, TOPO) / same_weights.tokens(layout, TOPO) == pytest.approx(
            1.14, abs=5e-3
        )


def test_sharding_kda_saves_what_the_reference_says() -> None:
    """Red when KDA weights are held whole: 3.78 GiB a card at eight ranks, and float32 convolutions beside that."""
    one, eight = (
        rank_weight_bytes(ROWS["Flash"].spec, weight_storage("int8"), ranks=ranks) for ranks in (1, RANKS)
    )
    convolutions = 34 * 3 * 8192 * 4 * 4 * 7 / 8
    saved = one.parts[Part.KDA] - eight.parts[Part.KDA] - convolutions
    assert saved / GIB == pytest.approx(3.78, abs=0.01)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=str)
def test_states_and_pages_of_whole_requests_fit(layout: Layout) -> None:
    """Red when states are not charged, or charged T times: so many requests of that length just fit on each rank."""
    row = ROWS["Flash"]
    memory, length = row.memory(), 32_768
    requests = memory.tokens(layout, TOPO) // length
    blocks = requests * length // memory.block_size
    pages = blocks if layout is TP else blocks / RANKS
    used = pages * memory.page_bytes + requests * memory.state_bytes
    assert 0 <= memory.free(layout) - used < memory.free(layout) / requests + memory.state_bytes


def test_longer_requests_leave_more_room() -> None:
    """Red when the share of a state does not fall with a request's length."""
    row = ROWS["Flash"]
    tokens = [
        replace(row.memory(), request_tokens=length).tokens(DOP, TOPO) for length in (4_096, 32_768, 262_144)
    ]
    assert tokens == sorted(tokens)
    assert tokens[0] < 0.5 * tokens[1]


def test_weights_that_do_not_fit_leave_no_page() -> None:
    """Red when a negative room becomes pages."""
    memory = replace(ROWS["V3.2"].memory(), device=64 * GIB)
    assert memory.free(TP) < 0
    assert memory.tokens(TP, TOPO) == 0


def test_bad_input_is_named() -> None:
    """Red when a fraction of 85 is taken for 0.85, or a state is left out because nobody said how long requests are."""
    row = ROWS["Flash"]
    with pytest.raises(ConfigError, match="memory fraction 85 must be"):
        replace(row, fraction=85).memory()
    with pytest.raises(ConfigError, match="--request-tokens"):
        replace(row, request_tokens=None).memory()
