"""Scale of programs: which workloads make one line, and the best of each scale."""

from __future__ import annotations

import pytest

from torchx_cubicml import Trial
from torchx_cubicml.plots.scale_rows import scale_lines


def trial(program: str, devices: int, rate: float | None, *, batch: int = 1, hidden_size: int = 512) -> Trial:
    workload = {"program": program, "world_size": devices, "nnodes": devices // 8 or 1, "hidden_size": hidden_size}
    config = {"micro_batch_size": batch}
    if rate is None:
        return Trial.infeasible(workload=workload, config=config)
    return Trial.completed(workload=workload, config=config, tokens_per_second=rate)


def test_a_line_has_the_best_of_each_scale_and_its_efficiency() -> None:
    groups = [
        ("tokens_per_second", [trial("a.py", 8, 80.0), trial("a.py", 8, 100.0, batch=2)]),
        ("tokens_per_second", [trial("a.py", 32, 300.0), trial("a.py", 32, None, batch=4)]),
        ("tokens_per_second", [trial("a.py", 16, 220.0)]),
    ]
    (line,) = scale_lines(groups)
    assert line.program == "a.py"
    assert line.facts == "hidden_size=512"
    assert [(point.devices, point.throughput, point.configs) for point in line.points] == [
        (8, 100.0, 2), (16, 220.0, 1), (32, 300.0, 1)
    ]  # fmt: skip
    assert [point.efficiency for point in line.points] == pytest.approx([1.0, 1.1, 0.75])
    assert line.points[0].trial.config == {"micro_batch_size": 2}


def test_workloads_that_differ_otherwise_are_no_line() -> None:
    small, large = trial("a.py", 8, 10.0), trial("a.py", 16, 20.0, hidden_size=1024)
    assert scale_lines([("tokens_per_second", [small]), ("tokens_per_second", [large])]) == []


def test_another_unit_is_another_line_and_costs_are_left_out() -> None:
    groups = [("tokens_per_second", [trial("a.py", 8, 10.0)]), ("tokens_per_device_hour", [trial("a.py", 16, 20.0)])]
    assert scale_lines(groups) == []


def test_the_line_of_most_scales_stands_first() -> None:
    groups = [("tokens_per_second", [trial(name, devices, 10.0)]) for name in ("a.py", "b.py") for devices in (8, 16)]
    groups.append(("tokens_per_second", [trial("b.py", 32, 10.0)]))
    assert [line.program for line in scale_lines(groups)] == ["b.py", "a.py"]
