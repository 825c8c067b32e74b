"""Data frames of a store: types and values in pandas and in Arrow, and the way back by ``history import``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest

from tests.generated.cases import ODD_VALUES
from tests.plots.simulated import launches
from torchx_cubicml import State, Trial, TrialStore
from torchx_cubicml.cli import history
from torchx_cubicml.errors import StoreError
from torchx_cubicml.records.trial_columns import trial_columns
from torchx_cubicml.store import data_frames

if TYPE_CHECKING:
    from pathlib import Path


def store_of(folder: Path, trials: list[Trial]) -> TrialStore:
    store = TrialStore(str(folder))
    for trial in trials:
        store.add(trial)
    return store


def test_each_column_has_its_type(tmp_path: Path) -> None:
    store = store_of(tmp_path, launches(6))
    frame, table = store.to_pandas(), store.to_arrow()
    wanted = {
        "started_at": ("datetime64[us, UTC]", pa.timestamp("us", tz="UTC")),
        "state": ("category", pa.dictionary(pa.int8(), pa.string())),
        "tokens_per_second": ("Float64", pa.float64()),
        "world_size": ("Int64", pa.int64()),
        "compile": ("boolean", pa.bool_()),
        "sharding_strategy": ("string", pa.string()),
        "round": ("Int64", pa.int64()),
    }
    assert {name: str(frame[name].dtype) for name in wanted} == {name: each for name, (each, _) in wanted.items()}
    assert {name: table.schema.field(name).type for name in wanted} == {
        name: each for name, (_, each) in wanted.items()
    }
    assert list(frame["state"].cat.categories) == list(State)
    assert list(frame.columns) == table.column_names


def test_the_frame_answers_a_question(tmp_path: Path) -> None:
    trials = launches()
    frame = store_of(tmp_path, trials).to_pandas()
    rates = [trial.throughput("tokens_per_second") for trial in trials if trial.config["compile"] and trial.measurement]
    assert frame[frame["compile"]]["tokens_per_second"].mean() == pytest.approx(sum(rates) / len(rates))
    assert (frame["state"] == "out_of_memory").sum() == sum(trial.measurement is None for trial in trials)


def test_an_empty_store_has_an_empty_frame(tmp_path: Path) -> None:
    store = TrialStore(str(tmp_path))
    assert len(store.to_pandas()) == store.to_arrow().num_rows == 0
    assert "tokens_per_second" in store.to_pandas()


def hostile() -> list[Trial]:
    """Return trials that hold each odd value in each place, under plain and under odd names."""
    return [
        Trial(
            trial_id=f"t{place}",
            workload={str(value)[:100] or "empty": value, f"w{place}": value, "mixed": value},
            config={"state": value, "mixed": value},
            observed={"mixed": place, f"o{place}": value},
            state=State.UNKNOWN,
            reason=str(value),
            started_at="9999-12-31T23:59:59.999999-23:59" if place % 2 else "2026-01-01T00:00:00+00:00",
        )
        for place, value in enumerate(ODD_VALUES)
    ]


def test_hostile_values_are_the_same_in_pandas_and_arrow() -> None:
    trials = hostile()
    frame, table = data_frames.data_frame(trials), data_frames.arrow_table(trials)
    assert table.num_rows == len(frame) == len(trials)
    for column in trial_columns(trials):
        expected = [list(value) if isinstance(value, tuple) else value for value in column.values]
        assert table[column.name].to_pylist() == expected
        shown = [
            None if not isinstance(each, tuple) and pd.isna(each) else each for each in frame[column.name].tolist()
        ]
        assert [list(each) if isinstance(each, tuple) else each for each in shown] == expected


def test_a_frame_imported_again_holds_the_same_measured_trials(tmp_path: Path) -> None:
    trials = launches()
    store_of(tmp_path / "store", trials).to_pandas().to_csv(tmp_path / "frame.csv", index=False)
    parser = argparse.ArgumentParser()
    history.add_arguments(parser)
    words = ["import", str(tmp_path / "frame.csv"), "--store", str(tmp_path / "again"), "--yes"]
    assert history.run(parser.parse_args(words)) == 0

    def facts(trial: Trial) -> tuple[Any, ...]:
        measured = trial.measurement
        numbers = (measured.tokens_per_second, measured.peak_memory_gib) if measured else ()
        return trial.started_at[:19], dict(trial.workload), dict(trial.config), trial.state, numbers

    again = sorted(TrialStore(str(tmp_path / "again")), key=lambda trial: trial.started_at)
    assert [facts(trial) for trial in again] == [facts(trial) for trial in trials]


@pytest.mark.parametrize(
    ("method", "package", "extra"), [("to_pandas", "pandas", "pandas"), ("to_arrow", "pyarrow", "arrow")]
)
def test_a_missing_package_is_one_sentence(
    method: str, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(StoreError, match=rf"^{method} needs {package}: pip install 'torchx-cubicml\[{extra}\]' \("):
        getattr(TrialStore(str(tmp_path)), method)()
