"""The models that are known by name."""

from __future__ import annotations

import pytest

from splash.core.errors import ConfigError
from splash.spec.config import normalise
from splash.spec.known import known_model, known_models, known_source, vision_params
from splash.spec.tensors import num_params
from tests.unit import config_shapes as shapes

BILLIONS = {
    "glm-5.3": "743.38",
    "deepseek-v3.2": "671.88",
    "deepseek-v3": "671.0",
    "glm-5.3-flash": "313.33",
    "glm-4.7-flash": "29.94",
    "llama-3.1-405b": "405.85",
    "qwen3-235b": "235.09",
}
"""MODELS §1: the main model without multi-token prediction."""


@pytest.mark.parametrize("name", BILLIONS)
def test_parameters_are_those_published(name: str) -> None:
    """Red when a size in a file, or the count of a part, changes."""
    digits = len(BILLIONS[name].partition(".")[2])
    assert f"{num_params(known_model(name)) / 1e9:.{digits}f}" == BILLIONS[name]


def test_every_file_is_known_and_says_where_it_comes_from() -> None:
    """Red when a file is added without a sum to check it by, or without a source."""
    assert set(known_models()) == set(BILLIONS)
    for name in known_models():
        assert len(known_source(name)) > 40
    assert [name for name in known_models() if vision_params(name)] == ["glm-5.3-flash"]
    assert vision_params("glm-5.3-flash") == pytest.approx(0.56e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("glm-5.3", shapes.GLM_5_3),
        ("deepseek-v3.2", shapes.DEEPSEEK_V3_2),
        ("deepseek-v3", shapes.DEEPSEEK_V3),
        ("glm-5.3-flash", shapes.GLM_5_3_FLASH),
        ("qwen3-235b", shapes.QWEN3_235B_A22B),
    ],
)
def test_files_mean_the_shapes_that_are_met(name: str, shape: dict[str, object]) -> None:
    """Red when a file drifts from the config that a checkpoint of the model has."""
    assert known_model(name) == normalise(shape)


def test_glm_indexers_by_their_positions() -> None:
    """Red when the file loses the offset: the count alone would not show it."""
    spec = known_model("glm-5.3")
    assert [layer for layer in range(78) if spec.has_indexer(layer)] == [0, 1, *range(2, 78, 4)]


@pytest.mark.parametrize(
    ("name", "closest"),
    [("glm-5.2", "'glm-5.3'"), ("DeepSeek-V3.2", "'deepseek-v3.2'"), ("qwen3", "'qwen3-235b'")],
)
def test_an_unknown_name_gets_the_closest(name: str, closest: str) -> None:
    """Red when a typing error ends in a traceback or a bare refusal."""
    with pytest.raises(ConfigError) as caught:
        known_model(name)
    assert closest in str(caught.value)
    assert all(known in str(caught.value) for known in known_models())
