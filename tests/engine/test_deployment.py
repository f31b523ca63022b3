"""What is decided before the ranks start: limits, the copy bandwidth of the port's profile, checks in debug mode."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from splash.core.config import COPY_BANDWIDTH, EngineConfig, SchedulerConfig
from splash.core.errors import CapacityError, ConfigError
from splash.engine.deployment import Deployment, open_deployment
from splash.hal.caps import DeviceInfo
from splash.hal.inproc import InProcessBackend
from splash.hw.load import load_profile, shipped_folder
from tests.conftest import TinyMaker


class _Named(InProcessBackend):
    """Goes by the name of a port."""

    @property
    def name(self) -> str:
        return "cpu"


def _open(tiny: TinyMaker, backend: InProcessBackend | None = None, **scheduler: object) -> Deployment:
    config = EngineConfig(scheduler=SchedulerConfig(**scheduler))  # type: ignore[arg-type]
    return open_deployment(tiny("deepseek_v3"), config, backend or InProcessBackend())


@pytest.mark.parametrize(("value", "checks"), [("1", True), ("0", False)])
def test_debug_checks_page_conservation(
    tiny: TinyMaker, monkeypatch: pytest.MonkeyPatch, value: str, checks: bool
) -> None:
    """Red when SPLASH_DEBUG=1 does not check what its docstring says."""
    monkeypatch.setenv("SPLASH_DEBUG", value)
    assert _open(tiny).config.scheduler.check_invariants is checks
    assert _open(tiny, check_invariants=True).config.scheduler.check_invariants


def test_copy_bandwidth_is_the_profiles(
    tiny: TinyMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when background copies go by a literal although the port has a profile, the user's own first."""
    monkeypatch.setenv("SPLASH_CONFIG_DIR", str(tmp_path))
    shipped = load_profile("cpu").memory.copy_bandwidth.value
    assert _open(tiny).config.scheduler.copy_bytes_per_s == COPY_BANDWIDTH, "this port has no profile"
    assert _open(tiny, _Named()).config.scheduler.copy_bandwidth == shipped
    assert _open(tiny, _Named(), copy_bandwidth=1e6).config.scheduler.copy_bandwidth == 1e6
    text = (shipped_folder() / "cpu.toml").read_text(encoding="utf-8")
    mine = re.sub(r"(copy_bandwidth = { value = )[0-9.e]+", r"\g<1>2e9", text)
    (tmp_path / "cpu.toml").write_text(mine, encoding="utf-8")
    assert _open(tiny, _Named()).config.scheduler.copy_bandwidth == 2e9


class _Small(InProcessBackend):
    """Has devices of 24 GB, of which little is free."""

    def __init__(self, free_bytes: int | None, devices: int = 1) -> None:
        super().__init__()
        self._devices = [DeviceInfo(n, "small", 24 << 30, free_bytes=free_bytes) for n in range(devices)]

    def probe(self) -> list[DeviceInfo]:
        return self._devices


@pytest.mark.parametrize(
    ("given", "free_mib", "complaint"),
    [
        ({"pool_mib": 2000}, 4000, "2 pools of .* of 4,000 MiB that are free 3,600 may be taken; lower --pool-mib$"),
        ({"kv_pages": 10**6}, 1000, "lower --kv-pages$"),
        ({}, 440, "lower --max-model-len or give --kv-pages$"),
        ({"ranks": 4}, 500, "without KV it is still too much; --dtype bfloat16 or fewer --ranks takes less$"),
        ({"ranks": 1, "dtype": "bfloat16"}, 100, "another model takes less$"),
        ({"ranks": 1, "dtype": "bfloat16"}, 0, "of 0 MiB that are free 0 may be taken; .*another model takes less$"),
    ],
)  # fmt: skip
def test_what_does_not_fit_into_free_memory_is_refused(
    tiny: TinyMaker, given: dict[str, object], free_mib: int, complaint: str
) -> None:
    """Red when all of a machine's memory counts as free, also where none is, or ranks' own needs as none: pools take
    theirs at the start. Or when the message names options that do not help."""
    folder = tiny("deepseek_v3")
    config = EngineConfig(**{"scheduler": SchedulerConfig(max_model_len=4096), **given})  # type: ignore[arg-type]
    with pytest.raises(CapacityError, match=complaint):
        open_deployment(folder, config, _Small(free_mib << 20))
    open_deployment(folder, config, _Small(24 << 30))
    open_deployment(folder, config, _Small(None))  # not known: all there is counts


def test_each_rank_may_have_a_device_of_its_own(tiny: TinyMaker) -> None:
    """Red when pools on several devices are held against the memory of one."""
    config = EngineConfig(ranks=2, pool_mib=600)
    with pytest.raises(CapacityError):
        open_deployment(tiny("deepseek_v3"), config, _Small(1500 << 20))
    open_deployment(tiny("deepseek_v3"), config, _Small(1500 << 20, devices=2))


@pytest.mark.parametrize(
    "wrong",
    [{"copy_bandwidth": 0.0}, {"copy_bandwidth": float("nan")}, {"transition_slack_steps": -1}],
    ids=str,
)
def test_wrong_numbers_are_refused(wrong: dict[str, float]) -> None:
    """Red when a switch can be given no bandwidth, or a negative patience."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SchedulerConfig(**wrong)  # type: ignore[arg-type]


def test_the_demo_model_has_a_name_for_people(tiny: TinyMaker, tmp_path: Path) -> None:
    """Red when the view says `_demo`."""
    copy = tmp_path / "__name"
    copy.mkdir()
    for file in tiny("deepseek_v3").iterdir():
        (copy / file.name).symlink_to(file)
    deployment = open_deployment(copy, EngineConfig(), InProcessBackend())
    assert deployment.model == "name"
    assert deployment.run_started(0.0).model == "name"
