"""Configuration, one frozen dataclass a section; command-line defaults come from here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from splash.core.errors import ConfigError

ReplicaPolicy = Literal["keep", "drop"]
PolicyKind = Literal["cost", "thresholds"]
Objective = Literal["throughput", "latency", "goodput"]

DEMO = Path(__file__).parents[1] / "_demo"
"""The checkpoint that is served when none is named."""

COPY_BANDWIDTH = 4.0e9
"""Bytes per second, assumed where there is no hardware profile: what a core of 2020 and later copies in pages."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How steps are filled and how fast a switch may copy."""

    max_running: int = 256
    """Requests that may run at once."""
    token_budget: int = 512
    """Rows of a step, decodes included; the rest goes to prompt chunks."""
    max_chunk: int = 512
    """Rows of one prompt chunk at most."""
    max_model_len: int = 4096
    """Prompt and output tokens of a request together."""
    watermark_pages: int = 2
    """KV pages per rank that admissions and reservations leave for running requests to grow."""
    copy_share: float = 0.03
    """Share of a step's time that background copies may take."""
    copy_bytes_per_step: int = 4 << 20
    """Copy budget per source and per destination until a step time is known; at least one page moves."""
    copy_bandwidth: float | None = None
    """Bytes per second of one background copy stream, until ranks tell how long their copies take; None: the hardware
    profile's, else COPY_BANDWIDTH."""
    replicas: ReplicaPolicy = "drop"
    """keep: shards once fetched stay resident; drop: they become KV pages when no request needs them."""
    rebalance: bool = True
    """Move requests between owners when their shares drift apart."""
    transition_slack_steps: int = 64
    """A transition past twice its predicted steps and this many is cancelled."""
    sample_period_s: float = 0.1
    """Events that tell the use of the pools are at least this far apart."""
    check_invariants: bool = False
    """Verify page conservation after every step (debug)."""

    @property
    def copy_bytes_per_s(self) -> float:
        return COPY_BANDWIDTH if self.copy_bandwidth is None else self.copy_bandwidth

    def __post_init__(self) -> None:
        for name in ("max_running", "token_budget", "max_chunk", "max_model_len", "copy_bytes_per_step"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("watermark_pages", "transition_slack_steps"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        if not 0 < self.copy_bytes_per_s < math.inf:
            raise ConfigError(f"copy_bandwidth is {self.copy_bandwidth}; it must be a positive number")
        if not 0 < self.copy_share <= 1:
            raise ConfigError(f"copy_share is {self.copy_share}; it must be in (0, 1] (--copy-share)")
        if self.replicas not in ("keep", "drop"):
            raise ConfigError(f"replicas is '{self.replicas}'; use keep or drop")


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """How `--layout auto` decides."""

    kind: PolicyKind = "thresholds"
    """cost: by predicted times, on the hardware profile of the port's name."""
    objective: Objective = "throughput"
    """What is best; thresholds know throughput only."""
    ttft_s: float | None = None
    """Seconds within which a good request has its first token; None: any."""
    tpot_s: float | None = None
    """Seconds a token of a good request."""

    def __post_init__(self) -> None:
        if self.kind not in ("cost", "thresholds"):
            raise ConfigError(f"the policy is '{self.kind}'; use cost or thresholds (--policy)")
        if self.kind == "thresholds" and self.objective != "throughput":
            raise ConfigError(f"--objective {self.objective} needs --policy cost: thresholds do not predict")
        if self.objective == "goodput" and self.ttft_s is None and self.tpot_s is None:
            raise ConfigError("--objective goodput needs --ttft or --tpot")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine: a model on a number of ranks of one port."""

    ranks: int = 2
    backend: str = "cpu"
    dtype: str | None = None
    """Compute dtype: float32 or bfloat16; None is the port's default."""
    kv_dtype: str | None = None
    """KV dtype: float32, bfloat16 or fp8; None is the compute dtype."""
    layout: str = "auto"
    """The target at start: a layout's name, or auto."""
    kv_pages: int | None = None
    """KV pages per rank beside the weight slots; None: what `pool_mib` or the default gives."""
    pool_mib: int | None = None
    """Size of each rank's pool (weight slots included), MiB."""
    seed: int = 0
    scheduler: SchedulerConfig = SchedulerConfig()
    policy: PolicyConfig = PolicyConfig()
    """Of layout auto."""

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ConfigError(f"ranks is {self.ranks}; it must be at least 1 (--ranks)")
        if self.kv_pages is not None and self.pool_mib is not None:
            raise ConfigError("--kv-pages and --pool-mib exclude each other")
