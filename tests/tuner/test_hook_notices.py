"""A tune says before its first launch where a hook cannot serve; real tunes of programs without torch's wrappers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torchx_cubicml.store import TrialStore

pytestmark = pytest.mark.launch
TUNE = Path(__file__).resolve().parents[1] / "tune"
BATCH = """
objective = "samples_per_second"
[parameters.micro_batch_size]
choices = [1, 2]
flag = "--batch_size"
changes_training = true
"""
SHARDING = """
[parameters.sharding_strategy]
choices = ["FULL_SHARD", "SHARD_GRAD_OP"]
hook = "fsdp"
"""
MESH = """
[parameters.mesh]
mesh = ["dp_shard", "tp"]
hook = "mesh"
default = { tp = 1 }
"""
DOUBT = "\nif args.steps < 0:\n    import a_library_that_wraps\n"
OPEN = "the first launch tells whether these hooks serve the program: "


PROGRAM = [f"{TUNE}/components.py:quick", "--script", "train.py", "--", "--batch_size", "1", "--seconds", "0.2"]


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["torchx", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=600)


def tune(folder: Path, space: str, added: str = "", launches: int = 1) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text((TUNE / "quick.py").read_text() + added)
    (folder / "space.toml").write_text(space)
    options = ["--space", "space.toml", "--store", "store", "--scratch", "scratch", "--budget", f"{launches} launches"]
    return run("cubicml", "tune", *options, "--", *PROGRAM, folder=folder)


def n_launched(folder: Path) -> int:
    return len(list(TrialStore(str(folder / "store"))))


@pytest.mark.parametrize(
    ("space", "names", "calls"),
    [
        (BATCH + SHARDING, ["sharding_strategy"], ["neither FullyShardedDataParallel nor fully_shard"]),
        (MESH, ["tp_degree"], ["neither init_device_mesh nor DeviceMesh"]),
        (
            SHARDING + MESH,
            ["sharding_strategy", "tp_degree"],
            ["neither FullyShardedDataParallel nor fully_shard", "neither init_device_mesh nor DeviceMesh"],
        ),
    ],
    ids=["fsdp", "mesh", "both"],
)
def test_a_hook_that_the_source_has_no_call_for_costs_no_launch(
    tmp_path: Path, space: str, names: list[str], calls: list[str]
) -> None:
    done = tune(tmp_path, space)
    assert done.returncode != 0
    assert n_launched(tmp_path) == 0
    line = done.stderr.splitlines()[-1]
    assert all(f"a hook cannot set {name}: " in line for name in names)
    assert all(f"the program calls {call} (read: train.py)" in line for call in calls)
    assert f"remove {' and '.join(names)} from space.toml" in line


def test_where_a_library_may_make_the_call_the_launch_tells_and_the_next_tune_says_so_first(tmp_path: Path) -> None:
    first = tune(tmp_path, BATCH + SHARDING, DOUBT)
    assert n_launched(tmp_path) == 1
    lines = first.stderr.splitlines()
    begun = next(number for number, line in enumerate(lines) if line.startswith("  1 baseline"))
    (announced,) = [number for number, line in enumerate(lines) if line.startswith(OPEN)]
    assert announced < begun
    assert "fsdp (sharding_strategy)" in lines[announced]
    assert "imports a_library_that_wraps, which may" in lines[announced]
    kept = "sharding_strategy kept as typed: its hook cannot set it: the program made its first step without torch"
    assert kept in first.stdout

    second = tune(tmp_path, BATCH + SHARDING, DOUBT, launches=3)
    lines = second.stderr.splitlines()
    told = next(number for number, line in enumerate(lines) if line.startswith(kept))
    assert "launch the command once" in lines[told]
    assert told < next(number for number, line in enumerate(lines) if line.startswith("  1 "))
    assert not any(line.startswith(OPEN) for line in lines)
    assert n_launched(tmp_path) > 1


def test_where_nothing_is_left_to_tune_an_earlier_refusal_costs_no_launch(tmp_path: Path) -> None:
    assert tune(tmp_path, SHARDING, DOUBT).returncode != 0
    assert n_launched(tmp_path) == 1
    again = tune(tmp_path, SHARDING, DOUBT, launches=4)
    assert n_launched(tmp_path) == 1
    assert "no legal config is left to try with your own sharding_strategy" in again.stdout


def test_an_ordinary_launch_with_the_space_file_counts_for_more_than_the_source(tmp_path: Path) -> None:
    assert "Nothing was launched" in tune(tmp_path, BATCH + SHARDING).stderr
    words = ["cubicml", "--space", "space.toml", "--store", "store", *PROGRAM]
    launched = run("run", "--wait", "-s", "local_cwd", *words, folder=tmp_path)
    assert launched.returncode == 0, launched.stderr
    assert n_launched(tmp_path) == 1
    done = tune(tmp_path, BATCH + SHARDING, launches=3)
    assert "Nothing was launched" not in done.stderr
    assert n_launched(tmp_path) > 1


def test_a_space_without_hooks_says_nothing_of_them(tmp_path: Path) -> None:
    done = tune(tmp_path, BATCH)
    assert (done.returncode, n_launched(tmp_path)) == (1, 1)  # one launch compares nothing
    assert not any(word in done.stderr + done.stdout for word in (OPEN, "its hook", "a hook"))
