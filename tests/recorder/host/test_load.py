"""Load beside a job, on process tables that are written by hand or generated, and on this machine."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx_cubicml.recorder.events.writer import EventWriter
from torchx_cubicml.recorder.host import load
from torchx_cubicml.recorder.host.load import (
    HostLoad,
    HostTimes,
    JobProcesses,
    device_facts,
    load_facts,
    read_host_times,
)
from torchx_cubicml.records.event import Event, EventKind
from torchx_cubicml.records.trial import State
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Iterator

LEADER, RANK, LOADER, STRANGER, AGENT = 100, 101, 102, 103, 99
RENDEZVOUS = b"PATH=/bin\0MASTER_ADDR=node-1\0MASTER_PORT=29500\0"
STARTED = Event(kind=EventKind.STARTED, trial_id="t-1", writer="rank0")
MEASURED = Event(kind=EventKind.MEASURED, trial_id="t-1", writer="rank0", sequence=1)
ON_DEVICES = Event(
    kind=EventKind.MEASURED, trial_id="t-1", writer="rank0", sequence=1, observed={"devices_per_node": 8}
)
ENDED = Event(kind=EventKind.ENDED, trial_id="t-1", writer="rank0", sequence=2, state=State.COMPLETED)


def write_process(
    proc: Path, number: int, *, parent: int = 1, seconds: float = 0.0, of_ended: float = 0.0, environment: bytes = b""
) -> None:
    """Write a process as the kernel shows it; its name holds what could mislead a reader."""
    folder = proc / str(number)
    folder.mkdir(exist_ok=True)
    ticks, of_children = (round(each * load._TICKS_PER_S) for each in (seconds, of_ended))
    fields = [
        "S", parent, *[0] * 9, ticks // 2, ticks - ticks // 2, of_children // 2, of_children - of_children // 2,
        *[0] * 4, 10 * number, 0,
    ]  # fmt: skip
    (folder / "stat").write_text(f"{number} (a) name (S 1) {' '.join(map(str, fields))}\n")
    (folder / "environ").write_bytes(environment)


def end_process(proc: Path, number: int) -> None:
    for file in ("stat", "environ"):
        (proc / str(number) / file).unlink()
    (proc / str(number)).rmdir()


def test_the_job_is_its_rendezvous_and_its_descendants(tmp_path: Path) -> None:
    write_process(tmp_path, AGENT, seconds=40.0)
    write_process(tmp_path, LEADER, parent=AGENT, seconds=1.0, environment=RENDEZVOUS)
    write_process(tmp_path, RANK, parent=50, seconds=2.0, environment=RENDEZVOUS)  # of another node of the job
    write_process(tmp_path, LOADER, parent=RANK, seconds=4.0, of_ended=8.0)
    write_process(tmp_path, STRANGER, parent=AGENT, seconds=16.0, environment=RENDEZVOUS.replace(b"00", b"01"))
    (tmp_path / "104").mkdir()  # has just ended
    job = JobProcesses(LEADER, world_size=4, proc=tmp_path)
    assert job.is_known
    assert job.seconds() == 15.0
    assert job.ids == {LEADER, RANK, LOADER}


def test_a_job_of_one_process_needs_no_rendezvous(tmp_path: Path) -> None:
    write_process(tmp_path, LEADER, seconds=1.0)
    write_process(tmp_path, RANK, seconds=2.0)
    write_process(tmp_path, 7, seconds=4.0)
    job = JobProcesses(LEADER, world_size=1, helper=7, proc=tmp_path)
    assert job.is_known
    assert job.seconds() == 5.0
    assert not JobProcesses(LEADER, world_size=2, proc=tmp_path).is_known


def test_the_time_of_ended_processes_counts(tmp_path: Path) -> None:
    write_process(tmp_path, LEADER, seconds=1.0, environment=RENDEZVOUS)
    write_process(tmp_path, RANK, parent=50, seconds=2.0, environment=RENDEZVOUS)
    write_process(tmp_path, LOADER, parent=LEADER, seconds=4.0)
    job = JobProcesses(LEADER, world_size=2, proc=tmp_path)
    assert job.seconds() == 7.0
    end_process(tmp_path, RANK)
    end_process(tmp_path, LOADER)
    write_process(tmp_path, LEADER, seconds=1.0, of_ended=4.5, environment=RENDEZVOUS)
    assert job.seconds() == job.seconds() == 7.5
    write_process(tmp_path, LOADER, parent=1, seconds=64.0)  # its number, used again
    assert job.seconds() == 7.5


STEPS = st.lists(st.tuples(st.sampled_from(["burn", "fork", "end", "read"]), st.integers(0, 20)), max_size=30)


@given(STEPS, st.integers(1, 3))
def test_the_time_of_a_job_is_its_own_whatever_starts_and_ends(steps: list[tuple[str, int]], strangers: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        proc = Path(folder)
        parents = {LEADER: 1, **{10 + number: 1 for number in range(strangers)}}
        seconds, of_ended, own = dict.fromkeys(parents, 0), dict.fromkeys(parents, 0), {LEADER}
        for number in parents:
            write_process(proc, number, environment=RENDEZVOUS if number == LEADER else b"")
        job = JobProcesses(LEADER, world_size=2, proc=proc)
        before = 0.0
        for unused, (kind, choice) in enumerate(steps, start=1000):
            number = sorted(parents)[choice % len(parents)]
            if kind == "burn":
                seconds[number] += 1 + choice
            elif kind == "fork":
                parents[unused], seconds[unused], of_ended[unused] = number, 0, 0
                own |= {unused} if number in own else set()
            elif kind == "end" and parents[number] != 1 and number not in parents.values():
                parent = parents.pop(number)
                of_ended[parent] += seconds.pop(number) + of_ended.pop(number)
                end_process(proc, number)
            for each, parent in parents.items():
                environment = RENDEZVOUS if each == LEADER else b""
                write_process(
                    proc, each, parent=parent, seconds=seconds[each], of_ended=of_ended[each], environment=environment
                )
            if kind == "read":
                found = job.seconds()
                assert found == sum(seconds[each] + of_ended[each] for each in own & parents.keys())
                assert found >= before
                before = found


@given(st.floats(1, 1e5), st.integers(1, 512), st.floats(0, 1), st.floats(0, 1))
def test_what_others_took_is_what_the_job_did_not(elapsed: float, processors: int, busy: float, own: float) -> None:
    first = HostTimes(at=5.0, busy=7.0, idle=9.0, processors=processors), 3.0
    work = busy * processors * elapsed
    last = HostTimes(
        at=5.0 + elapsed, busy=7.0 + work, idle=9.0 + (1 - busy) * processors * elapsed, processors=processors
    )
    facts = load_facts(first, (last, 3.0 + own * work))
    assert facts["host_cpus"] == processors
    assert facts["other_busy_cpus"] == pytest.approx((1 - own) * busy * processors, abs=1e-3 * (1 + processors))
    assert facts["idle_cpus"] == pytest.approx((1 - busy) * processors, abs=1e-3 * (1 + processors))


def test_a_window_too_short_for_the_clock_tells_nothing() -> None:
    times = HostTimes(at=0.0, busy=0.0, idle=0.0, processors=2)
    assert load_facts((times, 0.0), (HostTimes(at=0.9, busy=1.0, idle=0.0, processors=2), 0.0)) == {}


def test_times_of_the_host(tmp_path: Path) -> None:
    tick = load._TICKS_PER_S
    (tmp_path / "stat").write_text("cpu  100 20 30 1000 50 7 8 9 1 1\ncpu0 1 1\ncpu1 1 1\nintr 1\ncpus 3 3\n")
    times = read_host_times(tmp_path)
    assert times is not None
    assert (times.busy * tick, times.idle * tick, times.processors) == (159.0, 1050.0, 2)


@pytest.mark.parametrize("text", [None, "", "cpu  1 2\n", "cpu  a b c d e f g h\ncpu0 1\n", "cpu  1 2 3 4 5 6 7 8\n"])
def test_a_host_that_shows_no_times(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "stat").write_text(text)
    assert read_host_times(tmp_path) is None


@pytest.mark.skipif(read_host_times() is None, reason="this host shows no processor times")
def test_this_process_is_seen_at_work() -> None:
    job = JobProcesses(os.getpid(), world_size=1)
    before, end = job.seconds(), time.process_time() + 0.3
    while time.process_time() < end:
        pass
    assert job.seconds() - before >= 0.25
    assert os.getpid() in job.ids


@pytest.mark.parametrize(
    ("text", "count", "share"),
    [
        ("", None, None),
        ("No devices were found\n", None, None),
        ("GPU-1, 50, 900\n", None, None),  # the job's own processes are not shown
        ("GPU-1, 7, 900\n", 0, 0.0),
        ("GPU-1, 7, 900\nGPU-1, 50, 300\nGPU-2, 51, 999\n", 1, 0.25),
        ("GPU-1, 7, 1\nGPU-2, 8, 1\nGPU-2, 50, 3\nGPU-1, 50, 1", 1, 0.75),
        ("GPU-1, 7, [N/A]\nGPU-1, 50, [N/A]\nGPU-1, 51, [N/A]", 2, 0.667),
        ("GPU-1, 7, 0\nGPU-1, [Insufficient Permissions], 5", 0, 0.0),
    ],
)
def test_other_processes_on_the_devices(text: str, count: int | None, share: float | None) -> None:
    known = {} if count is None else {"other_device_processes": count, "other_device_share": share}
    assert device_facts(text, own={7, 8}) == known


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the log of an ``nvidia-smi`` whose answer is in the file beside it, and which fails without."""
    tool, log = tmp_path / "nvidia-smi", tmp_path / "asked"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {log}\ncat {tmp_path}/answer\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return log


