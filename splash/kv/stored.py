"""In which type KV is stored: as numbers of a float type, or packed in FP8."""

from __future__ import annotations

from splash.core.errors import ConfigError
from splash.kv.sections import Field
from splash.spec.model import ITEMSIZE, KVField, MLASpec, ModelSpec
from splash.spec.storage import FP8, packing_of


def stored_field(field: KVField, spec: ModelSpec, kv_dtype: str) -> Field:
    """`field` of a model's KV as pages have it. ConfigError unless the model's attention is latent, for FP8."""
    if kv_dtype != FP8:
        return Field(field.name, field.width, ITEMSIZE[kv_dtype], kv_dtype, field.pool)
    if not isinstance(spec.attention, MLASpec):
        raise ConfigError(
            f"KV in fp8 is for latent attention, {spec.model_type} has keys and values; use --kv-dtype bfloat16"
        )
    packing = packing_of(spec, field)
    return Field(field.name, packing.num_bytes, 1, "uint8", field.pool, packing)
