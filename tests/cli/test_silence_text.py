"""Trials that count as running, in `torchx cubicml history`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml import State, TrialStore
from torchx_cubicml.cli import history
from torchx_cubicml.records.event import Event, EventKind

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime.now(UTC)


def record(store: TrialStore, name: str, kind: EventKind, *, days_ago: float, state: State | None = None) -> None:
    time = (NOW - timedelta(days=days_ago)).isoformat(timespec="milliseconds")
    config = {"micro_batch_size": 2}
    store.append(Event(kind=kind, trial_id=name, writer="rank0", time=time, config=config, state=state))


@pytest.fixture
def store(tmp_path: Path) -> TrialStore:
    """Return a store of a trial that ended, one that trains, and one without a word for five days."""
    found = TrialStore(str(tmp_path / "store"))
    for name, days_ago in (("trial-done", 9.0), ("trial-live", 5.0), ("trial-gone", 8.0)):
        record(found, name, EventKind.STARTED, days_ago=days_ago)
    record(found, "trial-done", EventKind.ENDED, days_ago=8.9, state=State.COMPLETED)
    record(found, "trial-live", EventKind.MEASURED, days_ago=3.0)
    for days_ago in (7.5, 7.0):
        record(found, "trial-gone", EventKind.MEASURED, days_ago=days_ago)
    return found


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    import argparse

    parser = argparse.ArgumentParser()
    history.add_arguments(parser)
    assert history.run(parser.parse_args(words)) == 0
    return " ".join(capsys.readouterr().out.split())


def test_a_list_names_the_trials_whose_next_event_is_overdue(
    store: TrialStore, capsys: pytest.CaptureFixture[str]
) -> None:
    time = f"{NOW - timedelta(days=7):%Y-%m-%d %H:%M} UTC"
    text = shown(capsys, "list", "--store", store.url)
    assert f"no word from trial-gone (since {time}): a job that counts as running may have been killed" in text
    found = {trial["trial_id"]: trial for trial in json.loads(shown(capsys, "list", "--store", store.url, "--json"))}
    assert {name: trial.get("is_silent") for name, trial in found.items()} == {
        "trial-done": None,
        "trial-live": False,
        "trial-gone": True,
    }
    assert found["trial-live"]["last_event_at"].startswith(f"{NOW - timedelta(days=3):%Y-%m-%dT%H:%M}")


def test_one_trial_tells_its_silence(store: TrialStore, capsys: pytest.CaptureFixture[str]) -> None:
    time = f"{NOW - timedelta(days=7):%Y-%m-%d %H:%M} UTC"
    assert f"no word since {time}: its job may have been killed" in shown(
        capsys, "show", "trial-gone", "--store", store.url
    )
    for name in ("trial-live", "trial-done"):
        assert "no word" not in shown(capsys, "show", name, "--store", store.url)


def test_many_silent_trials_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = TrialStore(str(tmp_path / "store"))
    for number in range(5):
        record(store, f"trial-{number}", EventKind.STARTED, days_ago=5 + number)
    assert "no word from trial-0 (since" in (text := shown(capsys, "list", "--store", store.url))
    assert " and 2 more: a job" in text
