"""Power by energy counters: the kernel's folder of power zones as files, NVML where it fails, and sums over ranks."""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.recorder.host import energy_counters
from torchx_cubicml.recorder.host.energy_counters import (
    GPUS,
    PACKAGES,
    EnergyCounter,
    EnergyCounters,
    find_counters,
    package_counters,
)
from torchx_cubicml.recorder.host.energy_meter import EnergyMeter
from torchx_cubicml.recorder.host.job_energy import JobEnergy
from torchx_cubicml.recorder.ranks.peers import RankWork
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.settings import read_job_environment

if TYPE_CHECKING:
    from pathlib import Path

RANGE_UJ = 1_000_000_000


def zone(folder: Path, name: str, kind: str, energy_uj: int = 0) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    for file, text in (("name", kind), ("energy_uj", energy_uj), ("max_energy_range_uj", RANGE_UJ)):
        (folder / name / file).write_text(f"{text}\n")


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages with a part, and the whole platform, as the kernel lays them out."""
    folder = tmp_path / "powercap"
    for name, kind in (
        ("intel-rapl", ""),
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:1", "package-1"),
        ("intel-rapl:2", "psys"),
        ("intel-rapl-mmio:0", "package-0"),
    ):
        zone(folder, name, kind)
    return folder


class Clock:
    def __init__(self) -> None:
        self.seconds, self.steps = 0.0, 0

    def now(self) -> float:
        return self.seconds

    def progress(self) -> int:
        return self.steps


def meter_of(powercap: Path, clock: Clock) -> EnergyMeter:
    counters = EnergyCounters(kind=PACKAGES, counters=package_counters(powercap))
    return EnergyMeter(counters=counters, progress=clock.progress, now=clock.now)


def spend(powercap: Path, clock: Clock, *, seconds: float, joules: tuple[int, int], steps: int) -> None:
    clock.seconds += seconds
    clock.steps += steps
    for number, amount in enumerate(joules):
        file = powercap / f"intel-rapl:{number}" / "energy_uj"
        file.write_text(f"{(int(file.read_text()) + amount * 1_000_000) % RANGE_UJ}\n")


def test_packages_count_once_and_nothing_else(powercap: Path) -> None:
    assert [counter.key.rpartition("/")[2] for counter in package_counters(powercap)] == [
        "intel-rapl:0",
        "intel-rapl:1",
    ]


def test_an_unreadable_package_leaves_none(powercap: Path, tmp_path: Path) -> None:
    (powercap / "intel-rapl:1" / "energy_uj").unlink()
    assert package_counters(powercap) == ()
    zone(powercap, "intel-rapl:1", "package-1")
    (powercap / "intel-rapl:0" / "energy_uj").write_text("?\n")
    assert package_counters(powercap) == ()
    assert package_counters(tmp_path / "absent") == ()


def test_mean_power_of_the_later_steps_with_counters_that_wrap(powercap: Path) -> None:
    clock = Clock()
    meter = meter_of(powercap, clock)
    meter.read()
    spend(powercap, clock, seconds=10.0, joules=(900, 900), steps=8)  # to be left out
    meter.mark(8)
    for _ in range(6):  # both counters wrap at 1000 J
        spend(powercap, clock, seconds=10.0, joules=(700, 300), steps=8)
        meter.read()
    assert meter.watts(64) == {
        key: pytest.approx(watts) for key, watts in zip(meter.watts(64), (70.0, 30.0), strict=True)
    }
    assert meter.watts(65) == {}  # the first report is within the first eighth


def test_time_after_the_last_step_does_not_count(powercap: Path) -> None:
    clock = Clock()
    meter = meter_of(powercap, clock)
    meter.mark(8)
    spend(powercap, clock, seconds=5.0, joules=(500, 0), steps=3)
    meter.read()
    spend(powercap, clock, seconds=50.0, joules=(50, 0), steps=0)
    meter.read()
    assert sum(meter.watts(8).values()) == pytest.approx(100.0)
    spend(powercap, clock, seconds=5.0, joules=(50, 0), steps=1)  # evaluation was between steps
    meter.read()
    assert sum(meter.watts(8).values()) == pytest.approx(10.0)


@pytest.mark.parametrize("fault", ["gone", "gap", "short", "no mark"])
def test_no_power_is_told_where_it_is_not_known(powercap: Path, fault: str) -> None:
    clock = Clock()
    meter = meter_of(powercap, clock)
    if fault != "no mark":
        meter.mark(8)
    seconds = {"gap": 100.0, "short": 1.0}.get(fault, 5.0)
    spend(powercap, clock, seconds=seconds, joules=(500, 500), steps=3)
    if fault == "gone":
        (powercap / "intel-rapl:0" / "energy_uj").unlink()
    meter.read()
    assert meter.watts(8) == {}


def test_the_thread_reads_and_ends(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchx_cubicml.recorder.host.energy_meter._OFTEN_S", 0.01)
    reads = []

    def read() -> float:
        reads.append(1)
        return float(len(reads))

    counters = EnergyCounters(kind=GPUS, counters=(EnergyCounter(key="a", read=read),))
    meter = EnergyMeter(counters=counters, progress=lambda: len(reads))
    meter.begin()
    end = time.monotonic() + 60
    while len(reads) < 4 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(reads) >= 4
    meter.stop()
    thread, count = meter._thread, len(reads)
    assert thread is not None
    assert not thread.is_alive()
    meter.stop()
    assert len(reads) == count


def test_a_reading_that_hangs_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchx_cubicml.recorder.host.energy_meter._OFTEN_S", 0.01)
    monkeypatch.setattr("torchx_cubicml.recorder.host.energy_meter._LONGEST_WAIT_S", 0.01)
    hangs, goes_on = threading.Event(), threading.Event()

    def read() -> float:
        if threading.current_thread() is not threading.main_thread():
            hangs.set()
            goes_on.wait()
        return 1.0

    counters = EnergyCounters(kind=GPUS, counters=(EnergyCounter(key="a", read=read),))
    meter = EnergyMeter(counters=counters, progress=lambda: 1)
    meter.begin()
    try:
        assert hangs.wait(60)
        meter.mark(8)
        meter.stop()
        assert meter.watts(8) == {}
    finally:
        goes_on.set()


def nvml(**functions: object) -> ModuleType:
    module = ModuleType("pynvml")
    module.nvmlInit = lambda: None  # type: ignore[attr-defined]  # a stand-in
    module.nvmlDeviceGetHandleByUUID = lambda identity: identity  # type: ignore[attr-defined]  # a stand-in
    module.nvmlDeviceGetTotalEnergyConsumption = lambda handle: 5_000  # type: ignore[attr-defined]  # a stand-in
    for name, function in functions.items():
        setattr(module, name, function)
    return module


def gpus(current: int, *others: int) -> SimpleNamespace:
    """Return ``torch.cuda`` of a node with four GPUs, of which a process uses some."""
    return SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: current,
        device_count=lambda: 4,
        memory_reserved=lambda gpu: 2 << 20 if gpu in others else 0,
        get_device_properties=lambda gpu: SimpleNamespace(uuid=gpu),
    )


def raises(*_: object) -> None:
    raise RuntimeError("not supported")


@pytest.mark.parametrize("broken", ["", "nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetTotalEnergyConsumption"])
def test_a_gpu_without_energy_gives_no_power_and_no_error(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=gpus(0)))  # type: ignore[arg-type]  # a stand-in
    monkeypatch.setitem(sys.modules, "pynvml", nvml(**({broken: raises} if broken else {})))
    found = find_counters(local_rank=0)
    assert (found is None) == bool(broken)
    if found is not None:
        assert (found.kind, found.counters[0].key, found.counters[0].read()) == (GPUS, "GPU-0", 5.0)
    monkeypatch.delitem(sys.modules, "pynvml")
    assert find_counters(local_rank=0) is None  # never the packages beside a GPU


def test_a_process_with_several_gpus_reads_each_that_holds_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=gpus(1, 3)))  # type: ignore[arg-type]  # a stand-in
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    found = find_counters(local_rank=0)
    assert found is not None
    assert [counter.key for counter in found.counters] == ["GPU-1", "GPU-3"]
    unknown = nvml(nvmlDeviceGetTotalEnergyConsumption=lambda gpu: raises() if gpu == "GPU-3" else 5_000)
    monkeypatch.setitem(sys.modules, "pynvml", unknown)
    assert find_counters(local_rank=0) is None  # the others alone are not the job


def test_only_the_first_rank_of_a_node_reads_packages(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False)))  # type: ignore[arg-type]
    assert find_counters(local_rank=1, powercap=powercap) is None
    found = find_counters(local_rank=0, powercap=powercap)
    assert found is not None
    assert (found.kind, len(found.counters)) == (PACKAGES, 2)


def energy_of_job(kind: str, watts: dict[str, float], *, world_size: int, nnodes: int) -> JobEnergy:
    job = read_job_environment({"WORLD_SIZE": str(world_size), "GROUP_WORLD_SIZE": str(nnodes)})
    energy = JobEnergy(job)
    energy._meter = SimpleNamespace(watts=lambda _: watts, counters=SimpleNamespace(kind=kind))  # type: ignore[assignment]
    return energy


@pytest.mark.parametrize(
    ("kind", "world_size", "nnodes", "others", "total"),
    [
        (GPUS, 3, 1, ({"b": 200.0}, {"c": 50.0}), 350.0),
        (GPUS, 3, 1, ({"b": 200.0},), None),
        (GPUS, 2, 1, ({"a": 100.0},), 100.0),  # two ranks share one
        (PACKAGES, 8, 2, ({"b": 60.0, "c": 40.0},), 200.0),
        (PACKAGES, 8, 2, (), None),
        (PACKAGES, 1, 1, (), 100.0),
    ],
)
def test_the_power_of_a_job_is_the_sum_of_all_its_parts(
    kind: str, world_size: int, nnodes: int, others: tuple[dict[str, float], ...], total: float | None
) -> None:
    energy = energy_of_job(kind, {"a": 100.0}, world_size=world_size, nnodes=nnodes)
    work = RankWork(watts=others)
    found = energy.added_to(Measurement(tokens_per_second=700.0), work)
    assert found is not None
    assert found.power_watts == total
    assert found.power_of == (kind if total else "")
    assert energy.lacks(work) == (total is None)


def test_a_launch_records_the_power_of_its_packages(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the job's part of the recorder, with a training that steps."""
    monkeypatch.setattr(energy_counters, "_POWERCAP", powercap)
    monkeypatch.setattr(
        "torchx_cubicml.recorder.host.job_energy.find_counters",
        lambda local_rank: find_counters(local_rank=local_rank, powercap=powercap),
    )
    monkeypatch.setattr("torchx_cubicml.recorder.host.energy_meter._SHORTEST_S", 0.01)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False)))  # type: ignore[arg-type]
    training = SimpleNamespace(steps=8, notes=SimpleNamespace(left=0), coverage=SimpleNamespace(number=1))
    energy = JobEnergy(read_job_environment({}))
    energy.reported(training)  # type: ignore[arg-type]  # a stand-in
    time.sleep(0.05)
    training.steps = 16
    (powercap / "intel-rapl:0" / "energy_uj").write_text("30000000\n")
    energy.reported(training)  # type: ignore[arg-type]  # a stand-in
    energy.stop()
    found = energy.added_to(Measurement(tokens_per_second=700.0), None)
    assert found is not None
    assert found.power_of == PACKAGES
    assert found.power_watts is not None
    assert 0.0 < found.power_watts <= 30.0 / 0.05
