from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.recorder.host.memory import count_oom_kills

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
def test_kills_are_counted_where_the_kernel_counts_them(
    groups: str, file: str, text: str, expected: int | None, tmp_path: Path
) -> None:
    (tmp_path / "groups").write_text(groups)
    (tmp_path / "root" / file).parent.mkdir(parents=True)
    (tmp_path / "root" / file).write_text(text)
    assert count_oom_kills(tmp_path / "groups", tmp_path / "root") == expected


def test_without_control_groups_nothing_is_known(tmp_path: Path) -> None:
    assert count_oom_kills(tmp_path / "absent") is None
