"""A rewritten launch that fails early goes on as typed, in the same job, under torchrun and TorchX."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch.distributed import TCPStore

from tests.spaces import BATCH_SIZES
from torchx_cubicml.cubicrun import Plan, plan_launch
from torchx_cubicml.records.trial import Origin, State, Trial
from torchx_cubicml.store import TrialStore

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.launch

SCRIPT = Path(__file__).resolve().parent.parent / "jobs" / "fails_early.py"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int) -> Path:
    """Make a working directory with a script and a store in which a batch of 8 is fastest."""
    shutil.copy(SCRIPT, tmp_path / "train.py")
    (tmp_path / "space.toml").write_text(BATCH_SIZES)
    (tmp_path / "shown").touch()
    store = TrialStore(str(tmp_path / "store"))
    for world_size in (1, 2):
        for batch in (1, 2, 4, 8):
            store.add(
                Trial.completed(
                    workload={"program": "train.py", "world_size": world_size},
                    config={"micro_batch_size": batch, "gradient_accumulation_steps": 16 // batch},
                    tokens_per_second=9000.0 if batch == 8 else 1000.0 + batch,
                )
            )
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "SHOWN": str(tmp_path / "shown"),
        "TORCHX_CUBICML_STORE": str(tmp_path / "store"),
        "TORCHX_CUBICML_CACHE": "off",
        "PET_MASTER_PORT": str(free_port),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def typed(fail: str) -> list[str]:
    return ["train.py", "--batch_size", "2", "--accumulate", "8", "--fail", fail]


def plan(*options: str, fail: str, world_size: int = 1) -> Plan:
    return plan_launch({"space": "space.toml"}, ["--nproc_per_node", str(world_size), *options, *typed(fail)])


def start(planned: Plan, **more: object) -> subprocess.Popen[str]:
    """Start what ``cubicrun`` replaces itself with, without a process for the plan."""
    pipe = subprocess.PIPE
    environment = {**os.environ, **planned.env}
    return subprocess.Popen(planned.command, env=environment, stdout=pipe, stderr=pipe, text=True, **more)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the end of a process; return its exit code and stderr."""
    with process:
        try:
            _, said = process.communicate(timeout=600)
        finally:
            process.kill()
    return process.returncode, said


def run(*options: str, fail: str, world_size: int = 1) -> tuple[int, str]:
    return ended(start(plan(*options, fail=fail, world_size=world_size)))


def shown(folder: Path, *names: str) -> list[list[object]]:
    """Return what the ranks saw, without repeats: a rank may be ended before it writes."""
    lines = [json.loads(line) for line in (folder / "shown").read_text().splitlines()]
    seen = [[line[name] for name in names] for line in lines]
    return [each for position, each in enumerate(seen) if each not in seen[:position]]


def new_trials(folder: Path) -> dict[Origin, Trial]:
    trials = [trial for trial in TrialStore(str(folder / "store")) if trial.origin is not Origin.IMPORT]
    assert len({trial.origin for trial in trials}) == len(trials)
    return {trial.origin: trial for trial in trials}


