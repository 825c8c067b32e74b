"""Property tests draw the same cases in each `make test`, and in `make test-random` those of its seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DRAWS = """
import os
from importlib import import_module
from hypothesis import given, settings, strategies as st

for name in os.environ["LOADED"].split():
    import_module(name)
DRAWN = []

@settings(max_examples=100)
@given(st.text(), st.integers(), st.floats(), st.sampled_from("abc"), st.randoms(use_true_random=False))
def test_draws(text, whole, real, letter, chance):
    DRAWN.append([text, whole, real, letter, chance.random()])

def test_print():
    print("DRAWN", ascii(DRAWN))
"""
OTHER = "module_of_constants"


def drawn(folder: Path, *options: str, loaded: str = "", hash_seed: str = "1", ci: bool = False) -> str:
    path = folder / "test_draws.py"
    path.write_text(DRAWS)
    (folder / f"{OTHER}.py").write_text(
        f"NUMBERS = {list(range(1000, 1100))}\nTEXTS = {list(map(chr, range(256, 356)))}\n"
    )
    words = ["-q", "-s", "-p", "conftest", "-c", os.devnull, f"--rootdir={folder}", *options, str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        env={
            **{name: value for name, value in os.environ.items() if name != "CI"},
            **({"CI": "true"} if ci else {}),
            "PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}{folder}",
            "LOADED": loaded,
            "PYTHONHASHSEED": hash_seed,
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "DRAWN" in line]
    return line


def test_cases_are_the_same_each_time(tmp_path: Path) -> None:
    once = drawn(tmp_path)
    assert len(once) > 300
    assert drawn(tmp_path, loaded=OTHER, hash_seed="2", ci=True) == once


def test_a_seed_draws_its_own_cases_each_time(tmp_path: Path) -> None:
    random = ("--hypothesis-profile", "random", "--hypothesis-seed")
    once = drawn(tmp_path, *random, "7")
    assert drawn(tmp_path, *random, "7", loaded=OTHER, hash_seed="2", ci=True) == once
    assert drawn(tmp_path, *random, "8", ci=True) != once