def test_devices_are_asked_for_while_a_job_on_them_is_measured(asked: Path) -> None:
    host_load = HostLoad(os.getpid(), world_size=1)
    answer = asked.parent / "answer"
    answer.write_text(f"GPU-1, {os.getpid()}, 30\nGPU-1, 999999, 10\n")
    assert host_load.facts(STARTED) == {}
    assert host_load.facts(MEASURED) == {}
    assert not asked.exists()
    expected = {"other_device_processes": 1, "other_device_share": 0.25}
    assert expected.items() <= host_load.facts(ON_DEVICES).items()
    answer.write_text(f"GPU-1, {os.getpid()}, 30\n")
    assert expected.items() <= host_load.facts(ON_DEVICES).items()  # the most of all readings
    assert expected.items() <= host_load.facts(ENDED).items()
    assert len(asked.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "part",
    [{"visible_devices": "MIG-8a3f"}, {"device": "NVIDIA A100-SXM4-40GB MIG 3g.20gb"}],
    ids=lambda each: next(iter(each)),
)
def test_others_on_the_parts_of_a_device_are_not_beside_a_job(asked: Path, part: dict[str, str]) -> None:
    (asked.parent / "answer").write_text(f"GPU-1, {os.getpid()}, 30\nGPU-1, 999999, 10\n")
    host_load = HostLoad(os.getpid(), world_size=1)
    known = host_load.facts(replace(ON_DEVICES, observed={**ON_DEVICES.observed, **part}))
    assert not {"other_device_processes", "other_device_share"} & known.keys()


def test_a_tool_that_fails_is_asked_once(asked: Path) -> None:
    host_load = HostLoad(os.getpid(), world_size=1)
    for _ in range(3):
        assert "other_device_share" not in host_load.facts(ON_DEVICES)
    assert len(asked.read_text().splitlines()) == 1


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield theirs


class Given(HostLoad):
    """A load that is given; reading the second one fails."""

    def __init__(self) -> None:
        self.readings = [{"other_busy_cpus": 1.5}]

    def facts(self, event: Event) -> dict[str, float]:
        del event
        return self.readings.pop()


def test_the_writer_adds_the_load_and_survives_its_failure(connection: socket.socket, tmp_path: Path) -> None:
    import json

    writer = EventWriter(connection, str(tmp_path), load=Given())
    for event in (MEASURED, ENDED):
        writer.take(json.dumps(event.to_json()).encode())
    writer.close(deadline_s=5)
    (trial,) = TrialStore(str(tmp_path))
    assert trial.observed == {"other_busy_cpus": 1.5}
    assert trial.state is State.COMPLETED
