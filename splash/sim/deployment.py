"""A model on simulated hardware: memory as a rank divides it, the cost of its steps, and the scheduler over both."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from splash.core.config import SchedulerConfig
from splash.core.errors import CapacityError
from splash.core.events import EventSink, RunStarted
from splash.hw.cost import CostModel
from splash.hw.precision import Precision
from splash.hw.profile import HardwareProfile
from splash.kv.geometry import PoolGeometry
from splash.kv.sections import Field, PageFormat, Section
from splash.kv.slots import MemoryPlan, ShardFormat
from splash.kv.state import StateSection, row_alignment, state_format, state_sections
from splash.layout.capacity import RankMemory, rank_memory
from splash.layout.holders import Topology
from splash.sched.batch import RowBytes
from splash.sched.limits import Limits, limits_of
from splash.sched.policy import Policy
from splash.sched.scheduler import Scheduler
from splash.sched.step import Clock
from splash.sim.fitting import MOST_RANKS, Remedies, possible_ranks, remedies, shortage
from splash.sim.settings import COPY_SHARE, Settings
from splash.spec.model import ModelSpec
from splash.spec.storage import kv_storage, token_bytes, weight_storage

BLOCK_SIZE = 64
"""Tokens of a page on GPUs (DESIGN §3)."""


@dataclass(frozen=True, slots=True)
class SimDeployment:
    """Everything about a run but its requests. Made by `deploy`."""

    model: str
    profile: HardwareProfile
    spec: ModelSpec
    settings: Settings
    rank: RankMemory
    memory: MemoryPlan
    topo: Topology
    cost: CostModel
    config: SchedulerConfig

    def scheduler(
        self,
        clock: Clock,
        emit: EventSink,
        *,
        target: str,
        policy: Policy | None,
        config: SchedulerConfig | None = None,
    ) -> Scheduler:
        return Scheduler(
            memory=self.memory,
            topo=self.topo,
            config=config or self.config,
            rows=RowBytes.of(self.spec),
            target=target,
            policy=policy,
            clock=clock,
            emit=emit,
        )

    @property
    def hardware(self) -> str:
        return f"{self.topo.ranks} × {self.profile.name} ({self.profile.device})"

    def to_json(self) -> dict[str, Any]:
        """What was simulated."""
        return {
            "model": self.model,
            "hardware": self.profile.name,
            "device": self.profile.device,
            **asdict(self.settings),
        }

    def limits(self) -> Limits:
        """What the policy has to know of it."""
        return limits_of(self.memory, self.topo, self.config, RowBytes.of(self.spec))

    def started(self, target: str, policy: str, note: str = "simulated") -> RunStarted:
        geometry = self.memory.geometry
        return RunStarted(
            t=0.0,
            model=self.model,
            hardware=self.hardware,
            note=note,
            ranks=self.topo.ranks,
            target=target,
            policy=policy,
            block_size=self.memory.pages.block_size,
            page_bytes=geometry.page_bytes,
            num_pages=geometry.num_pages,
            slot_pages=geometry.slot_pages,
        )


def deploy(model: str, spec: ModelSpec, profile: HardwareProfile, settings: Settings) -> SimDeployment:
    """The model on `settings.ranks` of the profile's devices; CapacityError, with numbers and what would do, if it
    does not fit."""
    spec.check_ranks(settings.ranks)
    rank = memory_of(spec, profile, settings)
    topo = Topology(settings.ranks, spec.kv_groups(settings.ranks))
    memory = _memory_plan(model, spec, profile, settings)
    cost = CostModel(
        spec=spec,
        profile=profile,
        ranks=settings.ranks,
        precision=precision_of(spec, settings),
        max_rows=settings.token_budget + settings.max_running,
    )
    config = SchedulerConfig(
        max_running=settings.max_running,
        token_budget=settings.token_budget,
        max_chunk=settings.token_budget,
        max_model_len=spec.max_position,
        copy_share=COPY_SHARE,
        copy_bytes_per_step=256 << 20,
        copy_bandwidth=cost.copy_bandwidth,
        sample_period_s=2.0,
    )
    return SimDeployment(model, profile, spec, settings, rank, memory, topo, cost, config)


def memory_of(spec: ModelSpec, profile: HardwareProfile, settings: Settings) -> RankMemory:
    """One rank's memory, term by term."""
    return rank_memory(
        spec,
        ranks=settings.ranks,
        device_bytes=profile.memory.rank_bytes(settings.ranks),
        memory_fraction=settings.memory_fraction,
        weights=weight_storage(settings.weights),
        kv=kv_storage(settings.kv),
        block_size=BLOCK_SIZE,
        request_tokens=settings.request_tokens,
        reserve=settings.reserve,
    )


def lacking_bytes(spec: ModelSpec, settings: Settings, rank: RankMemory) -> int:
    """By which a pool with a slot for every shard, a null page and a page of KV is too large; 0 or less: it fits.

    `rank` is the memory that the settings come to, perhaps with another device."""
    page_bytes = _page_bytes(spec, settings, rank)
    slots = rank.weights.ranks * -(-rank.weights.shard // page_bytes)
    return (slots + 2) * page_bytes - _pool_bytes(rank)


def what_fits(spec: ModelSpec, profile: HardwareProfile, settings: Settings) -> Remedies:
    """The single changes of the settings with which the model fits."""
    return remedies(
        settings,
        lambda changed: memory_of(spec, profile, changed),
        lambda changed, memory: lacking_bytes(spec, changed, memory),
        ranks=possible_ranks(spec, profile, MOST_RANKS),
    )


def precision_of(spec: ModelSpec, settings: Settings) -> Precision:
    """The number formats of a deployment."""
    return Precision.of(spec, weight_storage(settings.weights), kv_storage(settings.kv))


def _memory_plan(model: str, spec: ModelSpec, profile: HardwareProfile, settings: Settings) -> MemoryPlan:
    """The pool holds what the other weights leave: slots for every head shard, then pages."""
    rank = memory_of(spec, profile, settings)
    lacking = lacking_bytes(spec, settings, rank)
    if lacking > 0:
        raise CapacityError(shortage(model, rank, lacking, what_fits(spec, profile, settings)))
    kept = _state_sections(spec, settings)
    page_bytes = _page_bytes(spec, settings, rank)
    num_pages = _pool_bytes(rank) // page_bytes
    geometry = PoolGeometry(num_pages, page_bytes, settings.ranks, rank.weights.shard)
    one_token = Field(
        "token", round(token_bytes(spec, kv_storage(settings.kv), ranks=settings.ranks)), 1, "bytes"
    )
    pages = PageFormat(BLOCK_SIZE, (Section(0, one_token, 0),), page_bytes, spec.num_layers)
    return MemoryPlan(pages, ShardFormat((), rank.weights.shard), geometry, state_format(kept, page_bytes))


def _pool_bytes(rank: RankMemory) -> int:
    return rank.usable - rank.reserve - (rank.weights.own - rank.weights.shard)


def _state_sections(spec: ModelSpec, settings: Settings) -> tuple[StateSection, ...]:
    plain = "float32" if weight_storage(settings.weights).plain == 4 else "bfloat16"
    return state_sections(spec, settings.ranks, plain)


def _page_bytes(spec: ModelSpec, settings: Settings, rank: RankMemory) -> int:
    return _aligned(rank.page_bytes, row_alignment(_state_sections(spec, settings)))


def _aligned(num_bytes: int, to: int) -> int:
    return -(-num_bytes // to) * to