def test_an_early_failure_goes_on_as_typed_and_the_next_launch_knows(folder: Path) -> None:
    done = subprocess.run(
        ["cubicrun", "--cubicml-space", "space.toml", *typed("error")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the rewritten command failed before its first measured steps; starting again") == 1
    assert "moved aside what the failed command had made: runs -> runs.failed-" in done.stderr
    assert shown(folder, "batch") == [[8], [2]]
    assert len(shown(folder, "agent")) == 1, "the same process goes on"
    assert_recorded(folder, state=State.USER_ERROR, reason="the rewritten command failed")
    assert (folder / "runs" / "out" / "lock").exists()
    (aside,) = folder.glob("runs.failed-*")
    assert (aside / "out" / "lock").exists()
    following = plan(fail="error")
    assert following.args[-6:] == ("--batch_size", "2", "--accumulate", "8", "--fail", "error")
    assert following.second_args == ()


def test_a_crash_of_one_rank_goes_on_as_typed(folder: Path) -> None:
    code, stderr = run(fail="SIGSEGV", world_size=2)
    assert code == 0, stderr
    said = "the rewritten command was ended by SIGSEGV before its first measured steps"
    assert f"{said}; starting again as you typed it" in stderr
    assert shown(folder, "batch") == [[8], [2]]
    assert_recorded(folder, state=State.UNKNOWN, reason=said)


@pytest.mark.parametrize("fail", ["SIGTERM", "SIGKILL", "error@saved"])
def test_other_failures_are_the_jobs_own(folder: Path, fail: str) -> None:
    code, stderr = run(fail=fail)
    assert code == 1
    assert "starting again" not in stderr
    assert "\ntrain.py FAILED\n" in stderr, "torchrun names the program"
    assert shown(folder, "batch") == [[8]]
    assert (folder / "runs" / "out" / "lock").exists()


def test_a_failure_as_typed_is_the_jobs_own_with_its_variables_and_restarts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "space.toml").write_text('[parameters.text]\nchoices = ["a", "b"]\nenv = "TEXT"\n')
    store = TrialStore(str(folder / "texts"))
    for text, speed in (("a", 1.0), ("b", 2.0)):
        workload = {"program": "train.py", "world_size": 1}
        store.add(Trial.completed(workload=workload, config={"text": text}, tokens_per_second=speed))
    monkeypatch.setenv("TEXT", "a")
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(folder / "texts"))
    code, stderr = run("--max_restarts", "1", fail="error@always")
    assert code == 1
    assert stderr.count("starting again as you typed it") == 1
    assert stderr.count("\ntrain.py FAILED\n") == 1
    assert shown(folder, "text", "restarts") == [["b", 0], ["b", 1], ["a", 0], ["a", 1]]
    trials = [trial for trial in TrialStore(str(folder / "texts")) if trial.origin is not Origin.IMPORT]
    assert {trial.origin: trial.state for trial in trials} == dict.fromkeys(
        (Origin.REWRITE, Origin.USER), State.USER_ERROR
    )


def test_a_restart_that_helps_is_made(folder: Path) -> None:
    code, stderr = run("--max_restarts", "2", fail="error+SIGKILL@once")
    assert (code, "starting again" in stderr) == (0, False), stderr
    assert shown(folder, "batch", "restarts") == [[8, 0], [8, 1], [8, 2]]


def test_a_signal_ends_the_job(folder: Path) -> None:
    process = start(plan(fail="wait"))
    try:
        until = time.monotonic() + 120
        while not (folder / "shown").read_text():
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        code, stderr = ended(process)
    finally:
        process.kill()
    assert "starting again" not in stderr
    assert code == 1, "as of torchrun"
    assert shown(folder, "batch") == [[8]]


def test_the_kernel_kills_for_memory(folder: Path) -> None:
    with limited_memory(1 << 30) as join:  # the program is the largest process by far when it is reached
        code, stderr = ended(start(plan(fail="grow"), preexec_fn=join))
    assert code == 0, stderr
    assert "the rewritten command ran out of memory before its first measured steps" in stderr
    assert shown(folder, "batch") == [[8], [2]]
    assert new_trials(folder)[Origin.REWRITE].state is State.OUT_OF_MEMORY


NODES = {
    "c10d": "--rdzv_backend c10d --rdzv_endpoint localhost:{port} --rdzv_id 7",
    "static": "--master_addr 127.0.0.1 --master_port {port} --node_rank {node}",
}


@pytest.mark.parametrize(
    ("rendezvous", "fail", "in_job"),
    [("c10d", "error@node1", True), ("static", "exit@node0", False)],
    ids=["rank 0 decides", "decided before"],
)
def test_nodes_go_on_together(folder: Path, free_port: int, rendezvous: str, fail: str, in_job: bool) -> None:
    done = run_nodes(rendezvous, fail, port=free_port, in_job=in_job)
    assert [code for code, _ in done] == [0, 0], done
    assert [said.count("starting again as you typed it") for _, said in done] == [1, 1]
    assert sorted(shown(folder, "batch")) == [[2], [8]]
    assert_recorded(folder, state=State.USER_ERROR, reason="the rewritten command failed")


