"""What steps of an engine cost on the hardware profile of its port, and the policy that goes by it."""

from __future__ import annotations

from splash.core.config import EngineConfig
from splash.core.env import config_dir
from splash.core.errors import ConfigError
from splash.hal.registry import load_backend
from splash.hw.cost import CostModel
from splash.hw.load import known_profiles, load_profile
from splash.hw.precision import Precision
from splash.hw.profile import HardwareProfile
from splash.kv.slots import MemoryPlan
from splash.layout.holders import Topology
from splash.sched.batch import RowBytes
from splash.sched.limits import limits_of
from splash.sched.policy import Policy, ThresholdPolicy
from splash.sched.predictive import PredictivePolicy
from splash.sched.score import Targets
from splash.spec.model import ModelSpec
from splash.spec.storage import kv_storage, weight_storage


def port_profile(port: str) -> HardwareProfile | None:
    """The hardware profile of a port's name, the user's before a shipped one; None without one."""
    user_folder = config_dir()
    if port not in known_profiles(user_folder=user_folder):
        return None
    return load_profile(port, user_folder=user_folder)


def cost_model(spec: ModelSpec, config: EngineConfig, profile: HardwareProfile) -> CostModel:
    """Of steps as ranks here run them: each has all rows, prompts attend over latents as they are stored, copies are
    made between steps, and experts lie where their numbers say. `config` is a deployment's: its types are set."""
    assert config.dtype is not None
    assert config.kv_dtype is not None
    return CostModel(
        spec=spec,
        profile=profile,
        ranks=config.ranks,
        precision=Precision.of(spec, weight_storage(config.dtype), kv_storage(config.kv_dtype)),
        max_rows=config.scheduler.token_budget + config.scheduler.max_running,
        scattered=False,
        unabsorbed=False,
        overlapped_copies=False,
        balanced_experts=False,
        divided_latents=load_backend(config.backend).caps.divides_replicated,
    )


def open_policy(spec: ModelSpec, config: EngineConfig, memory: MemoryPlan, topo: Topology) -> Policy:
    """The policy of layout auto, as configured; ConfigError if it needs a profile that there is not."""
    chosen = config.policy
    if chosen.kind == "thresholds":
        return ThresholdPolicy()
    profile = port_profile(config.backend)
    if profile is None:
        raise ConfigError(
            f"--policy cost needs a hardware profile of the name {config.backend}, and there is none:"
            f" `splash profile --hw {config.backend} -o FILE` measures one"
        )
    return PredictivePolicy(
        cost_model(spec, config, profile),
        limits_of(memory, topo, config.scheduler, RowBytes.of(spec)),
        objective=chosen.objective,
        targets=Targets(chosen.ttft_s, chosen.tpot_s),
    )
