"""Formats of the report: Markdown, tables, JSON and a picture, of a small store and of a hostile one."""

from __future__ import annotations

import csv
import io
import json
import sys
from contextlib import chdir, redirect_stderr
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet
from torchx.cli.main import main

from torchx_cubicml import State, Trial, TrialStore
from torchx_cubicml.cli.report_formats.markdown_text import escaped
from torchx_cubicml.cli.report_sections import worth

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "=cmd|' /C calc'!A1 | <img src=x onerror=alert(1)> ``` [a](http://x.org) \\ _b_\n\x1b[31m# c"
SECRET = "hunter2"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store of two workloads, one of them hostile, with a secret in a reason."""
    made = TrialStore(str(tmp_path / "store"))
    for number, (batch, rate) in enumerate([(1, 100.0), (2, 180.0), (4, None)]):
        trial = Trial.completed(
            workload={"program": "train.py", "world_size": 8},
            config={"micro_batch_size": batch, "layers": ("a", "a", "b")},
            tokens_per_second=rate or 1.0,
        )
        if rate is None:
            trial = replace(trial, measurement=None, state=State.OUT_OF_MEMORY, reason=f"password={SECRET} no memory")
        made.add(replace(trial, started_at=f"2026-01-01T00:0{number}:00Z"))
    made.add(Trial.completed(workload={"program": HOSTILE}, config={HOSTILE: HOSTILE}, tokens_per_second=5.0))
    return tmp_path / "store"


def report(*words: str | Path, folder: Path) -> tuple[int | str | None, str]:
    stderr = io.StringIO()
    status: int | str | None = 0
    with chdir(folder), redirect_stderr(stderr):
        try:
            main(["cubicml", "report", *map(str, words)])
        except SystemExit as end:
            status = end.code
    return status, stderr.getvalue()


def written(store: Path, name: str) -> bytes:
    status, stderr = report("--store", store, "--out", name, folder=store.parent)
    assert status == 0, stderr
    return (store.parent / name).read_bytes()


def test_markdown_tells_the_result_and_the_best_trials(store: Path) -> None:
    text = written(store, "report.md").decode()
    assert "## train.py\n" in text
    assert "**180 tokens/s by the fastest config, in its latest launch**" in text
    assert "- recorded: 3 launches (2 completed, 1 out of memory)" in text
    assert "| throughput | ± | micro_batch_size |\n|---|---|---|\n| 180 tokens/s |  | 2 |\n" in text


def test_hostile_texts_are_no_markdown(store: Path) -> None:
    lines = written(store, "report.md").decode().splitlines()
    hostile = [line for line in lines if "onerror" in line]
    assert hostile
    assert [line for line in hostile if "<img" in line.replace("\\<", "")] == []
    assert [line for line in hostile if "](http" in line.replace("\\]", "")] == []
    tables = [line.replace("\\|", "") for line in hostile if line.startswith("|")]
    assert {line.count("|") for line in tables} == {3}
    assert "\x1b" not in "".join(lines)
    assert "# c" not in lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("# a", r"\# a"),
        ("1. a", r"1\. a"),
        ("1.", r"1\."),
        ("0.17 a", "0.17 a"),
        ("- a", r"\- a"),
        ("a_b", "a_b"),
        ("_a_", r"\_a\_"),
        ("&lt;", r"\&lt;"),
    ],
)
def test_a_text_is_escaped_where_it_would_be_markup(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_csv_has_a_row_for_each_trial_and_runs_no_formula(store: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(written(store, "report.csv").decode())))
    assert [row["state"] for row in rows] == ["completed", "completed", "out_of_memory", "completed"]
    assert [row["config.micro_batch_size"] for row in rows] == ["1", "2", "4", ""]
    assert [row["measurement.tokens_per_second"] for row in rows] == ["100.0", "180.0", "", "5.0"]
    assert rows[0]["config.layers"] == '["a", "a", "b"]'
    assert rows[3]["workload.program"].startswith("'=cmd")
    assert rows[2]["reason"] == "password=*** no memory"


def test_parquet_keeps_the_types(store: Path) -> None:
    table = parquet.read_table(io.BytesIO(written(store, "report.parquet")))
    assert table.num_rows == 4
    assert table["config.micro_batch_size"].to_pylist() == [1, 2, 4, None]
    assert str(table.schema.field("measurement.tokens_per_second").type) == "double"


def test_json_tells_what_the_page_tells(store: Path) -> None:
    text = written(store, "report.json").decode()
    found: dict[str, Any] = json.loads(text)
    assert SECRET not in text
    first, second = found["workloads"]
    assert found["schema"] == 1
    assert first["workload"] == {"program": "train.py", "world_size": 8}
    assert (first["launches"], first["measured"], first["failures"]) == (3, 2, 1)
    assert first["throughput"] == 180.0
    assert first["best"]["micro_batch_size"] == 2
    assert first["headline"]["figure"] == "180 tokens/s"
    assert [trial["state"] for trial in first["trials"]] == ["completed", "completed", "out_of_memory"]
    assert first["sections"]["launch_order"]["tau"] is None
    assert [each["median"] for each in first["sections"]["best_configs"]] == [180.0, 100.0]
    assert [each["launch"] for each in first["sections"]["hardware_use"]] == [1, 2]
    assert [name for name, told in first["sections"].items() if "failure" in (told or [])] == []
    assert second["launches"] == 1
    assert found["across"]["winning_values"] == []


def test_a_section_that_fails_leaves_its_cause_in_json(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worth, "data", lambda view: 1 / (view.place - view.place))
    first, _ = json.loads(written(store, "report.json"))["workloads"]
    assert first["sections"]["worth"] == {"failure": "ZeroDivisionError: division by zero"}
    assert first["sections"]["launch_order"]["tau"] is None


def test_a_picture_is_a_png(store: Path) -> None:
    assert written(store, "report.png").startswith(b"\x89PNG\r\n")


def test_text_goes_to_standard_output(store: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    status, stderr = report("--store", store, "--format", "md", "--out", "-", folder=store.parent)
    assert (status, stderr) == (0, "")
    assert capfdbinary.readouterr().out.startswith(b"# Launches in ")


def test_the_format_names_the_file(store: Path) -> None:
    status, stderr = report("--store", store, "--format", "csv", folder=store.parent)
    assert status == 0
    assert "wrote report.csv" in stderr


@pytest.mark.parametrize(
    ("module", "kind", "extra"), [("vl_convert", "png", "[report]"), ("pyarrow", "parquet", "[import]")]
)
def test_a_missing_package_is_named(
    store: Path, monkeypatch: pytest.MonkeyPatch, module: str, kind: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    status, stderr = report("--store", store, "--format", kind, folder=store.parent)
    assert status == 2
    assert f"torchx-cubicml{extra}" in stderr
    assert stderr.count("\n") == 1
