"""Models, hardware and settings that go together unless something else is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from splash.core.errors import CheckpointError, ConfigError
from splash.hw.load import known_profiles, load_profile
from splash.hw.profile import ProfileError
from splash.layout.layouts import DP
from splash.sim.deployment import deploy, memory_of
from splash.sim.presets import adapted, choose, find_model, preset
from splash.spec.known import known_models
from tests.unit import config_shapes as shapes


@pytest.mark.parametrize("name", known_models())
def test_every_known_model_fits_its_preset_with_all_shards(name: str) -> None:
    """Red when a known model has no row, or one whose dp leaves no room for KV."""
    chosen = choose(name, None)
    assert chosen.profile.name == preset(name).hw
    chosen.model.spec.check_ranks(chosen.settings.ranks)
    assert memory_of(chosen.model.spec, chosen.profile, chosen.settings).free(DP) > 0


@pytest.mark.parametrize(
    ("hw", "model"),
    [
        ("dcu", "glm-5.3-flash"),
        ("bw1000", "glm-5.3-flash"),
        ("b200", "glm-5.3"),
        ("h200", "deepseek-v3.2"),
        ("mi300x", "deepseek-v3.2"),
        (None, "deepseek-v3.2"),
    ],
)
def test_hardware_has_its_usual_model(hw: str | None, model: str) -> None:
    """Red when `--hw` alone shows another model than the issue says."""
    assert choose(None, hw).model.name == model


def test_the_machine_itself_shows_what_is_served_on_it() -> None:
    """Red when `--hw cpu` alone is about a model that fits no such machine."""
    choice = choose(None, "cpu")
    assert (choice.model.name, choice.settings.ranks) == ("demo", 2)
    assert memory_of(choice.model.spec, choice.profile, choice.settings).free(DP) > 0


def test_what_is_given_replaces_the_preset_and_nothing_else() -> None:
    """Red when an option left out, or given as its type's zero, changes what it should not."""
    settings = preset("glm-5.3").settings
    assert adapted(settings) == settings
    changed = adapted(settings, ranks=4, kv="bfloat16")
    assert (changed.ranks, changed.kv) == (4, "bfloat16")
    assert adapted(changed, ranks=settings.ranks, kv=settings.kv) == settings


def test_a_folder_needs_its_config_only(tmp_path: Path) -> None:
    """Red when a checkpoint's weight type is not read off its config, or its weights are asked for."""
    folder = tmp_path / "mine"
    folder.mkdir()
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = {**shapes.DEEPSEEK_V3_2, "quantization_config": quantised}
    (folder / "config.json").write_text(json.dumps(config))
    found = find_model(str(folder))
    assert found.name == "mine"
    assert found.spec == find_model("deepseek-v3.2").spec
    assert found.preset.settings.weights == "fp8_block"


def test_unknown_names_are_answered_with_the_known_ones(tmp_path: Path) -> None:
    """Red when an error does not name the closest, or what is known."""
    with pytest.raises(ConfigError, match=r"did you mean 'glm-5\.3-flash'.*qwen3-235b"):
        find_model("glm-5.3-flsh")
    with pytest.raises(ProfileError, match=r"did you mean 'h200'.*bw1000"):
        choose("glm-5.3", "h20")
    with pytest.raises(CheckpointError, match=r"config\.json.*known: deepseek-v3"):
        find_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "gib"), [("h200", 140.4), ("b200", 179.06), ("bw1000", 63.98), ("h100", 79.65)]
)
def test_profiles_have_what_drivers_report(name: str, gib: float) -> None:
    """Red when a datasheet's decimal gigabytes come back: the capacity table is computed with these totals."""
    assert load_profile(name).memory.capacity.value / 2**30 == pytest.approx(gib, abs=0.005)


@pytest.mark.parametrize("hw", sorted(set(known_profiles()) - {"cpu"}))
def test_the_usual_model_of_each_device_fits(hw: str) -> None:
    """Red when `splash run --hw NAME` alone ends with a lack of memory."""
    choice = choose(None, hw)
    deployed = deploy(choice.model.name, choice.model.spec, choice.profile, choice.settings)
    assert deployed.limits().room["tp"].tokens > choice.settings.max_running
