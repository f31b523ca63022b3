"""Hardware profiles: what is shipped loads, what is wrong is named."""

import copy
import math
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from splash.hw.load import known_profiles, load_profile, profile_from_table, shipped_folder
from splash.hw.profile import HardwareProfile, ProfileError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Table = dict[str, Any]


@pytest.fixture
def table() -> Table:
    return tomllib.loads((shipped_folder() / "cpu.toml").read_text())


@pytest.mark.parametrize("name", sorted(known_profiles()))
def test_every_shipped_profile_loads_under_its_file_name(name: str) -> None:
    """Red when a profile falls behind the schema."""
    assert load_profile(name).name == name


def test_a_profile_holds_the_values_of_its_file(table: Table) -> None:
    """Red when a field is read from a wrong key."""
    profile = profile_from_table(table, name="cpu", where="here")
    assert isinstance(profile, HardwareProfile)
    assert profile.memory.bandwidth.value == table["memory"]["bandwidth"]["value"]
    beta = table["collective"]["all_to_all"]["2"]["beta"]
    assert profile.collective.all_to_all[2].beta.source == beta["source"]
    assert isinstance(profile.memory.capacity.value, float)


def test_a_users_profile_wins_and_a_path_needs_no_name(tmp_path: Path) -> None:
    """Red when the order of the folders changes."""
    text = (shipped_folder() / "cpu.toml").read_text()
    (tmp_path / "cpu.toml").write_text(text.replace("summary = ", "summary = 'mine' # "))
    shutil.copy(shipped_folder() / "cpu.toml", tmp_path / "desk.toml")
    assert load_profile("cpu", user_folder=tmp_path).summary == "mine"
    assert load_profile("cpu").summary != "mine"
    assert load_profile(str(tmp_path / "desk.toml")).name == "desk"
    assert set(known_profiles(user_folder=tmp_path)) >= {"cpu", "desk"}
    with pytest.raises(ProfileError, match=f"yours are looked for in {re.escape(str(tmp_path))};"):
        load_profile("nowhere", user_folder=tmp_path)


_ONE = {"value": 1, "source": "assumed: for a test"}


def _set(*path: str, to: Any) -> Callable[[Table], None]:
    def change(table: Table) -> None:
        for key in path[:-1]:
            table = table[key]
        table[path[-1]] = to

    return change


def _drop(*path: str) -> Callable[[Table], None]:
    def change(table: Table) -> None:
        for key in path[:-1]:
            table = table[key]
        del table[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set("memry", to={}), ["'memry'", "did you mean 'memory'"]),
        (_set("memory", "bandwith", to={}), ["memory", "'bandwith'", "did you mean 'bandwidth'"]),
        (_set("name", to="cpu"), ["unknown key 'name'"]),
        (_drop("host"), ["missing 'host'"]),
        (_drop("collective", "broadcast", "2", "beta"), ["collective.broadcast.2", "missing 'beta'"]),
        (_set("collective", "broadcast", to={}), ["collective", "broadcast needs groups"]),
        (_set("collective", "broadcast", "two", to={}), ["collective.broadcast", "'two'", "whole number"]),
        (_set("collective", "broadcast", "0", to={}), ["collective.broadcast", "'0'", "whole number"]),
        (_set("collective", "all_reduce", "2", "alpha_large", to=_ONE), ["all_reduce.2", "belong together"]),
        (_drop("gemm", "float32", "flops", "source"), ["gemm.float32.flops", "missing 'source'"]),
        (_set("gemm", "fp4", to={}), ["gemm", "unknown key 'fp4'"]),
        (
            _set("moe", to={"int8": {"flops": {}, "bandwidth": _ONE, "fixed": _ONE}}),
            ["moe.int8", "one width"],
        ),
        (_set("aliases", to="desk"), ["aliases", "list of text", "desk"]),
        (_set("aliases", to=[1]), ["aliases", "must be text", "1"]),
        (_set("memory", "capacity", "value", to=-1), ["memory.capacity", "positive", "-1"]),
        (_set("memory", "capacity", "value", to=0), ["memory.capacity", "positive"]),
        (_set("memory", "capacity", "value", to=math.nan), ["memory.capacity", "positive", "nan"]),
        (_set("memory", "capacity", "value", to=True), ["memory.capacity.value", "a number", "True"]),
        (_set("memory", "capacity", "value", to="24 GiB"), ["memory.capacity.value", "a number", "24 GiB"]),
        (_set("memory", "capacity", to=24), ["memory.capacity", "table", "24"]),
        (_set("host", "step_overhead", "source", to="trust me"), ["host.step_overhead", "measured"]),
        (_set("device", to=3), ["device", "must be text", "3"]),
    ],
)
def test_a_wrong_profile_is_an_error_that_names_file_and_key(
    table: Table, change: Callable[[Table], None], words: list[str]
) -> None:
    """Red when a check is lost: each row is one kind of mistake."""
    broken = copy.deepcopy(table)
    change(broken)
    with pytest.raises(ProfileError) as caught:
        profile_from_table(broken, name="cpu", where="my.toml")
    assert all(word in str(caught.value) for word in ["my.toml", *words]), caught.value


def test_an_unknown_name_lists_the_known_ones_and_the_closest() -> None:
    """Red when the hint is lost."""
    with pytest.raises(ProfileError, match=r"'cpux' \(did you mean 'cpu'\?\); known: .*cpu"):
        load_profile("cpux")


def test_an_alias_loads_the_profile_that_declares_it(tmp_path: Path) -> None:
    """Red when aliases are not read, or win over a file of that name."""
    assert load_profile("dcu").name == "bw1000"
    shutil.copy(shipped_folder() / "cpu.toml", tmp_path / "dcu.toml")
    assert load_profile("dcu", user_folder=tmp_path).summary == load_profile("cpu").summary


def test_shipped_names_and_aliases_are_all_different() -> None:
    """Red when two shipped profiles claim one name."""
    claims = [alias for name in known_profiles() for alias in load_profile(name).aliases]
    assert len({*claims, *known_profiles()}) == len(claims) + len(known_profiles())


def test_an_unreadable_file_is_named_with_the_option(tmp_path: Path) -> None:
    """Red when an OSError or a TOML error escapes, or nobody is told that --hw names another profile: of a path, or of
    one's own by name."""
    for name, content, complaint in [
        ("nowhere", None, r"nowhere\.toml: No such file.* \(--hw\)$"),
        ("half", b"[memory\n", r"half\.toml is not valid TOML: .*line 1.* \(--hw\)$"),
        ("binary", b"\xff", r"binary\.toml is not valid TOML: .* \(--hw\)$"),
        ("odd", b"sumary = 'x'\n", r"odd\.toml: unknown key 'sumary'.* \(--hw\)$"),
    ]:
        file = tmp_path / f"{name}.toml"
        if content is not None:
            file.write_bytes(content)
        for asked in (file, name) if content is not None else (file,):
            with pytest.raises(ProfileError, match=complaint):
                load_profile(asked, user_folder=tmp_path)
        file.unlink(missing_ok=True)
