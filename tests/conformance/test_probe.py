"""What the CPU port takes for its own where control groups set limits."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from splash_cpu import probe

from splash.core.errors import PortError


def _groups(folder: Path, limits: dict[str, str]) -> tuple[Path, Path]:
    """A tree of control groups, and the file that puts this process into `a/b`."""
    for path, limit in limits.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(limit + "\n")
    own = folder / "cgroup"
    own.write_text("4:memory:/elsewhere\n0::/a/b\n")
    return folder, own


def test_limits_of_all_groups_above_count(tmp_path: Path) -> None:
    """Red when only the own group is asked, a group beside it counts, or "max" is taken for a limit."""
    root, own = _groups(
        tmp_path,
        {"a/b/memory.max": "max", "a/memory.max": "1000", "memory.max": "5000", "a/c/memory.max": "7"},
    )
    groups = probe._groups(root=root, of=own)
    assert [probe._setting(group, "memory.max") for group in groups] == [None, "1000", "5000"]
    assert probe._groups(root=root, of=tmp_path / "none") == []


def test_the_least_limit_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a quota of CPU time or memory is ignored, or half a core becomes none."""
    limits = {"cpu.max": ["50000 100000"], "memory.max": ["4096", "1048576"]}
    monkeypatch.setattr(probe, "_limits", limits.__getitem__)
    assert (probe.num_cores(), probe.memory_bytes()) == (1, 4096)


def test_what_is_free_is_the_least_that_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when memory that others hold counts as free: the machine's, or that of a control group with a limit, whose
    cached files can be dropped. Or when a group at its limit looks like one of which nothing is known."""
    root, own = _groups(
        tmp_path,
        {
            "a/b/memory.max": "1000",
            "a/b/memory.current": "700",
            "a/b/memory.stat": "anon 500\ninactive_file 120\nactive_file 30\nshmem 50",
            "memory.max": "5000",
            "memory.current": "4800",
        },
    )
    groups = probe._groups(root=root, of=own)
    assert [probe._left(group) for group in groups] == [450, None, 200]
    (tmp_path / "meminfo").write_text("MemTotal: 16 kB\nMemFree: 1 kB\nMemAvailable: 8 kB\n")
    available = probe._available(tmp_path / "meminfo")
    assert available == 8192
    monkeypatch.setattr(probe, "_available", lambda: available)
    for found, least in [(groups[:1], 450), (groups, 200), ([], 8192)]:
        monkeypatch.setattr(probe, "_groups", lambda found=found: found)
        assert probe.free_bytes() == least
    monkeypatch.setattr(probe, "_available", lambda: None)
    assert probe.free_bytes() is None, "not known"
    (root / "memory.current").write_text("5100")
    monkeypatch.setattr(probe, "_groups", lambda: groups)
    assert probe.free_bytes() == 0, "over its limit"


def test_a_kernel_that_cannot_watch_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when that shows only after ranks have been started, as an OSError."""

    def missing(pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", missing)
    with pytest.raises(PortError, match=r"pidfd_open, which fails here \(Function not implemented\)"):
        probe.probe()
