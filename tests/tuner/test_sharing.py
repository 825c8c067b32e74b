"""Launches in flight on one host: a set of devices for each, or one at a time."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.tune.cluster import Killed, SimulatedCluster, runner_of
from tests.tune.draws import Draws, prepare_in
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.space import Binding, Parameter
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.space.parameter import BindingKind
from torchx_cubicml.tuner import Begun, Budget, Notice, Prepared, Step, tune
from torchx_cubicml.tuner.scheduler.devices import usable_devices
from torchx_cubicml.tuner.scheduler.jobs import JobRunner
from torchx_cubicml.tuner.sharing import Sharing, divide, share_host

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

FATES = ("done", "done", "done", "oom", "node", "preempted", "lost", "silent", "raises", "requeued")
ON_DEVICES = {"world_size": 2, "device": "NVIDIA H200", "devices_per_node": 1}
ON_CPU = {"world_size": 2, "device": "cpu"}
NOT_SHRUNK = (Phase.explicit, Phase.generate)  # each case is a whole tune
KILLS = st.lists(st.integers(10, 400), max_size=3)  # calls; a process that is gone has had its lease
WORDS = st.sampled_from([*map(str, range(10)), "GPU-1f", "MIG-2e", "-1", "x", ""])


class HostRunner(JobRunner):
    """The simulated cluster as one host, with its devices; jobs of a killed tuner are found again."""

    def __init__(self, cluster: SimulatedCluster, count: int, *, indivisible: str = "") -> None:
        super().__init__("sim", runner=runner_of(cluster))
        self.cluster, self.count, self.indivisible = cluster, count, indivisible

    shares_host = True
    finds = True

    @property
    def why_indivisible(self) -> str:
        return self.indivisible

    def devices(self, visible: str | None) -> tuple[str, ...]:
        return usable_devices(visible, [str(number) for number in range(self.count)])

    def find(self, launch_ids: Collection[str]) -> Mapping[str, str]:
        jobs = {job.contract.launch_id: name for name, job in self.cluster.jobs.items()}
        return {name: f"sim://torchx/{jobs[name]}" for name in launch_ids if name in jobs}

    def submitting(self, launch_ids: Collection[str]) -> bool:
        del launch_ids
        return False


def asked(prepared: Prepared, *, parallel: int, processes: int | None, visible: str | None = None) -> Prepared:
    launch = replace(
        prepared.component.launch,
        nproc_per_node=processes,
        env={} if visible is None else {"CUDA_VISIBLE_DEVICES": visible},
    )
    request = replace(prepared.request, parallel=parallel, budget=Budget(launches=10), queue_timeout_s=1e6)
    return replace(prepared, request=request, component=replace(prepared.component, launch=launch))


def run_through(prepared: Prepared, cluster: SimulatedCluster, count: int, kills: list[int]) -> list[Step]:
    """Return the steps of a tune whose process is killed after each number of calls, and of those that resume it."""
    steps: list[Step] = []
    for kill_in in [*kills, 0]:
        cluster.kill_in = kill_in
        jobs = HostRunner(cluster, count)
        with suppress(Killed, LaunchError):  # too many failures or rejections in a row end a tune
            steps.extend(tune(prepared, jobs=jobs, clock=cluster, advisor=Draws()))
    return steps


def overlapping(cluster: SimulatedCluster) -> list[tuple[str, str]]:
    """Return the devices of each pair of jobs that were in flight at once."""
    jobs = cluster.jobs.values()
    pairs = [(a, b) for a, b in combinations(jobs, 2) if a.submitted < b.ends and b.submitted < a.ends]
    return [(a.devices or "", b.devices or "") for a, b in pairs]


def devices_in(text: str | None) -> set[str]:
    return set(text.split(",")) if text else set()


@st.composite
def hosts(draw: st.DrawFn) -> tuple[int, str | None]:
    """A number of devices, and the user's CUDA_VISIBLE_DEVICES among them."""
    count = draw(st.integers(0, 8))
    chosen = draw(st.none() | st.lists(st.integers(0, 9).map(str), unique=True, max_size=8).map(",".join))
    return count, chosen


