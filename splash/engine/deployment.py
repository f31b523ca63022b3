"""A model on a number of ranks of a port: everything that is decided before the ranks start.

Opening reads configs and headers only, so bad input is refused at once and nothing has to be ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from splash.core.config import EngineConfig
from splash.core.env import debug
from splash.core.errors import ConfigError, RequestError
from splash.core.events import EventSink, RunStarted
from splash.core.params import SamplingParams
from splash.engine.detok import Detokenizer
from splash.engine.pricing import open_policy, port_profile
from splash.engine.room import check_fits
from splash.engine.text import Text, open_text
from splash.hal.protocol import Backend
from splash.kv.slots import MemoryPlan, plan_memory
from splash.layout.holders import Topology
from splash.layout.layouts import TP, layout_named
from splash.model.checkpoint import Checkpoint, open_checkpoint
from splash.sched.batch import RowBytes
from splash.sched.policy import Policy
from splash.sched.scheduler import Scheduler
from splash.sched.step import Clock, Executor, ManualClock
from splash.spec.model import ITEMSIZE
from splash.spec.storage import KV_TYPES
from splash.spec.tensors import rank_bytes

AUTO = "auto"
DEFAULT_FULL_REQUESTS = 4
"""The default pool holds that many requests of full length under `tp`, beside all weight slots."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Made by `open_deployment`; everything about a run but its requests."""

    checkpoint: Checkpoint
    config: EngineConfig
    """Complete: dtype and pool are set, copy bandwidth if there is a profile, and limits are what the model can do."""
    backend: Backend
    hardware: str
    text: Text | None
    """None: the checkpoint has no tokenizer, prompts are token ids."""
    memory: MemoryPlan
    topo: Topology

    @property
    def model(self) -> str:
        """The folder's name, for people: without the underscore that hides a folder of a package."""
        name = self.checkpoint.folder.resolve().name
        return name.lstrip("_") or name

    @property
    def vocab_size(self) -> int:
        return self.checkpoint.spec.vocab_size

    @property
    def max_model_len(self) -> int:
        """Prompt and output tokens of a request together, at most."""
        return self.config.scheduler.max_model_len

    def fixed(self, layout: str) -> Deployment:
        """The same in one layout from the start, without a policy."""
        return replace(self, config=replace(self.config, layout=layout))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of the checkpoint: what is not used, and what its weights become; a line each."""
        quantisation = self.checkpoint.quantisation
        if quantisation is None or not self.checkpoint.scales:
            return self.checkpoint.notes
        if quantisation.element in self.backend.caps.kept_quantised:
            return self.checkpoint.notes
        dtype = self.config.dtype
        assert dtype is not None
        spec, ranks = self.checkpoint.spec, self.config.ranks
        held = rank_bytes(spec, rank=ranks - 1, ranks=ranks, itemsize=ITEMSIZE[dtype])
        return (
            *self.checkpoint.notes,
            f"{quantisation.name}, dequantised to {dtype} when loaded: {held / 1e6:,.1f} MB of weights on each of"
            f" {ranks} ranks, {self.checkpoint.num_bytes / 1e6:,.1f} MB in files",
        )

    # ---- requests

    def token_ids(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        """The prompt's token ids; RequestError if it is text and there is no tokenizer."""
        if not isinstance(prompt, str):
            return tuple(prompt)
        if self.text is None:
            raise RequestError(f"{self.checkpoint.folder} has no tokenizer.json: give prompts as token ids")
        return self.text.encode(prompt)

    def check_ids(self, prompt: Sequence[int], params: SamplingParams) -> None:
        """RequestError if a token id is not one."""
        for name, ids in (("prompt", prompt), ("stop_token_ids", params.stop_token_ids)):
            odd = next((i for i in ids if not 0 <= i < self.vocab_size), None)
            if odd is not None:
                raise RequestError(f"{name}: token id {odd} is outside the vocabulary of {self.vocab_size}")

    def checker(self) -> Callable[[Sequence[int], SamplingParams], None]:
        """Raises RequestError for a request that could not be served in the layout of the start."""
        scheduler = self.scheduler(clock=ManualClock(), emit=lambda event: None)

        def check(prompt: Sequence[int], params: SamplingParams) -> None:
            self.check_ids(prompt, params)
            scheduler.check_request(len(prompt), params.max_tokens)

        return check

    def detokenizer(self) -> Detokenizer | None:
        return None if self.text is None else self.text.detokenizer()

    # ---- parts of an engine

    def scheduler(self, *, clock: Clock, emit: EventSink) -> Scheduler:
        spec = self.checkpoint.spec
        return Scheduler(
            memory=self.memory,
            topo=self.topo,
            config=self.config.scheduler,
            rows=RowBytes.of(spec),
            target=self._first_target(),
            policy=self._policy(),
            clock=clock,
            emit=emit,
            eos=spec.eos_token_ids,
            seed=self.config.seed,
        )

    def launch(self, *, gaps: bool = False, loaded: Callable[[int], None] = lambda layers: None) -> Executor:
        """Starts the ranks and waits until they have loaded the model. `gaps`: results carry logit gaps.

        `loaded` is told how many layers all ranks have loaded, each time there is one more.
        """
        from splash.exec.executor import start

        return start(
            backend=self.backend,
            folder=self.checkpoint.folder,
            spec=self.checkpoint.spec,
            memory=self.memory,
            config=self.config,
            gaps=gaps,
            loaded=loaded,
        )

    def run_started(self, t: float) -> RunStarted:
        geometry = self.memory.geometry
        policy = self._policy()
        return RunStarted(
            t=t,
            model=self.model,
            hardware=self.hardware,
            note="",
            ranks=self.config.ranks,
            target=self._first_target(),
            policy=policy.name if policy is not None else "fixed",
            block_size=self.memory.pages.block_size,
            page_bytes=geometry.page_bytes,
            num_pages=geometry.num_pages,
            slot_pages=geometry.slot_pages,
        )

    def _policy(self) -> Policy | None:
        """A new one: policies remember."""
        if self.config.layout != AUTO:
            return None
        return open_policy(self.checkpoint.spec, self.config, self.memory, self.topo)

    def _first_target(self) -> str:
        return TP.name if self.config.layout == AUTO else self.config.layout


