"""A rewritten launch that fails early goes on as typed, in the same job, under torchrun and TorchX."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spaces import BATCH_SIZES
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


def command(*options: str, fail: str, world_size: int = 1) -> list[str]:
    typed = ["train.py", "--batch_size", "2", "--accumulate", "8", "--fail", fail]
    launcher = ["cubicrun", "--cubicml-space", "space.toml", "--nproc_per_node", str(world_size)]
    return [*launcher, *options, *typed]


def launch(*options: str, fail: str, **more: object) -> subprocess.CompletedProcess[str]:
    done = command(*options, fail=fail, world_size=2)
    return subprocess.run(done, capture_output=True, text=True, check=False, timeout=300, **more)


def shown(folder: Path, *names: str) -> list[list[object]]:
    """Return what the ranks saw, without repeats: a rank may be ended before it writes."""
    lines = [json.loads(line) for line in (folder / "shown").read_text().splitlines()]
    seen = [[line[name] for name in names] for line in lines]
    return [each for position, each in enumerate(seen) if each not in seen[:position]]


def new_trials(folder: Path) -> dict[Origin, Trial]:
    trials = [trial for trial in TrialStore(str(folder / "store")) if trial.origin is not Origin.IMPORT]
    assert len({trial.origin for trial in trials}) == len(trials)
    return {trial.origin: trial for trial in trials}


@pytest.mark.parametrize(
    ("fail", "state", "said"),
    [
        ("error", State.USER_ERROR, "failed"),
        ("exit", State.USER_ERROR, "failed"),
        ("memory", State.OUT_OF_MEMORY, "ran out of memory"),
        ("SIGSEGV", State.UNKNOWN, "was ended by SIGSEGV"),
    ],
)
def test_an_early_failure_goes_on_as_typed(folder: Path, fail: str, state: State, said: str) -> None:
    done = launch(fail=fail)
    assert done.returncode == 0, done.stderr
    assert (
        f"the rewritten command {said} before its first measured steps; starting again as you typed it" in done.stderr
    )
    assert "moved aside what the failed command had made: runs -> runs.failed-" in done.stderr
    assert shown(folder, "batch") == [[8], [2]]
    assert len(shown(folder, "agent")) == 1, "the same process goes on"
    trials = new_trials(folder)
    assert trials[Origin.REWRITE].state is state
    assert trials[Origin.USER].state is State.COMPLETED
    assert trials[Origin.USER].config == {"micro_batch_size": 2, "gradient_accumulation_steps": 8}
    assert trials[Origin.USER].trial_id == f"{trials[Origin.REWRITE].trial_id}-as-typed"
    assert str(trials[Origin.USER].observed["runs_as_typed"]).startswith(f"the rewritten command {said}")
    assert (folder / "runs" / "out" / "lock").exists()
    (aside,) = folder.glob("runs.failed-*")
    assert (aside / "out" / "lock").exists()


@pytest.mark.parametrize("fail", ["SIGTERM", "SIGKILL", "error@saved"])
def test_other_failures_are_the_jobs_own(folder: Path, fail: str) -> None:
    done = launch(fail=fail)
    assert done.returncode == 1
    assert "starting again" not in done.stderr
    assert "ChildFailedError" in done.stderr
    assert shown(folder, "batch") == [[8]]
    assert (folder / "runs" / "out" / "lock").exists()


def test_a_failure_as_typed_is_the_jobs_own(folder: Path) -> None:
    done = launch(fail="error@always")
    assert done.returncode == 1
    assert done.stderr.count("starting again as you typed it") == 1
    assert shown(folder, "batch") == [[8], [2]]
    assert {trial.state for trial in new_trials(folder).values()} == {State.USER_ERROR}


def test_a_launch_can_do_without(folder: Path) -> None:
    (folder / "space.toml").write_text(f"{BATCH_SIZES}\n[rewrite]\nretry_as_typed = false\n")
    done = launch(fail="error")
    assert (done.returncode, "starting again" in done.stderr) == (1, False)
    assert set(new_trials(folder)) == {Origin.REWRITE}


def test_either_command_has_its_restarts(folder: Path) -> None:
    done = launch("--max_restarts", "2", fail="error")
    assert done.returncode == 0, done.stderr
    assert shown(folder, "batch", "restarts") == [[8, 0], [8, 1], [8, 2], [2, 0]]


@pytest.mark.parametrize("fail", ["SIGKILL@once", "error@once"])
def test_a_restart_that_helps_is_made(folder: Path, fail: str) -> None:
    done = launch("--max_restarts", "2", fail=fail)
    assert (done.returncode, "starting again" in done.stderr) == (0, False), done.stderr
    assert shown(folder, "batch", "restarts") == [[8, 0], [8, 1]]


def test_a_signal_ends_the_job(folder: Path) -> None:
    with subprocess.Popen(command(fail="wait"), stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 120
        while not (folder / "shown").read_text():
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    assert "starting again" not in said
    assert process.returncode == 1, "as of torchrun"
    assert shown(folder, "batch") == [[8]]


def test_the_kernel_kills_for_memory(folder: Path) -> None:
    with limited_memory(700 << 20) as join:
        done = launch(fail="grow", preexec_fn=join)
    assert done.returncode == 0, done.stderr
    assert "the rewritten command ran out of memory before its first measured steps" in done.stderr
    assert shown(folder, "batch") == [[8], [2]]
    assert new_trials(folder)[Origin.REWRITE].state is State.OUT_OF_MEMORY


def test_the_next_launch_knows(folder: Path) -> None:
    launch(fail="error")
    (folder / "shown").write_text("")
    (folder / "runs").rename("before")
    done = launch(fail="error")
    assert done.returncode == 0, done.stderr
    assert shown(folder, "batch") == [[2]]
    assert "starting again" not in done.stderr


def test_variables_are_as_typed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "space.toml").write_text('[parameters.text]\nchoices = ["a", "b"]\nenv = "TEXT"\n')
    store = TrialStore(str(folder / "texts"))
    for text, speed in (("a", 1.0), ("b", 2.0)):
        workload = {"program": "train.py", "world_size": 2}
        store.add(Trial.completed(workload=workload, config={"text": text}, tokens_per_second=speed))
    monkeypatch.setenv("TEXT", "a")
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(folder / "texts"))
    done = launch(fail="error@always")
    assert done.returncode == 1
    assert shown(folder, "text") == [["b"], ["a"]]


NODES = {
    "c10d": "--rdzv_backend c10d --rdzv_endpoint localhost:{port} --rdzv_id 7",
    "static": "--master_addr 127.0.0.1 --master_port {port} --node_rank {node}",
}


@pytest.mark.parametrize(
    ("rendezvous", "fail"), [("c10d", "error@node1"), ("static", "memory@node0"), ("c10d", "memory")]
)
def test_nodes_go_on_together(folder: Path, free_port: int, rendezvous: str, fail: str) -> None:
    done = launch_nodes(rendezvous, fail, port=free_port)
    assert [code for code, _ in done] == [0, 0], done
    assert [said.count("starting again as you typed it") for _, said in done] == [1, 1]
    assert sorted(shown(folder, "batch")) == [[2], [8]]
    trials = new_trials(folder)
    assert trials[Origin.REWRITE].state in {State.USER_ERROR, State.OUT_OF_MEMORY}
    assert trials[Origin.USER].state is State.COMPLETED
    assert trials[Origin.USER].trial_id == f"{trials[Origin.REWRITE].trial_id}-as-typed"


def test_nodes_end_together_where_one_must_not_start_again(folder: Path, free_port: int) -> None:
    done = launch_nodes("c10d", "error@saved", port=free_port)
    assert [code for code, _ in done] == [1, 1], done
    assert not any("starting again" in said for _, said in done)
    assert shown(folder, "batch") == [[8]]


def launch_nodes(rendezvous: str, fail: str, *, port: int) -> list[tuple[int, str]]:
    """Run cubicrun for each of two nodes at once, and return exit codes and stderr."""
    running = [
        subprocess.Popen(
            command("--nnodes", "2", *NODES[rendezvous].format(port=port, node=node).split(), fail=fail),
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    try:
        said = [process.communicate(timeout=240)[1] for process in running]
        return [(process.returncode, text) for process, text in zip(running, said, strict=True)]
    finally:
        for process in running:
            process.kill()


@pytest.mark.parametrize(
    "component",
    [
        "dist.ddp -j 1x2 --script train.py",
        "shell.py:torchrun",
        "shell.py:module",
        "dist.ddp -j 2x1 --rdzv_port {port} --script train.py",
    ],
)
def test_torchx_goes_on_as_typed(folder: Path, free_port: int, component: str) -> None:
    component = component.format(port=free_port)
    (folder / "shell.py").write_text(COMPONENTS)
    typed = ["--", "--batch_size", "2", "--accumulate", "8", "--fail", "error"]
    torchx = ["torchx", "run", "-s", "local_cwd", "-c", f"log_dir={folder}/logs"]
    done = subprocess.run(
        [*torchx, "cubicml", "--space", "space.toml", "--store", str(folder / "store"), *component.split(), *typed],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "starting again as you typed it" in done.stderr
    assert shown(folder, "batch") == [[8], [2]]
    trials = new_trials(folder)
    assert trials[Origin.REWRITE].trial_id.startswith("local_cwd-")
    assert trials[Origin.USER].trial_id == f"{trials[Origin.REWRITE].trial_id}-as-typed"


COMPONENTS = '''
import sys
from torchx.specs import AppDef, Role


def torchrun(*args: str) -> AppDef:
    """Runs torchrun without a shell.

    Args:
        args: of the script
    """
    words = ["--nproc_per_node", "2", "train.py", *args]
    return AppDef(name="job", roles=[Role(name="job", image="", entrypoint="torchrun", args=words)])


def module(*args: str) -> AppDef:
    """Runs torchrun as a module.

    Args:
        args: of the script
    """
    words = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "train.py", *args]
    return AppDef(name="job", roles=[Role(name="job", image="", entrypoint=sys.executable, args=words)])
'''


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
        until = time.monotonic() + 30
        while (group / "cgroup.procs").read_text().strip() and time.monotonic() < until:
            time.sleep(0.1)
        group.rmdir()