@settings(max_examples=15, phases=NOT_SHRUNK)
@given(
    hosts(),
    st.integers(2, 5),
    st.integers(1, 3),
    st.integers(0, 10**6),
    KILLS,
    st.sampled_from([ON_DEVICES, ON_DEVICES, ON_CPU]),
)
def test_launches_in_flight_never_share_a_device(
    host: tuple[int, str | None],
    parallel: int,
    processes: int,
    seed: int,
    kills: list[int],
    observed: dict[str, str | int],
) -> None:
    count, visible = host
    allowed = usable_devices(visible, [str(number) for number in range(count)])
    cluster = SimulatedCluster(seed=seed, fates=FATES, observed=observed, rejects=0.1)
    with tempfile.TemporaryDirectory() as folder:
        prepared = asked(prepare_in(Path(folder)), parallel=parallel, processes=processes, visible=visible)
        steps = run_through(prepared, cluster, count, kills)
    fit = len(allowed) // processes
    if fit < 2 or observed is ON_CPU:
        assert overlapping(cluster) == []
        assert any(isinstance(step, Notice) and "one at a time" in step.text for step in steps)
    for ours, others in overlapping(cluster):
        assert devices_in(ours).isdisjoint(devices_in(others)), (ours, others)
    for job in cluster.jobs.values():
        assert devices_in(job.devices) <= set(allowed)
        assert len(devices_in(job.devices)) == (processes if fit >= 2 else 0)


@settings(max_examples=8, phases=NOT_SHRUNK)
@given(st.integers(2, 5), st.integers(0, 10**6), KILLS, st.booleans())
def test_one_launch_at_a_time_where_a_host_cannot_be_divided(
    parallel: int, seed: int, kills: list[int], rounds: bool
) -> None:
    cluster = SimulatedCluster(seed=seed, fates=FATES, rejects=0.1)
    with tempfile.TemporaryDirectory() as folder:
        prepared = asked(prepare_in(Path(folder)), parallel=parallel, processes=2)
        prepared = replace(prepared, request=replace(prepared.request, rounds=rounds))
        steps = run_through(prepared, cluster, 0, kills)
    assert overlapping(cluster) == []
    texts = [step.text for step in steps if isinstance(step, Notice)]
    begun = [step for step in steps if isinstance(step, Begun)]
    assert len(texts) == len(begun)  # said once by each process
    assert {step.at_a_time for step in begun} == {1}
    assert all(f"one at a time, not {parallel}: only NVIDIA devices can be divided" in text for text in texts)


def test_launches_that_ask_for_different_devices_run_one_at_a_time(prepared: Prepared) -> None:
    option = Binding(kind=BindingKind.COMPONENT, name="--gpu")
    space = replace(prepared.space, parameters=(Parameter(name="gpus", choices=(1, 2), binding=option),))
    found = share_host(
        replace(asked(prepared, parallel=3, processes=1), space=space), HostRunner(SimulatedCluster(), 8), [], wanted=3
    )
    assert found.text == ("launches run one at a time, not 3: launches differ in the devices that they ask for (--gpu)")


def test_devices_are_in_use_together(prepared: Prepared) -> None:
    cluster = SimulatedCluster(fates=("done",), observed=ON_DEVICES)
    steps = run_through(asked(prepared, parallel=3, processes=2, visible="5,1,4,3"), cluster, 8, [])
    assert {each for pair in overlapping(cluster) for each in pair} == {"5,1", "4,3"}
    first, *rest = (step.text for step in steps if isinstance(step, Notice))
    assert "one at a time until one shows that it trains on a device" in first
    assert rest == [
        "launches run 2 at a time, not 3: each gets 2 of the 4 devices of this host (CUDA_VISIBLE_DEVICES=5,1,4,3)"
    ]


def test_a_training_found_on_the_processors_runs_alone(prepared: Prepared) -> None:
    cluster = SimulatedCluster(fates=("done",), observed=ON_CPU)
    steps = run_through(asked(prepared, parallel=2, processes=1), cluster, 4, [])
    assert overlapping(cluster) == []
    texts = [step.text for step in steps if isinstance(step, Notice)]
    assert len(texts) == 2
    assert "one at a time, not 2: the training runs on the processors" in texts[1]


