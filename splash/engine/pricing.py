"""What the steps of a deployment cost, on the hardware profile of its port."""

from __future__ import annotations

from splash.engine.deployment import Deployment
from splash.hw.cost import CostModel
from splash.hw.precision import Precision
from splash.hw.profile import HardwareProfile
from splash.spec.storage import kv_storage, weight_storage


def cost_model(deployment: Deployment, profile: HardwareProfile) -> CostModel:
    """Of steps as this engine runs them: every rank has all rows, prompts attend over latents as they are stored, and
    copies are made between steps."""
    config = deployment.config
    assert config.dtype is not None
    assert config.kv_dtype is not None
    spec = deployment.checkpoint.spec
    return CostModel(
        spec=spec,
        profile=profile,
        ranks=config.ranks,
        precision=Precision.of(spec, weight_storage(config.dtype), kv_storage(config.kv_dtype)),
        max_rows=config.scheduler.token_budget + config.scheduler.max_running,
        scattered=False,
        unabsorbed=False,
        overlapped_copies=False,
    )
