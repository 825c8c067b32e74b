"""The paper's recipe by the command line, over a program whose throughput is simulated: ``tune``, then its figures."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.shared_results import SharedResults

pytestmark = pytest.mark.launch
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ["--script", f"{ROOT}/benchmarks/lib/simulated_job.py", "--", "--family", "wall", "--n_layers", "8"]
CONFIG = [
    "--sharding",
    ",".join(["FULL_SHARD"] * 8),
    "--batch_size",
    "140",
    "--reserved_share",
    "0.77",
]
RECIPE = "--start random:10 --predictor ranking_mlp --searcher reinforce --acquisition mean --rounds --parallel 5"


def torchx(*words: str, cwd: Path) -> str:
    done = subprocess.run(
        ["torchx", "cubicml", *words], cwd=cwd, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(shared_results: SharedResults) -> Path:
    return shared_results.get("recipe", tuned)


def tuned(folder: Path) -> Path:
    """Return a folder whose store holds a tune of ten random launches and two rounds of five."""
    options = [
        "--space",
        f"{ROOT}/benchmarks/lib/simulated_job.toml",
        "--store",
        "store",
        "--scratch",
        "scratch",
        "--yes",
    ]
    options += ["--budget", "21 launches", "--repeats", "1", *RECIPE.split()]
    component = f"{ROOT}/tests/tune/components.py:quick"
    torchx("tune", *options, "--", component, *PROGRAM, "--model", "0", *CONFIG, cwd=folder)
    return folder


def test_the_rounds_beat_the_random_launches(folder: Path) -> None:
    (table,) = json.loads(torchx("history", "rounds", "--json", "--store", "store", cwd=folder))
    rounds = {each["number"]: each for each in table["rounds"]}
    assert [each["launches"] for each in rounds.values()] == [10, 5, 5]
    assert rounds[1]["median"] > 1.1 * rounds[0]["median"]
    assert rounds[2]["best_so_far"] >= rounds[0]["best_so_far"]
    assert rounds[1]["ranked"] == rounds[1]["measured"] >= 3
    assert table["ranked"] == rounds[1]["measured"] + rounds[2]["measured"]


def test_the_rounds_are_drawn(folder: Path) -> None:
    torchx("history", "rounds", "--store", "store", "--out", "rounds.svg", cwd=folder)
    picture = (folder / "rounds.svg").read_text()
    assert all(f">{label}<" in picture for label in ("first launches", "round 1", "round 2", "all rounds"))
    assert ">simulated_job.py<" in picture or "/simulated_job.py<" in picture