@pytest.mark.parametrize(
    ("derives", "words"),
    [(False, "the command does not state the number of processes; give a number"), (True, "the space file derives")],
)
def test_an_unknown_number_of_processes_is_told_by_its_cause(prepared: Prepared, *, derives: bool, words: str) -> None:
    prepared = asked(prepared, parallel=3, processes=None)
    if derives:
        processes = Parameter(
            name="processes",
            derive=parse_expression("2 * 1", where="x"),
            binding=Binding(kind=BindingKind.TORCHRUN, name="nproc_per_node"),
        )
        space = replace(prepared.space, parameters=(*prepared.space.parameters, processes))
        prepared = replace(prepared, space=space)
    sharing = share_host(prepared, HostRunner(SimulatedCluster(), 4), [], wanted=3)
    assert (sharing.at_a_time, sharing.devices) == (1, ())
    assert sharing.text.startswith(f"launches run one at a time, not 3: {words}")


def test_launches_on_a_cluster_are_not_touched(prepared: Prepared) -> None:
    cluster = SimulatedCluster(fates=("done",), observed=ON_CPU)
    jobs = JobRunner("sim", runner=runner_of(cluster))
    steps = list(
        tune(asked(prepared, parallel=4, processes=1, visible="0,1"), jobs=jobs, clock=cluster, advisor=Draws())
    )
    assert not [step for step in steps if isinstance(step, Notice)]
    assert overlapping(cluster)
    assert {job.devices for job in cluster.jobs.values()} == {None}


@pytest.mark.parametrize(
    ("scheduler", "options", "words"),
    [
        ("local_docker", "", "local_docker gives each of them the same devices"),
        ("local_cwd", "auto_set_cuda_visible_devices=True", "leave it out"),
        ("local_cwd", "", ""),
    ],
)
def test_the_scheduler_tells_whether_it_divides_devices(scheduler: str, options: str, words: str) -> None:
    jobs = JobRunner(scheduler, scheduler_args=options)
    assert jobs.shares_host
    assert words in jobs.why_indivisible
    assert bool(words) == bool(jobs.why_indivisible)
    assert not JobRunner("slurm", scheduler_args="partition=a").shares_host


def test_devices_come_from_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    monkeypatch.setattr("torchx_cubicml.tuner.scheduler.jobs.list_devices", lambda: ("0", "1", "2"))
    jobs = JobRunner("local_cwd")
    assert jobs.devices(None) == ("2", "0")
    assert jobs.devices("1") == ("1",)  # set in the command
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert jobs.devices(None) == ("0", "1", "2")


@given(st.none() | st.lists(WORDS, max_size=6).map(",".join), st.none() | st.integers(0, 8))
def test_a_device_that_is_not_there_hides_those_after_it(visible: str | None, count: int | None) -> None:
    listed = None if count is None else [str(number) for number in range(count)]
    found = usable_devices(visible, listed)
    assert len(set(found)) == len(found)
    if visible is None:
        assert list(found) == (listed or [])
        return
    words = visible.split(",")
    assert list(found) == words[: len(found)]
    if len(found) < len(words):
        word = words[len(found)]
        exists = word.startswith(("GPU-", "MIG-")) or (word.isdigit() and (count is None or int(word) < count))
        assert word in found or not exists


@given(
    st.lists(st.integers(0, 99).map(str), unique=True, min_size=1, max_size=16),
    st.integers(1, 5),
    st.integers(2, 6),
    st.sampled_from([True, None]),
)
def test_as_many_launches_as_the_devices_allow(
    devices: list[str], per_launch: int, wanted: int, uses_devices: bool | None
) -> None:
    sharing = divide(devices, per_launch=per_launch, wanted=wanted, uses_devices=uses_devices)
    assert 1 <= sharing.at_a_time <= wanted
    assert sharing.at_a_time * sharing.per_launch <= len(devices)
    assert sharing.text
    assert "\n" not in sharing.text
    if uses_devices and sharing.at_a_time < wanted:
        assert (sharing.at_a_time + 1) * per_launch > len(devices)


def test_a_launch_of_unknown_devices_leaves_none() -> None:
    sharing = Sharing(at_a_time=3, devices=("0", "1", "2"), per_launch=1)
    assert sharing.free([("1",)]) == ("0", "2")
    assert sharing.has_room([("1",)])
    assert sharing.free([("1",), None]) == ()
    assert not sharing.has_room([None])  # of an older release, or of a tune of one launch at a time
