"""Whether the ranks of a deployment fit into the memory that is free: asked before anything is started."""

from __future__ import annotations

from collections.abc import Sequence

from splash.core.config import EngineConfig
from splash.core.errors import CapacityError
from splash.hal.caps import Caps, DeviceInfo
from splash.kv.slots import MemoryPlan
from splash.spec.model import ITEMSIZE, ModelSpec
from splash.spec.tensors import rank_bytes

MEMORY_SHARE = 0.9
"""Of the memory that is free, for ranks; the rest is the engine's and everybody else's."""
RANK_BYTES = 200_000_000
"""What a rank takes beside its weights and its pool: interpreter, libraries, workspace (190 to 260 MB of the demo model
at 8 ranks and at 1, `bench/memory.py`)."""


def check_fits(
    spec: ModelSpec, memory: MemoryPlan, config: EngineConfig, caps: Caps, devices: Sequence[DeviceInfo]
) -> None:
    """CapacityError, with the numbers and the options that lower them, where a device has too little for its ranks.

    `config` is a deployment's: its dtype is set. A device whose memory is not known has room for everything.
    """
    free = min((free for device in devices if (free := _free_bytes(device)) is not None), default=None)
    if free is None:
        return
    room = int(MEMORY_SHARE * free)
    sharers = -(-config.ranks // len(devices))
    pools = sharers * memory.geometry.pool_bytes
    weights = sharers * _other_weights(spec, memory, config)
    needed = pools + weights + sharers * RANK_BYTES
    if needed <= room:
        return
    kv_bytes = sharers * (memory.geometry.kv_pages(config.ranks) - 1) * memory.geometry.page_bytes
    remedy = _less_kv(config) if needed - kv_bytes <= room else _less_weights(config, caps)
    parts = (
        f"{sharers} pools of {_mib(memory.geometry.pool_bytes)}, {_mib(weights)} of other weights,"
        f" {_mib(RANK_BYTES)} for each process"
    )
    raise CapacityError(
        f"the ranks need {_mib(needed)} MiB ({parts}), and of {_mib(free)} MiB that are free {_mib(room)} may be taken;"
        f" {remedy}"
    )


def _free_bytes(device: DeviceInfo) -> int | None:
    """All of a device's memory where what is free of it is not known; None where that is not known either."""
    return device.free_bytes if device.free_bytes is not None else device.memory_bytes or None


def _other_weights(spec: ModelSpec, memory: MemoryPlan, config: EngineConfig) -> int:
    """Of the fullest rank, outside its pool."""
    assert config.dtype is not None
    itemsize = ITEMSIZE[config.dtype]
    held = (rank_bytes(spec, rank=r, ranks=config.ranks, itemsize=itemsize) for r in (0, config.ranks - 1))
    return max(0, max(held) - memory.shards.num_bytes)


def _less_kv(config: EngineConfig) -> str:
    """The options that the pool's size came from."""
    if config.pool_mib is not None:
        return "lower --pool-mib"
    return "lower --kv-pages" if config.kv_pages is not None else "lower --max-model-len or give --kv-pages"


def _less_weights(config: EngineConfig, caps: Caps) -> str:
    """Where not even a single page of KV fits beside the weights."""
    assert config.dtype is not None
    smaller = [name for name in caps.dtypes if ITEMSIZE[name] < ITEMSIZE[config.dtype]]
    options = [f"--dtype {smaller[0]}"] if smaller else []
    options += ["fewer --ranks"] if config.ranks > 1 else []
    return f"without KV it is still too much; {' or '.join(options) or 'another model'} takes less"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes >> 20:,}"
