"""Command ``report``: its sections on what was learned of the parameters, read back from the page."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.advisor.layered_job import CURRENT, WORKLOAD, launches
from tests.cli.test_report import report, text_of
from torchx_cubicml import Origin, Trial, TrialStore

if TYPE_CHECKING:
    from pathlib import Path

HEADS = (
    "What each parameter is worth",
    "How throughput responds",
    "Where memory runs out",
    "The fastest configs",
    "Layer by layer",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page of a store whose user ran two launches as typed, and then others."""
    folder = tmp_path_factory.mktemp("report")
    store = TrialStore(str(folder / "store"))
    for number, trial in enumerate(launches()):
        store.add(replace(trial, origin=Origin.USER if number < 2 else Origin.TUNE))
    status, stderr, text = report("--store", folder / "store", folder=folder)
    assert status == 0, stderr
    return text


def heads(page: str) -> list[str]:
    return re.findall(r"<h3[^>]*>([^<]*)</h3>", page)


def test_each_section_has_its_heading_and_its_figures(page: str) -> None:
    assert [head for head in heads(page) if head in HEADS] == list(HEADS)
    assert "could not be drawn" not in page
    titles = (
        "Gain by the best value of each parameter",
        "Throughput at each value of a parameter",
        "The two parameters that matter most, together",
        "Probability to fit in memory, and how launches ended",
        "What the best configs have in common",
    )
    assert [title for title in titles if f">{title}<" not in page] == []


def test_the_best_values_are_compared_with_the_users_own(page: str) -> None:
    text = text_of(page)
    assert re.search(r"micro_batch_size 1 → 16 [3-5]\.\d\dx [\d.]+x to [\d.]+x (?:[\d.]+x )?over your own value", text)
    assert re.search(r"compile False → True 1\.[12]\dx", text)


def test_where_memory_ran_out_is_told_with_the_number_of_launches(page: str) -> None:
    found = re.search(r"Of (\d+) launches drawn, (\d+) ran out of memory\.", text_of(page))
    assert found is not None
    trials = launches()
    assert int(found[1]) == len(trials)
    assert int(found[2]) == sum(trial.measurement is None for trial in trials)


def test_a_strip_tells_each_layer(page: str) -> None:
    assert "your own; layers 1 to 6: FULL_SHARD" in page
    assert "your own sharding_strategy FULL_SHARD in all layers 6xFULL_SHARD" in text_of(page)


def test_without_the_renderer_the_numbers_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TrialStore(str(tmp_path / "store"))
    for trial in launches():
        store.add(trial)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    status, stderr, page = report("--store", tmp_path / "store", folder=tmp_path)
    assert status == 0, stderr
    assert [head for head in heads(page) if head in HEADS] == list(HEADS)
    assert '<svg class="marks' not in page
    assert page.count("<details") == page.count('<details class="numbers" open') == len(HEADS)


def test_a_best_config_outside_the_space_file_is_told(tmp_path: Path) -> None:
    store = TrialStore(str(tmp_path / "store"))
    for trial in launches():
        store.add(trial)
    (tmp_path / "space.toml").write_text('[parameters.micro_batch_size]\nchoices = [1, 2]\nflag = "--batch_size"\n')
    words = ("--store", tmp_path / "store", "--space", tmp_path / "space.toml")
    status, stderr, page = report(*words, folder=tmp_path)
    assert status == 0, stderr
    sentence = (
        "as the fastest config has no place in the space file: micro_batch_size = 16 is not legal; choose from 1, 2"
    )
    assert text_of(page).count(sentence) == 1
    assert [head for head in heads(page) if head in HEADS[:3]] == []


def test_one_launch_has_none_of_these_sections(tmp_path: Path) -> None:
    TrialStore(str(tmp_path / "store")).add(Trial.completed(workload=WORKLOAD, config=CURRENT, tokens_per_second=5.0))
    status, stderr, page = report("--store", tmp_path / "store", folder=tmp_path)
    assert status == 0, stderr
    assert [head for head in heads(page) if head in HEADS] == []


def test_without_a_failure_and_without_peaks_nothing_is_said_of_memory(tmp_path: Path) -> None:
    store, rng = TrialStore(str(tmp_path / "store")), np.random.default_rng(0)
    for number in range(12):
        config = {"workers": number % 4, "pin": bool(number % 2)}
        rate = 100.0 + 10.0 * (number % 4) + float(rng.normal())
        store.add(Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=rate))
    status, stderr, page = report("--store", tmp_path / "store", folder=tmp_path)
    assert status == 0, stderr
    assert "Where memory runs out" not in heads(page)
    assert "What each parameter is worth" in heads(page)


def test_hostile_words_stay_words_in_every_section(tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)> ' \" & \\ datum"
    store = TrialStore(str(tmp_path / "store"))
    for trial in launches():
        layers = tuple(f"{hostile} {value}" for value in trial.config["sharding_strategy"])
        config = {**trial.config, "sharding_strategy": layers, "backend": f"{hostile}{trial.config['backend']}"}
        config[hostile] = config.pop("compile")
        store.add(replace(trial, config=config))
    status, stderr, page = report("--store", tmp_path / "store", folder=tmp_path)
    assert status == 0, stderr
    assert [head for head in heads(page) if head in HEADS] == list(HEADS)
    assert "could not be drawn" not in page
    assert page.count("<script") == 2  # the data, and the page's own
    assert "<img" not in page


def test_stored_predictions_are_compared_by_what_was_known(tmp_path: Path) -> None:
    store = TrialStore(str(tmp_path / "store"))
    for number, trial in enumerate(launches(24)):
        rate = trial.throughput("tokens_per_second") or 1000.0
        promise = {"throughput": 1.2 * rate, "low": 1.1 * rate, "high": 1.3 * rate}
        store.add(replace(trial, suggestion=promise if number >= 4 else None, ended_at=trial.started_at))
    status, stderr, page = report("--store", tmp_path / "store", folder=tmp_path)
    assert status == 0, stderr
    assert "How accurate the predictions became" in heads(page)
    text = text_of(page)
    assert re.search(r"known measurements launches median error .* 11 to 20 \d+ 20\.0% 1\.00 0 of \d+", text)