def test_nodes_end_together_where_one_must_not_start_again(folder: Path, free_port: int) -> None:
    done = run_nodes("c10d", "error@saved", port=free_port)
    assert [code for code, _ in done] == [1, 1], done
    assert not any("starting again" in said for _, said in done)
    assert any("\ntrain.py FAILED\n" in said for _, said in done)
    assert shown(folder, "batch") == [[8]]


def test_a_rendezvous_that_stays_closed_allows_no_second_attempt(folder: Path) -> None:
    outside = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    options = f"--rdzv_backend c10d --rdzv_endpoint localhost:{outside.port} --rdzv_id 7"
    code, stderr = run(*options.split(), fail="error")
    assert code == 1
    assert "RendezvousClosedError" not in stderr
    said = "could not start again as you typed it: the rendezvous is hosted outside this launch, and stays closed"
    assert stderr.count(said) == 1
    assert shown(folder, "batch") == [[8]]
    assert (folder / "runs" / "out" / "lock").exists(), "nothing is moved aside"


def run_nodes(rendezvous: str, fail: str, *, port: int, in_job: bool = False) -> list[tuple[int, str]]:
    """Run the launch on two nodes at once; its config is that of one node with two processes, or rank 0 decides."""
    running, known = [], plan(fail=fail, world_size=2)
    for node in range(2):
        options = ["--nnodes", "2", *NODES[rendezvous].format(port=port, node=node).split()]
        args, second_args = ((*options, *words[2:]) for words in (known.args, known.second_args))
        planned = plan(*options, fail=fail) if in_job else replace(known, args=args, second_args=second_args)
        running.append(start(planned))
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(ended, running))


def assert_recorded(folder: Path, *, state: State, reason: str = "the rewritten command ") -> None:
    """Assert that the rewritten command is recorded with its failure, and then the typed one."""
    trials = new_trials(folder)
    first, second = trials[Origin.REWRITE], trials[Origin.USER]
    assert (first.state, second.state) == (state, State.COMPLETED)
    assert second.config == {"micro_batch_size": 2, "gradient_accumulation_steps": 8}
    assert second.trial_id == f"{first.trial_id}-as-typed"
    assert str(second.observed["runs_as_typed"]).startswith(reason)


@pytest.mark.parametrize(("size", "count"), [("1x1", 1), ("2x1", 2)])
def test_torchx_goes_on_as_typed(folder: Path, free_port: int, size: str, count: int) -> None:
    torchx = ["torchx", "run", "-s", "local_cwd", "-c", f"log_dir={folder}/logs", "cubicml", "--space", "space.toml"]
    component = ["dist.ddp", "-j", size, "--rdzv_port", str(free_port), "--script"]
    script, *args = typed("memory")
    done = subprocess.run(
        [*torchx, "--store", str(folder / "store"), *component, script, "--", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said = "the rewritten command ran out of memory before its first measured steps; starting again as you typed it"
    assert done.stderr.count(said) == count
    assert sorted(shown(folder, "batch")) == [[2], [8]]
    assert_recorded(folder, state=State.OUT_OF_MEMORY)
    assert new_trials(folder)[Origin.REWRITE].trial_id.startswith("local_cwd-")


@contextmanager
def limited_memory(limit: int) -> Iterator[object]:
    """Make a control group with so many bytes of memory, and yield a function by which a process joins it."""
    root = Path("/sys/fs/cgroup")
    second = (root / "cgroup.controllers").exists()
    group = (root if second else root / "memory") / f"cubicml-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(limit))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group with a limit can be made here: {error}")
    try:
        yield lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        until = time.monotonic() + 300
        while (group / "cgroup.procs").read_text().strip() and time.monotonic() < until:
            time.sleep(0.1)
        group.rmdir()
