"""Memory of a device and of the host, as the recorder reads it."""

from __future__ import annotations

import resource
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.host_memory import count_oom_kills
from torchx_cubicml.recorder.host.memory import allocator_retries, peak_memory_gib, peak_reserved_gib

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30


def device(monkeypatch: pytest.MonkeyPatch, *, is_initialized: bool = True, **stats: object) -> None:
    cuda = SimpleNamespace(
        is_initialized=lambda: is_initialized,
        max_memory_allocated=lambda: 3 * GIB,
        max_memory_reserved=lambda: stats.get("reserved", 5 * GIB),
        memory_stats=lambda: stats,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def test_a_device_in_use_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    device(monkeypatch, num_alloc_retries=7)
    assert (peak_memory_gib(), peak_reserved_gib(), allocator_retries()) == (3.0, 5.0, 7)
    device(monkeypatch, reserved=0)
    assert (peak_reserved_gib(), allocator_retries()) == (None, None)


@pytest.mark.parametrize("has_torch", [True, False])
def test_without_a_device_the_host_is_read(has_torch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if has_torch:
        device(monkeypatch, is_initialized=False, num_alloc_retries=7)
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=2 * 2**20))  # KiB, on Linux
    monkeypatch.setattr("torchx_cubicml.recorder.host.memory._MAXRSS_UNIT", 1024)
    assert (peak_memory_gib(), peak_reserved_gib(), allocator_retries()) == (2.0, None, None)


@pytest.mark.skipif(sys.platform != "linux", reason="the unit is another")
def test_the_kernel_counts_in_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    device(monkeypatch, is_initialized=False)
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert peak_memory_gib() == pytest.approx(kib / 2**20, rel=0.2)


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root.joinpath(*name.split("__"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("1:cpu:/a\n0::/a\n", 2),  # a group of another kind comes first
        ("1:memory:/absent\n", 5),
        ("1:memory:/a\n0::/a\n", 6),
        ("0::/absent\n", 1),
        ("1:memory,cpu:/a:b\n", 7),  # the path may hold a colon
        ("1:memory\n0::/a\n", 2),
        ("1:cpu:/a\n", None),
    ],
)
def test_the_first_group_with_a_count_tells(groups: str, expected: int | None, tmp_path: Path) -> None:
    count, older = "memory.events", "memory.oom_control"
    files = {f"a__{count}": "oom 9\noom_kill 2\n", count: "oom_kill 1\n"}
    files |= {f"memory__a__{older}": "oom_kill 6\n", f"memory__{older}": "oom_kill 5\n"}
    files |= {f"memory__a:b__{older}": "oom_kill 7\n"}
    write(tmp_path / "root", **files)
    (tmp_path / "groups").write_text(groups)
    assert count_oom_kills(tmp_path / "groups", tmp_path / "root") == expected


def test_a_count_is_a_line_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, groups="0::/\n", **{"root__memory.events": "oom_kill 12 3\nlocal oom_kill 4\n"})
    assert count_oom_kills(tmp_path / "groups", tmp_path / "root") is None
