from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HEAVY = ("torch", "numpy", "sklearn", "fsspec", "torchx", "rich")


def run(arguments: list[str], folder: Path, **changes: str) -> str:
    environment = {**os.environ, "TORCHX_CUBICML_STORE": str(folder / "store"), **changes}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_the_program_finds_nothing_heavy_loaded(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import sys\nprint([name for name in {HEAVY} if name in sys.modules])\n")
    assert run(["-m", "torchx_cubicml.recorder", "--", "train.py"], tmp_path) == "[]\n"


def test_importing_the_recorder_and_its_writer_loads_no_torch(tmp_path: Path) -> None:
    shown = f"print([name for name in {HEAVY} if name in sys.modules])"
    for module in ("torchx_cubicml.recorder", "torchx_cubicml.recorder.writer"):
        assert run(["-c", f"import sys, {module}; {shown}"], tmp_path) == "[]\n"


def test_the_program_starts_soon(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys, time\nprint(time.time() - float(sys.argv[1]))\n")
    seconds: dict[bool, float] = {True: 9.0, False: 9.0}
    for _ in range(5):
        for recorded in (True, False):
            recorder = ["-m", "torchx_cubicml.recorder", "--"] if recorded else []
            took = float(run([*recorder, "train.py", str(time.time())], tmp_path))
            seconds[recorded] = min(seconds[recorded], took)
    # 30 ms where measured; the rest is for machines that are busy with other things.
    assert seconds[True] - seconds[False] < 0.15


def test_a_checkout_that_is_not_installed_serves(tmp_path: Path) -> None:
    package = Path(__file__).parent.parent / "torchx_cubicml"
    (tmp_path / "torchx_cubicml").symlink_to(package)
    (tmp_path / "train.py").write_text("print('trained')\n")
    # -S leaves out site-packages, and with it the installed package.
    assert run(["-S", "-m", "torchx_cubicml.recorder", "--", "train.py"], tmp_path, PYTHONPATH="") == "trained\n"


OWN_MODULE = "print('its own')\n"


@pytest.mark.parametrize("name", ["resource", "traceback", "statistics", "socket", "weakref"])
def test_a_program_with_modules_named_like_the_librarys_runs_as_without_us(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(OWN_MODULE)
    (tmp_path / "train.py").write_text(f"print('begins')\nimport {name}\nprint({name}.__file__)\n")
    plain, recorded = (run([*how, "train.py"], tmp_path) for how in ([], ["-m", "torchx_cubicml.recorder", "--"]))
    assert recorded == plain
    assert plain.startswith("begins\nits own\n")


def test_a_module_of_the_programs_that_ends_the_process_is_not_run_by_us(tmp_path: Path) -> None:
    (tmp_path / "resource.py").write_text("import sys\nsys.exit('usage: ...')\n")
    (tmp_path / "train.py").write_text("print('trained')\n")
    assert run(["-m", "torchx_cubicml.recorder", "--", "train.py"], tmp_path) == "trained\n"
