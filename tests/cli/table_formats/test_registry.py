from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import fsspec
import pytest

from torchx_cubicml.cli import history_import
from torchx_cubicml.cli.table_formats.registry import FORMATS, read_source
from torchx_cubicml.errors import RecordError, StoreError

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "tests" / "data" / "past_jobs"


@pytest.mark.parametrize(
    ("name", "data", "headings"),
    [
        ("jobs", b'[{"tp": 1}]', ("tp",)),
        ("jobs.txt", b'{"tp": 1}\n{"tp": 2}\n', ("tp",)),
        ("one.jsonl", b'{"tp": 1, "runs": [{"a": 1}]}', ("tp", "runs")),
        ("jobs.json", b'\xef\xbb\xbf {"runs": [{"tp": 1}]}', ("tp",)),
        ("jobs.json", '[{"tp": 1}]'.encode("utf-16"), ("tp",)),
        ("jobs.json", b"tp,speed\n1,2\n", ("tp", "speed")),  # the content counts before the name
        ("jobs.dat", b"[note],tp\nx,2\n", ("[note]", "tp")),
    ],
)
def test_the_content_tells_the_format(tmp_path: Path, name: str, data: bytes, headings: tuple[str, ...]) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert read_source(path).headings == headings


def test_a_named_format_overrides(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text('{"tp": 1}')
    with pytest.raises(RecordError, match="it must be a list of objects"):
        read_source(path)
    assert read_source(path, "jsonl").cells("tp") == ["1"]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("jobs.xls", b"\xd0\xcf\x11\xe0rest", "an old Excel workbook, which is not read; .*read_excel"),
        ("jobs.ods", b"PK\x03\x04rest", "an OpenDocument sheet, which is not read; .*read_excel"),
        ("jobs.csv.gz", gzip.compress(b"tp,speed\n1,2\n", mtime=0), "a compressed file, which is not read; .*gzip -dk"),
        ("jobs.feather", b"ARROW1rest", "an Arrow file, which is not read; .*read_feather"),
    ],
)
def test_another_format_is_refused_with_the_way_to_convert_it(
    tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(RecordError, match=words):
        read_source(path)


def test_an_unknown_format_is_refused_with_the_legal_ones() -> None:
    with pytest.raises(
        RecordError, match="unknown format 'xml'; choose from parquet, xlsx, jsonl, json, paddle, mlflow"
    ):
        read_source(SAMPLES / "jobs.json", "xml")


@pytest.mark.parametrize("file_format", ["mlflow", "wandb", "deepspeed"])
def test_a_file_is_no_folder_format(file_format: str) -> None:
    with pytest.raises(RecordError, match=f"{file_format} is a format of folders, and .*jobs.json is a file"):
        read_source(SAMPLES / "jobs.json", file_format)


def test_a_folder_is_no_file_format() -> None:
    with pytest.raises(RecordError, match=r"json is a format of files, and .*mlruns is a folder"):
        read_source(SAMPLES / "mlruns", "json")


def test_a_folder_of_several_kinds_is_refused_until_one_is_named() -> None:
    with pytest.raises(RecordError, match="holds records of mlflow, wandb and deepspeed: choose one with --format"):
        read_source(SAMPLES)
    assert len(read_source(SAMPLES, "deepspeed").rows) == 3


def test_an_empty_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no file"):
        read_source(tmp_path)
    with pytest.raises(RecordError, match="there is no such file or folder"):
        read_source(tmp_path / "absent.csv")


@pytest.mark.parametrize("url", ["nosuch://host/jobs.csv", "s4://bucket/jobs"])
def test_an_unknown_protocol_is_refused(url: str) -> None:
    with pytest.raises(RecordError, match="cannot read"):
        read_source(url)


def test_a_chained_url_is_refused() -> None:
    with pytest.raises((RecordError, StoreError), match="wraps another store"):
        read_source("zip://jobs.csv::file:///jobs.zip")


@pytest.mark.parametrize("sample", ["jobs.json", "mlruns", "autotuning_results"])
def test_any_url_of_fsspec_is_read(sample: str) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(SAMPLES / sample), f"/past/{sample}", recursive=True)
    try:
        far, near = read_source(f"memory://past/{sample}"), read_source(SAMPLES / sample)
        assert (far.headings, far.rows, far.stem) == (near.headings, near.rows, near.stem)
    finally:
        memory.rm("/past", recursive=True)


def test_a_secret_of_a_url_is_not_printed() -> None:
    with pytest.raises((RecordError, StoreError)) as caught:
        read_source("ftp://me:hunter2@127.0.0.1:1/jobs.csv")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("sample", "package"), [("jobs.parquet", "pyarrow"), ("jobs.xlsx", "openpyxl")])
def test_without_the_extra_a_sentence_says_what_to_install(
    sample: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RecordError, match=rf"which needs {package}: pip install 'torchx-cubicml\[import\]'"):
        read_source(SAMPLES / sample)


def test_the_help_and_the_page_name_each_format() -> None:
    import argparse

    parser = argparse.ArgumentParser()
    history_import.add_arguments(parser)
    words = next(action.help for action in parser._actions if action.dest == "format")
    assert words is not None
    named = words.partition(": ")[2].partition(" (default")[0].replace(" or ", ", ").split(", ")
    assert sorted(named) == sorted(FORMATS)
    page = (ROOT / "docs" / "importing.md").read_text()
    assert [name for name in FORMATS if f"`{name}`" not in page] == []


def test_a_link_out_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(json.dumps({"name": "x"}))
    run = tmp_path / "results" / "z1"
    run.mkdir(parents=True)
    (run / "exp.json").write_text('{"num_gpus": 1, "num_nodes": 1}')
    (run / "metrics.json").symlink_to(tmp_path / "secret")
    (tmp_path / "results" / "z2").symlink_to(run)
    source = read_source(tmp_path / "results")
    assert [label for label, _ in source.rows] == ["z1"]
    assert source.cells("status") == ["failed"]
