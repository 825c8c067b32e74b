"""Command ``report``: the page that it writes of a store, read back from its HTML."""

from __future__ import annotations

import json
import re
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import replace
from html import unescape
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from torchx.cli.main import main

from tests.comparisons import compare
from torchx_cubicml import Origin, State, Trial, TrialStore
from torchx_cubicml.advisor.comparison import Repeats
from torchx_cubicml.cli import report_sections as sections
from torchx_cubicml.cli.report_sections import SECTIONS, launch_order, result
from torchx_cubicml.records.arguments import KEY_ID, digested_arguments, text_digest
from torchx_cubicml.records.measurement import Measurement
from torchx_cubicml.records.trial import new_id, short_id
from torchx_cubicml.store.digest_key import made_digest_key
from torchx_cubicml.tuner.journal import Journal, Note, NoteKind
from torchx_cubicml.tuner.progress import TuneResult

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.cli.report_sections.view import WorkloadView
    from torchx_cubicml.report.markup import Html

WORKLOAD = {"program": "train.py", "world_size": 8}
OWN, BEST = {"micro_batch_size": 2, "compile": True}, {"micro_batch_size": 16, "compile": True}
TUNE = "tune-0123456789abcdef"


def report(*words: str | Path, folder: Path) -> tuple[int | str | None, str, str]:
    """Run the command; return its status, stderr and the page's text."""
    stderr = StringIO()
    status: int | str | None = 0
    with chdir(folder), redirect_stdout(StringIO()), redirect_stderr(stderr):
        try:
            main(["cubicml", "report", *map(str, words)])
        except SystemExit as end:
            status = end.code
    page = folder / "report.html"
    return status, stderr.getvalue(), page.read_text() if page.exists() else ""