def open_deployment(folder: str | Path, config: EngineConfig, backend: Backend | None = None) -> Deployment:
    """Checks model, ranks, type, layout and memory against each other; named errors, and nothing is started.

    `backend` replaces the port that `config.backend` names (tests).
    """
    if config.layout != AUTO:
        layout_named(config.layout)
    checkpoint = open_checkpoint(folder)
    spec = checkpoint.spec
    spec.check_ranks(config.ranks)
    backend = backend or _backend(config.backend)
    config = _completed(config, backend, spec.max_position)
    devices = backend.probe()
    assert config.dtype is not None
    memory = plan_memory(
        spec,
        ranks=config.ranks,
        dtype=config.dtype,
        block_size=backend.caps.block_size,
        kv_dtype=config.kv_dtype,
        kv_pages=_kv_pages(config, backend.caps.block_size),
        pool_bytes=None if config.pool_mib is None else config.pool_mib << 20,
        num_states=DEFAULT_FULL_REQUESTS if config.kv_pages is None else 0,
    )
    check_fits(spec, memory, config, backend.caps, devices)
    topo = Topology(config.ranks, spec.kv_groups(config.ranks))
    return Deployment(checkpoint, config, backend, devices[0].name, open_text(folder), memory, topo)


def _backend(name: str) -> Backend:
    """The port of that name; an error lists those there are."""
    from splash.hal.registry import load_backend

    try:
        return load_backend(name)
    except ConfigError as error:
        raise ConfigError(f"{error} (--hw)") from None


def _completed(config: EngineConfig, backend: Backend, max_position: int) -> EngineConfig:
    """The port's type and copy bandwidth, limits that fit the model and each other, and checks in debug mode."""
    caps = backend.caps
    dtype = config.dtype or caps.dtypes[0]
    if dtype not in caps.dtypes:
        raise ConfigError(
            f"the {backend.name} port computes in {', '.join(caps.dtypes)}, not in {dtype} (--dtype)"
        )
    if config.ranks > caps.max_ranks:
        raise ConfigError(
            f"the {backend.name} port runs at most {caps.max_ranks} ranks, not {config.ranks} (--ranks)"
        )
    scheduler = replace(
        config.scheduler,
        max_model_len=min(config.scheduler.max_model_len, max_position),
        max_chunk=min(config.scheduler.max_chunk, config.scheduler.token_budget),
        copy_bandwidth=config.scheduler.copy_bandwidth or _copy_bandwidth(backend.name),
        check_invariants=config.scheduler.check_invariants or debug(),
    )
    kv_dtype = config.kv_dtype or dtype
    if kv_dtype not in KV_TYPES:
        raise ConfigError(f"KV is stored in {', '.join(KV_TYPES)}, not in {kv_dtype} (--kv-dtype)")
    return replace(config, dtype=dtype, kv_dtype=kv_dtype, scheduler=scheduler)


def _copy_bandwidth(port: str) -> float | None:
    """As the hardware profile of the port's name has it; None without one."""
    profile = port_profile(port)
    return None if profile is None else profile.memory.copy_bandwidth.value


def _kv_pages(config: EngineConfig, block_size: int) -> int | None:
    if config.pool_mib is not None or config.kv_pages is not None:
        return config.kv_pages
    blocks = -(-config.scheduler.max_model_len // block_size)
    return DEFAULT_FULL_REQUESTS * blocks + config.scheduler.watermark_pages
