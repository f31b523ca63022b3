"""In which number formats a deployment computes and stores: what the cost model needs of it."""

from __future__ import annotations

from dataclasses import dataclass

from splash.spec.model import ModelSpec
from splash.spec.storage import KVStorage, WeightStorage, field_bytes


@dataclass(frozen=True, slots=True)
class Precision:
    """Names of `hw.ops.gemm_s` for the weights of each kind, and bytes of what is cached."""

    attention: str
    """MLA and GQA projections, the indexer's too."""
    experts: str
    """Routed and shared experts, dense MLPs."""
    kda: str
    dense: str
    """Vocabulary."""
    activation_bytes: int
    """Of one element that travels between ranks."""
    kv_bytes: float
    """Of one token and attention layer, all KV heads, without index keys."""
    index_bytes: float
    """Of one token and layer with an indexer."""

    @classmethod
    def of(cls, spec: ModelSpec, weights: WeightStorage, kv: KVStorage) -> Precision:
        """The number formats of a deployment. Where a device has no kernel for one, the cost model falls back."""
        fields = {
            field.name: field for layer in range(spec.num_layers) for field in spec.layer_kv_fields(layer, 1)
        }
        index = fields.pop("index", None)
        plain = "float32" if weights.plain == 4 else "bfloat16"
        return cls(
            attention=weights.name,
            experts=weights.name,
            kda=plain if weights.name == "fp8_block" else weights.name,
            dense=plain,
            activation_bytes=weights.plain,
            kv_bytes=float(sum(field_bytes(spec, field, kv) for field in fields.values())),
            index_bytes=0.0 if index is None else field_bytes(spec, index, kv) / index.pool,
        )
