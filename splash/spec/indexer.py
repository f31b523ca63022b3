"""The sparse attention that a config asks for: the indexer's sizes, and which layers have one of their own."""

from __future__ import annotations

from splash.core.errors import ConfigError
from splash.spec.fields import Fields
from splash.spec.model import IndexerSpec

_LETTERS = {"F": "full", "S": "shared"}
"""Of `index_topk_pattern` as a string."""


def read_indexer(
    config: Fields, *, heads: int, rope_dim: int, interleaved: bool, pool: int = 1
) -> IndexerSpec:
    """The indexer; `heads` and `interleaved` are the model type's, if the config does not say.

    ConfigError where the rope does not fit the key, or pools do not fit `index_topk`.
    """
    indexer = IndexerSpec(
        num_heads=config.integer("index_n_heads", default=heads),
        head_dim=config.integer("index_head_dim", default=128),
        top_k=config.integer("index_topk", default=2048),
        rope_dim=rope_dim,
        interleaved=config.flag("indexer_rope_interleave", default=interleaved),
        pool=pool,
    )
    if indexer.top_k % pool:
        raise config.wrong("index_topk", expected=f"a multiple of index_kpool {pool}")
    if rope_dim > indexer.head_dim:
        raise config.wrong("index_head_dim", expected=f"at least qk_rope_head_dim {rope_dim}")
    if not config.flag("index_kpool_always_select_tail", default=True):
        raise config.wrong(
            "index_kpool_always_select_tail", expected="true (other indexers are not supported)"
        )
    return indexer


def indexed_layers(config: Fields, attends: list[bool]) -> tuple[bool, ...]:
    """Which layers have an indexer of their own; the others reuse the selection of the last one before them.

    From `indexer_types`, `index_topk_pattern`, or `index_topk_freq` and `index_skip_topk_offset`, as transformers
    reads them: layer i is full where max(i - offset + 1, 0) is a multiple of freq. `attends`: one a layer, it
    has attention at all. ConfigError: a type that is not known, another number of them than layers, or nothing
    before the first layer to reuse.
    """
    kinds = _indexer_types(config, len(attends))
    indexed = tuple(kind == "full" and here for kind, here in zip(kinds, attends, strict=True))
    first = attends.index(True) if any(attends) else 0
    if not indexed[first]:
        raise ConfigError(
            f"{config.where}: layer {first} shares an indexer, but no layer before it has one (indexer_types)"
        )
    return indexed


def _indexer_types(config: Fields, layers: int) -> tuple[str, ...]:
    """'full' or 'shared', one a layer."""
    key = "indexer_types" if config.raw("indexer_types") is not None else "index_topk_pattern"
    given = config.raw(key)
    if given is None:
        every = max(config.integer("index_topk_freq", default=1, minimum=0), 1)
        offset = config.integer("index_skip_topk_offset", default=2, minimum=0)
        return tuple(
            "full" if max(layer - offset + 1, 0) % every == 0 else "shared" for layer in range(layers)
        )
    if key == "index_topk_pattern" and isinstance(given, str):
        kinds = tuple(_LETTERS.get(letter, letter) for letter in given)
    else:
        kinds = config.items(key)
    odd = sorted({str(kind) for kind in kinds} - set(_LETTERS.values()))
    if odd:
        raise ConfigError(
            f"{config.where}: indexers of type {', '.join(odd)} are not supported ({key}); supported: full, shared"
        )
    if len(kinds) != layers:
        raise ConfigError(f"{config.where}: {key} lists {len(kinds)} indexers for {layers} layers")
    return kinds
