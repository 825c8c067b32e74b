from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.host_memory import count_oom_kills, host_memory_gib, usable_gib_per_process

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("groups", "file", "text", "expected"),
    [
        ("0::/user/job\n", "user/job/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n", 2),
        ("0::/outside\n", "memory.events", "oom_kill 5\n", 5),
        ("4:cpu,memory:/job\n0::/\n", "memory/job/memory.oom_control", "under_oom 0\noom_kill 7\n", 7),
        ("0::/job\n", "job/memory.events", "oom 1\n", None),
        ("0::/job\n", "other", "", None),
        ("nonsense\n", "other", "", None),
    ],
    ids=["of its own", "in a container", "first version", "not counted", "no file", "no group"],
)
def test_kills_are_counted_by_the_kernel(
    groups: str, file: str, text: str, expected: int | None, tmp_path: Path
) -> None:
    (tmp_path / "groups").write_text(groups)
    (tmp_path / "root" / file).parent.mkdir(parents=True)
    (tmp_path / "root" / file).write_text(text)
    assert count_oom_kills(tmp_path / "groups", tmp_path / "root") == expected


def test_kills_are_unknown_without_control_groups(tmp_path: Path) -> None:
    assert count_oom_kills(tmp_path / "absent") is None


GIB = 1 << 30


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/user/job\n", {"user/job/memory.max": f"{GIB}\n", "user/memory.max": "max\n"}, 1.0),
        ("0::/user/job\n", {"user/job/memory.max": f"{2 * GIB}", "user/memory.max": f"{GIB}"}, 1.0),
        ("0::/outside\n", {"memory.max": f"{GIB // 2}\n"}, 0.5),
        ("4:cpu,memory:/job\n0::/\n", {"memory/job/memory.limit_in_bytes": f"{GIB}\n"}, 1.0),
        ("4:memory:/outside\n", {"memory/memory.limit_in_bytes": f"{GIB}\n"}, 1.0),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("0::/job\n", {"job/memory.max": "max\n"}, None),
        ("0::/job\n", {}, None),
        ("nonsense\n", {}, None),
    ],
    ids=["own", "outer", "container", "first version", "its container", "its none", "none", "no file", "no group"],
)
def test_the_memory_is_that_of_the_host_within_the_limit_of_its_groups(
    groups: str, files: dict[str, str], limit: float | None, tmp_path: Path
) -> None:
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    known = host_memory_gib(tmp_path / "groups", tmp_path / "root")
    assert known["host"] > 1
    assert known.get("limit") == limit


def test_processes_share_it() -> None:
    whole = usable_gib_per_process(1)
    assert whole is not None
    assert usable_gib_per_process(4) == whole / 4
