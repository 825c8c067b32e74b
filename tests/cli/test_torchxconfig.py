"""A winner written into ``.torchxconfig``: what would fail is told before the first launch, or leaves the tune open."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.comparisons import compare
from torchx_cubicml import tuner
from torchx_cubicml.advisor import Suggestion
from torchx_cubicml.advisor.comparison import Repeats
from torchx_cubicml.cli import tune
from torchx_cubicml.cli.torchxconfig import check_default, write_default
from torchx_cubicml.errors import LaunchError
from torchx_cubicml.tuner import TuneResult

if TYPE_CHECKING:
    from collections.abc import Generator

    from torchx_cubicml.records.values import Config

TUNE = Path(__file__).resolve().parents[1] / "tune"
COMMAND = (f"{TUNE}/components.py:quick", "--script", f"{TUNE}/quick.py", "--", "--batch_size", "4")
SPACE = """
objective = "samples_per_second"
[parameters.micro_batch_size]
choices = [1, 4]
flag = "--batch_size"
changes_training = true
"""


@pytest.mark.parametrize(
    ("path", "word"),
    [("missing/defaults", "4"), (".", "4"), ("broken", "4"), ("binary", "4"), ("defaults", "four five")],
    ids=["no-folder", "a-folder", "no-ini", "no-text", "a-word-with-a-space"],
)
def test_an_unwritable_file_is_reported_first(tmp_path: Path, path: str, word: str) -> None:
    (tmp_path / "broken").write_text("scheduler = local_cwd\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    command = (*COMMAND[:-1], word)
    for step in (check_default, write_default):
        with pytest.raises(LaunchError, match="default"):
            step(tmp_path / path, command)


def test_a_check_changes_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("# mine\n[cli:run]\nscheduler=local_cwd\n")
    for path in (kept, tmp_path / "new"):
        check_default(path, COMMAND)
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]
    assert kept.read_text() == "# mine\n[cli:run]\nscheduler=local_cwd\n"
    write_default(tmp_path / "new", COMMAND)
    assert "batch_size 4" in (tmp_path / "new").read_text()


def won(launch: Config, found: Config) -> TuneResult:
    own, best = (
        Repeats(config=each, throughputs=values) for each, values in ((launch, (1.0,) * 3), (found, (2.0,) * 3))
    )
    comparison = compare(own, best, objective="samples_per_second")
    assert comparison.claims_gain
    suggestion = Suggestion(
        config=found, throughput=2.0, low=None, high=None, probability_to_fit=1.0, reason="", n_trials=6
    )
    return TuneResult(
        comparison=comparison, best=suggestion, launches=6, device_hours=0.1, command=COMMAND, others_measured=1
    )


def arguments(folder: Path, target: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    space = folder / "space.toml"
    space.write_text(SPACE)
    options = ["--space", str(space), "--store", str(folder / "store"), "--yes", "--write-config", str(target)]
    return parser.parse_args([*options, "--", *COMMAND[:-1], "1"])


@pytest.mark.parametrize("goes", [True, False], ids=["its-folder-goes", "its-folder-stays"])
def test_a_tune_is_over_when_its_winner_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes: bool) -> None:
    target = tmp_path / "folder" / "defaults"
    target.parent.mkdir()
    finished = []

    def tuned(prepared: object) -> Generator[TuneResult, None, None]:
        del prepared
        if goes:
            shutil.rmtree(target.parent)
        yield won({"micro_batch_size": 1}, {"micro_batch_size": 4})
        finished.append(target.exists())

    monkeypatch.setattr(tuner, "tune", tuned)
    if goes:
        with pytest.raises(LaunchError, match="cannot write the confirmed config as a default to"):
            tune.run(arguments(tmp_path, target))
        assert finished == []
    else:
        assert tune.run(arguments(tmp_path, target)) == 0
        assert finished == [True]


def test_a_tune_that_cannot_write_makes_no_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "tune", None)
    with pytest.raises(LaunchError, match="cannot write the confirmed config as a default to"):
        tune.run(arguments(tmp_path, tmp_path / "missing" / "defaults"))


def test_a_link_to_a_missing_file_stays(tmp_path: Path) -> None:
    link = tmp_path / "defaults"
    link.symlink_to(tmp_path / "mounted later")
    check_default(link, COMMAND)
    assert link.is_symlink()
    assert not link.exists()