def text_of(page: str) -> str:
    """Return the visible text of a page, on one line."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())


def tables(page: str) -> list[dict[str, Any]]:
    """Return the column of each table of trials, by name."""
    found = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    return [{column["name"]: column for column in json.loads(each)["columns"]} for each in found]


def values(column: dict[str, Any]) -> list[object]:
    if "rest" in column:
        texts = [""]
        for shared, rest in zip(column["shared"], column["rest"], strict=True):
            texts.append(texts[-1][:shared] + rest)
        return [*texts[1:]]
    if "index" in column:
        return [column["levels"][place] for place in column["index"]]
    return list(column["values"])


def launched(number: int, config: dict[str, Any], rate: float | None, *, tune: str = TUNE) -> Trial:
    trial = Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=rate or 1.0, peak_memory_gib=2.0)
    prefix = tune.replace("tune", "launch")
    trial = replace(
        trial, launch_id=f"{prefix}-{number:04d}" if tune else "", started_at=f"2026-01-01T00:{number:02d}:00Z"
    )
    if rate is not None:
        return trial
    return replace(trial, measurement=None, state=State.OUT_OF_MEMORY, reason="CUDA out of memory")


@pytest.fixture
def tuned(tmp_path: Path) -> str:
    """Return a store that holds a finished tune, with the result that ``tune`` itself writes."""
    url = str(tmp_path / "store")
    store = TrialStore(url)
    for number, (config, rate) in enumerate(
        [(OWN, 100.0), (OWN, 102.0), (BEST, 200.0), (BEST, 206.0), ({**BEST, "compile": False}, None)], start=1
    ):
        store.add(launched(number, config, rate))
    sides = [
        Repeats(config=config, throughputs=rates, uncertainties=(0.01, 0.01))
        for config, rates in ((OWN, (100.0, 102.0)), (BEST, (200.0, 206.0)))
    ]
    found = TuneResult(
        comparison=compare(*sides, objective="tokens_per_second"),
        best=None,
        launches=5,
        device_hours=1.25,
        command=("dist.ddp", "-j", "1x8", "--script", "train.py", "--", "--batch_size", "16", "--api_key", "hunter2"),
        tune_id=TUNE,
        confidence=0.97,
        others_measured=1,
        ending="5 of 5 launches: the budget is used up",
    )
    journal = Journal(url)
    handle = {"handle": "slurm://torchx/12", "purpose": "baseline"}
    journal.write(Note(kind=NoteKind.SUBMITTED, tune_id=TUNE, launch_id=f"{TUNE}-0001", facts=handle))
    journal.write(
        Note(kind=NoteKind.FINISHED, tune_id=TUNE, time="2026-01-01T01:00:00Z", facts={"result": found.to_json()})
    )
    return url


def test_the_result_is_that_of_the_tune(tuned: str, tmp_path: Path) -> None:
    status, stderr, page = report("--store", tuned, folder=tmp_path)
    assert status == 0, stderr
    assert "wrote report.html: open it in a browser" in stderr
    text = text_of(page)
    assert re.search(r"\b(1\.9|2\.0)\dx the throughput of your own config", text)
    assert re.search(r"Gain 2\.\d\dx \(80 % interval: 1\.\d\dx to 2\.\d\dx\)", text)
    assert 'class="gain"' in page
    assert "confirmed 203 tokens/s" in text
    assert "5 launches 1.25 device hours" in text
    assert "97% that no other measured config is more than 1 % faster" in text
    assert "micro_batch_size 2 16 The other one stays as in yours." in text
    assert "torchx run -s slurm cubicml --store" in text


@pytest.mark.parametrize("kind", ["html", "md", "json"])
def test_a_tune_that_confirmed_nothing_shows_the_fastest_seen_and_why(tmp_path: Path, kind: str) -> None:
    url, busy = str(tmp_path / "store"), {"host_cpus": 2, "other_busy_cpus": 1.7, "idle_cpus": 0.0}
    rates = [(OWN, 1205.0), (BEST, 1868.0), (OWN, 936.0), (BEST, 1231.0), (OWN, 734.0), (BEST, 803.0)]
    for number, (config, rate) in enumerate(rates, start=1):
        TrialStore(url).add(replace(launched(number, config, rate), observed=busy))
    own = Repeats(config=OWN, throughputs=(1205.0, 936.0, 734.0), uncertainties=(1.0,) * 3)
    found = TuneResult(
        comparison=compare(own, own, objective="tokens_per_second"),
        best=None,
        launches=6,
        device_hours=0.17,
        command=("dist.ddp",),
        tune_id=TUNE,
        others_measured=1,
        ending="6 of 6 launches: the budget is used up",
    )
    Journal(url).write(Note(kind=NoteKind.FINISHED, tune_id=TUNE, facts={"result": found.to_json()}))
    status, stderr, _ = report("--store", url, "--format", kind, "--out", f"report.{kind}", folder=tmp_path)
    assert status == 0, stderr
    text = text_of((tmp_path / f"report.{kind}").read_text(encoding="utf-8")).replace("\\", "")
    assert "No gain confirmed yet" in text
    assert "No config was confirmed" not in text
    assert "Fastest seen: batch 2 -> 16: 1.32x your config. Not confirmed: your config is known only" in text
    assert "6 of 6 launches were crowded (at worst, other processes kept 1.7 of 2 processors busy)" in text
    assert "each within a factor of 5.2" in text
    assert "?a?" not in text
    assert "0.17 device hours" in text


@pytest.mark.parametrize("config", [OWN, BEST], ids=["the own one", "another one"])
def test_after_a_tune_whose_winner_is_slower_the_own_config_is_the_fastest_seen(
    tmp_path: Path, config: dict[str, int]
) -> None:
    url, rates = str(tmp_path / "store"), {"own": (100.0, 101.0), "best": (90.0, 91.0)}
    for number, (each, rate) in enumerate([*((OWN, r) for r in rates["own"]), *((BEST, r) for r in rates["best"])], 1):
        TrialStore(url).add(launched(number, each, rate))
    own = Repeats(config=OWN, throughputs=rates["own"])
    winner = own if config is OWN else Repeats(config=BEST, throughputs=rates["best"])
    found = TuneResult(
        comparison=compare(own, winner, objective="tokens_per_second"),
        best=None,
        launches=4,
        device_hours=0.1,
        command=(),
        tune_id=TUNE,
        others_measured=1,
    )
    Journal(url).write(Note(kind=NoteKind.FINISHED, tune_id=TUNE, facts={"result": found.to_json()}))
    assert report("--store", url, "--format", "json", "--out", "report.json", folder=tmp_path)[0] == 0
    (workload,) = json.loads((tmp_path / "report.json").read_text())["workloads"]
    assert workload["best"] == workload["own"] == OWN
    facts = {label: value for label, value, _ in workload["headline"]["facts"]}
    if config is OWN:
        assert workload["headline"]["meaning"] == "No config was confirmed faster than yours"
        assert facts["your config"] == "100 tokens/s"
    else:
        assert facts["not confirmed"] == "90.5 tokens/s"
        assert workload["headline"]["is_claimed"] is False


def test_secrets_of_the_command_are_masked(tuned: str, tmp_path: Path) -> None:
    page = report("--store", tuned, folder=tmp_path)[2]
    assert "hunter2" not in page
    assert "*** stands for a secret" in text_of(page)


def test_all_trials_are_in_the_table_with_their_reasons(tuned: str, tmp_path: Path) -> None:
    (table,) = tables(report("--store", tuned, folder=tmp_path)[2])
    assert values(table["outcome"]) == [*["completed"] * 4, "out of memory"]
    assert values(table["reason"]) == [*[None] * 4, "CUDA out of memory"]
    assert values(table["tokens/s"]) == [100.0, 102.0, 200.0, 206.0, None]
    assert table["micro_batch_size"]["shown"] is True
    assert table["workload.world_size"] == {
        "name": "workload.world_size", "shown": False, "choice": False, "number": True, "all": 8
    }  # fmt: skip
    assert len(set(values(table["trial_id"]))) == 5


def test_without_a_finished_tune_the_records_are_compared_with_their_doubt(tmp_path: Path) -> None:
    store = TrialStore(str(tmp_path / "store"))
    for number, (config, rate) in enumerate([(OWN, 100.0), (BEST, 200.0), (BEST, 210.0)], start=1):
        origin = Origin.USER if config is OWN else Origin.REWRITE
        store.add(replace(launched(number, config, rate, tune=""), origin=origin))
    status, stderr, page = report("--store", tmp_path / "store", folder=tmp_path)
    assert status == 0, stderr
    text = text_of(page)
    assert 'class="gain muted"' in page
    assert "no gain is claimed: too few measurements (it takes at least 1 more launch)" in text
    assert "It was chosen by the same measurements that are compared here. A tune measures both again." in text
    assert "fastest seen 205 tokens/s" in text
    assert "confirmed" not in text


def test_a_value_of_thousands_of_letters_is_cut_and_says_so_and_secrets_are_masked(tmp_path: Path) -> None:
    config = {"sizes": "1024," * 800, "data": "https://me:hunter2@host/x"}
    store = TrialStore(str(tmp_path / "store"))
    store.add(Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=5.0))
    status, stderr, page = report("--store", tmp_path / "store", folder=tmp_path)
    assert status == 0, stderr
    assert "hunter2" not in page
    (cell,) = re.findall(r"sizes</th>.*?<strong>(.*?)</strong>", page)
    assert unescape(cell).replace("<wbr>", "") == ("1024," * 800)[:600] + "… (cut)"
    (table,) = tables(page)
    assert values(table["sizes"]) == [("1024," * 800)[:2000] + "… (cut)"]


def test_a_store_where_nothing_was_measured(tmp_path: Path) -> None:
    TrialStore(str(tmp_path / "store")).add(Trial.infeasible(workload=WORKLOAD, config=OWN))
    status, stderr, page = report("--store", tmp_path / "store", folder=tmp_path)
    assert status == 0, stderr
    assert "No config was measured" in text_of(page)


def test_a_store_of_launches_without_a_space_file(tmp_path: Path) -> None:
    TrialStore(str(tmp_path / "store")).add(Trial.completed(workload=WORKLOAD, config={}, tokens_per_second=5.0))
    status, stderr, page = report("--store", tmp_path / "store", folder=tmp_path)
    assert status == 0, stderr
    assert "No measured launch had a space file" in text_of(page)


def test_several_workloads_have_an_index_and_one_can_be_chosen(tuned: str, tmp_path: Path) -> None:
    other = {"program": "other.py", "world_size": 2}
    TrialStore(tuned).add(Trial.completed(workload=other, config={"a": 1}, samples_per_second=9.0))
    page = report("--store", tuned, folder=tmp_path)[2]
    assert re.findall(r'href="(#workload-\d)">([^<]*)', page) == [
        ("#workload-1", "train.py"),
        ("#workload-2", "other.py"),
    ]
    page = report("--store", tuned, "--workload", "other.py", folder=tmp_path)[2]
    assert len(tables(page)) == 1
    assert "train.py" not in text_of(page)


def test_a_broken_result_of_a_tune_is_left_out(tuned: str, tmp_path: Path) -> None:
    broken = {"comparison": {"gain": "x"}, "launches": 3, "device_hours": 1.0}
    Journal(tuned).write(Note(kind=NoteKind.FINISHED, tune_id=TUNE, facts={"result": broken}))
    status, stderr, page = report("--store", tuned, folder=tmp_path)
    assert status == 0, stderr
    assert "5 launches 1.25 device hours" in text_of(page)


def test_the_space_file_gives_the_statistic(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(
        'objective = "tokens_per_second"\nstatistic = "p50"\n'
        '[parameters.micro_batch_size]\nflag = "--b"\nchoices = [2, 16]\n'
    )
    measured = Measurement(
        tokens_per_second=80.0, step_time_s=(0.9, 1.0, 1.3), mean_step_time_s=1.25, statistic="mean", steps_counted=9
    )
    trial = replace(Trial.completed(workload=WORKLOAD, config=OWN, tokens_per_second=1.0), measurement=measured)
    TrialStore(str(tmp_path / "store")).add(trial)
    _, stderr, page = report("--store", tmp_path / "store", "--space", tmp_path / "space.toml", folder=tmp_path)
    assert "100 tokens/s" in text_of(page), stderr


def test_the_space_file_tells_the_config_of_launches_recorded_without_one(tmp_path: Path) -> None:
    url, key = str(tmp_path / "store"), made_digest_key(str(tmp_path / "store"))
    (tmp_path / "space.toml").write_text(
        "[workload.depth]\nflag = '--depth'\n[parameters.micro_batch_size]\nchoices = [2, 16]\nflag = '--b'\n"
        "[parameters.workers]\nchoices = [0, 4]\nflag = '--workers'\ndefault = 4\n"
    )
    bare = Trial.completed(workload=WORKLOAD, config={}, tokens_per_second=9.0)

    def stated(*words: str, **changes: Any) -> Trial:
        arguments, digests = digested_arguments(words, key), {KEY_ID: text_digest("", key)}
        return replace(bare, trial_id=new_id("t"), arguments=arguments, digests=digests, **changes)

    typed = {"workload": {**WORKLOAD, "depth": 8}, "config": {"micro_batch_size": 16, "workers": 0}}
    store = TrialStore(url)
    store.add(stated("--depth", "8", "--b", "16", "--workers", "0", **typed))
    store.add(stated("--depth", "8", "--b", "2"))
    store.add(stated("--depth", "9", "--b", "2", workload={"program": "other.py", "world_size": 8}))
    store.add(stated("--lr", "1", workload={"program": "third.py", "world_size": 8}))
    page = report("--store", url, "--space", tmp_path / "space.toml", folder=tmp_path)[2]
    first, second, third = tables(page)
    assert sorted(zip(values(first["micro_batch_size"]), values(first["workers"]), strict=True)) == [(2, 4), (16, 0)]
    assert second["micro_batch_size"]["first"] == 2
    assert "micro_batch_size" not in third


def test_without_the_renderer_a_sentence_stands_for_the_figures(
    tuned: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert report("--store", tuned, folder=tmp_path)[2].count("<figure") >= 1
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    status, stderr, page = report("--store", tuned, folder=tmp_path)
    assert status == 0, stderr
    assert "<figure" not in page
    assert "Figures are left out: figures need vl-convert-python: pip install 'torchx-cubicml[report]'" in text_of(page)
    assert len(tables(page)) == 1


def test_a_section_that_fails_leaves_its_cause_and_the_others(
    tuned: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(view: WorkloadView) -> Html:
        raise ValueError(f"place {view.place} <b>\x1b[31m password=hunter2 {'x' * 10_000}")

    monkeypatch.setattr(launch_order, "section", failing)
    status, stderr, page = report("--store", tuned, folder=tmp_path)
    assert status == 0, stderr
    text = text_of(page)
    assert "The section \u201claunch order\u201d is left out, as making it failed: ValueError: place 1 <b>?[31m" in text
    assert "hunter2" not in page
    assert "xxx" in text
    assert "x" * 300 not in text
    assert "2.01x the throughput of your own config" in text
    assert len(tables(page)) == 1


def test_a_result_that_cannot_be_found_leaves_its_cause(
    tuned: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result, "headline_of", lambda view: 1 / (view.place - 1))
    status, stderr, page = report("--store", tuned, folder=tmp_path)
    assert status == 0, stderr
    assert "The section \u201cresult\u201d is left out" in text_of(page)


@pytest.mark.parametrize("name", SECTIONS)
def test_whatever_section_fails_the_page_is_written(name: str, tuned: str, tmp_path: Path) -> None:
    module = import_module(f"{sections.__name__}.{name}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "section", lambda view: 1 / (view.place - 1))
        status, stderr, page = report("--store", tuned, folder=tmp_path)
    assert status == 0, stderr
    assert text_of(page).count("is left out, as making it failed: ZeroDivisionError: division by zero") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--out", "report.pdf"],
            "--out must name a file that ends in .html, .md, .png, .json, .csv, .parquet, or give --format, "
            "got 'report.pdf'",
        ),
        (["--out", "-"], "--out - needs --format html, md, json or csv, got none"),
        (["--out", "-", "--format", "png"], "--out - needs --format html, md, json or csv, got png"),
        (["--out", "x.csv", "--format", "md"], "--format md does not fit --out 'x.csv': give one"),
        (["--out", "nowhere/report.html"], "cannot write nowhere/report.html: No such file or directory"),
        (["--workload", "nothing"], "no workload of store"),
        (["--config", "nobody"], "no trial 'nobody' in store"),
    ],
)
def test_a_wrong_option_gets_one_sentence(tuned: str, tmp_path: Path, words: list[str], message: str) -> None:
    status, stderr, _ = report("--store", tuned, *words, folder=tmp_path)
    assert status == 2
    assert message in stderr


def test_an_empty_store_gets_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    status, stderr, _ = report("--store", tmp_path / "store", folder=tmp_path)
    assert status == 2
    assert "is empty: no launch has been recorded in it" in stderr


def test_hostile_texts_of_a_store_stay_texts(tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e' \" &"
    store = TrialStore(str(tmp_path / "store"))
    workload, config = {"program": hostile, "world_size": 2}, {hostile: hostile}
    store.add(Trial.completed(workload=workload, config=config, tokens_per_second=5.0))
    store.add(replace(Trial.infeasible(workload=workload, config=config), reason=hostile))
    status, stderr, page = report("--store", tmp_path / "store", folder=tmp_path)
    assert status == 0, stderr
    assert page.count("<script") == 2  # the data, and the page's own
    assert [part for part in ("<img", "\x1b", "\u202e") if part in page] == []
    (table,) = tables(page)
    assert any("<script>alert(1)" in str(value) for value in values(table["reason"]))


def test_what_repeats_the_best_launch_is_one_command_with_the_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = Trial.completed(workload={"program": "a.py"}, config={"batch": 4}, tokens_per_second=9.0)
    TrialStore(str(store)).add(replace(done, provenance={"commit": "ab" * 20}))
    status, stderr, page = report("--store", str(store), folder=tmp_path)
    assert status == 0, stderr
    (command,) = re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)
    typed = re.sub("<[^>]*>", "", command)
    assert (
        typed == f"torchx cubicml history repeat {short_id(done.trial_id)} --store {store} --space FILE -- YOUR COMMAND"
    )
    assert f"To repeat it: git checkout {'ab' * 20}, perhaps with changes; start a.py; set batch=4" in text_of(page)
