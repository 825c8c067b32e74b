from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchx_cubicml.records.trial import State
from torchx_cubicml.store import TrialStore

HEAVY = ("torch", "numpy", "sklearn", "fsspec", "torchx", "rich")


def run(arguments: list[str], folder: Path, **changes: str) -> str:
    environment = {**os.environ, "TORCHX_CUBICML_STORE": str(folder / "store"), **changes}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return done.stdout


def test_the_program_starts_without_heavy_packages(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import sys\nprint([name for name in {HEAVY} if name in sys.modules])\n")
    assert run(["-m", "torchx_cubicml.recorder", "--", "train.py"], tmp_path) == "[]\n"


def test_importing_the_recorder_and_its_writer_loads_no_torch(tmp_path: Path) -> None:
    shown = f"print([name for name in {HEAVY} if name in sys.modules])"
    for module in ("torchx_cubicml.recorder", "torchx_cubicml.recorder.events.writer"):
        assert run(["-c", f"import sys, {module}; {shown}"], tmp_path) == "[]\n"


def test_the_program_starts_soon(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(len(sys.modules))\n")
    plain, recorded = (int(run([*how, "train.py"], tmp_path)) for how in ([], ["-m", "torchx_cubicml.recorder", "--"]))
    # What a start costs is in the benchmarks; here, that nothing large is loaded by accident (torch: two thousand).
    assert recorded - plain < 170


def test_a_checkout_that_is_not_installed_serves(tmp_path: Path) -> None:
    package = Path(__file__).parents[2] / "torchx_cubicml"
    (tmp_path / "torchx_cubicml").symlink_to(package)
    (tmp_path / "train.py").write_text("print('trained')\n")
    # -S leaves out site-packages, and with it the installed package.
    assert run(["-S", "-m", "torchx_cubicml.recorder", "--", "train.py"], tmp_path, PYTHONPATH="") == "trained\n"


OWN_MODULE = "print('its own')\n"


@pytest.mark.parametrize("name", ["resource", "traceback", "statistics", "socket", "weakref"])
def test_a_program_keeps_modules_named_like_the_librarys(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(OWN_MODULE)
    (tmp_path / "train.py").write_text(f"print('begins')\nimport {name}\nprint({name}.__file__)\n")
    plain, recorded = (run([*how, "train.py"], tmp_path) for how in ([], ["-m", "torchx_cubicml.recorder", "--"]))
    assert recorded == plain
    assert plain.startswith("begins\nits own\n")


def test_a_module_of_the_program_is_not_run_early(tmp_path: Path) -> None:
    (tmp_path / "resource.py").write_text("import sys\nsys.exit('usage: ...')\n")
    (tmp_path / "train.py").write_text("print('trained')\n")
    assert run(["-m", "torchx_cubicml.recorder", "--", "train.py"], tmp_path) == "trained\n"


@pytest.mark.parametrize("entry", ["recorder", "rewrite.in_job"])
def test_modules_named_like_the_librarys_cost_no_record(entry: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name in ("json", "queue", "socket", "dataclasses", "typing"):
        (theirs / f"{name}.py").write_text(OWN_MODULE)
    (tmp_path / "train.py").write_text("print('begins')\nimport json\nprint(json.__file__)\n")
    settings = {"PYTHONPATH": str(theirs)}
    plain, recorded = (
        run([*how, "train.py"], tmp_path, **settings) for how in ([], ["-m", f"torchx_cubicml.{entry}", "--"])
    )
    assert recorded == plain
    assert plain == f"begins\nits own\n{theirs / 'json.py'}\n"
    (trial,) = TrialStore(str(tmp_path / "store"))
    assert trial.state is State.COMPLETED
