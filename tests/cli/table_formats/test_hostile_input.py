"""Damaged and hostile input: one sentence, or the rows that can be read; never another error."""

from __future__ import annotations

import io
import json
import random
import shutil
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest

from torchx_cubicml.cli.jobs_table.layouts import split_columns
from torchx_cubicml.cli.table_formats import excel
from torchx_cubicml.cli.table_formats.mlflow_runs import is_mlflow
from torchx_cubicml.cli.table_formats.records import flattened
from torchx_cubicml.cli.table_formats.registry import read_source
from torchx_cubicml.errors import RecordError

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "past_jobs"
DEEP = 200_000


def read(path: Path, file_format: str) -> tuple[int, str]:
    """Return the number of rows, and the sentence of a refusal."""
    try:
        return len(read_source(path, file_format).rows), ""
    except RecordError as error:
        return 0, str(error)


def written(tmp_path: Path, name: str, data: str | bytes) -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.json", "[" * DEEP + "]" * DEEP, "the JSON is nested too deeply"),
        ("a.json", '[{"a": ' * DEEP, "the JSON is nested too deeply"),
        ("a.json", '[{"a": 1}', "no JSON: Expecting"),
        ("a.json", '{"a": 1}', "it must be a list of objects, or an object with one list of objects"),
        ("a.json", '{"a": [{"x": 1}], "b": [{"x": 1}]}', r"lists of objects: a, b"),
        ("a.json", '[["tp"], [1]]', "it must be a list of objects"),
        ("a.json", '[{"a": ' + "9" * 5000 + "}]", "no JSON: Exceeds the limit"),
        ("a.jsonl", '{"a": 1\n{"a": \n', "there is no line in it: line 1: no JSON"),
        ("a.jsonl", b'{"a": "\xff"}\n{}\n', "save it as UTF-8"),
        ("a.parquet", b"PAR1" + b"x" * 64, "cannot read .*a.parquet"),
        ("a.xlsx", b"PK\x03\x04" + b"x" * 64, "cannot read .*a.xlsx: BadZipFile"),
    ],
)
def test_a_file_that_cannot_be_read_gives_one_sentence(
    tmp_path: Path, name: str, data: str | bytes, words: str
) -> None:
    if name.endswith((".parquet", ".xlsx")):
        pytest.importorskip("pyarrow" if name.endswith("parquet") else "openpyxl")
    with pytest.raises(RecordError, match=words) as caught:
        read_source(written(tmp_path, name, data))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x" * 10_000_000, "a value is longer than 65,536 characters"),
        ({f"key{number}": number for number in range(5000)}, "more than 4,096 keys"),
        ({"k" * 300: 1}, "is longer than 256 characters"),
        (json.loads('{"a":' * 40 + "1" + "}" * 40), "is nested more than 32 levels deep"),
        ([list(range(50_000))], "a value is longer than 65,536 characters"),
    ],
    ids=["cell", "keys", "key", "depth", "list"],
)
def test_an_object_beyond_the_limits_is_a_problem_of_its_own(tmp_path: Path, value: object, words: str) -> None:
    path = written(tmp_path, "a.json", json.dumps([{"tp": 1, "value": value}, {"tp": 2}]))
    source = read_source(path)
    assert source.cells("tp") == ["2"]
    (problem,) = source.problems
    assert problem.startswith("object 1: ")
    assert words in problem


def test_a_table_of_too_many_cells_is_refused(tmp_path: Path) -> None:
    lines = [json.dumps({f"key {number}": 1}) for number in range(4200)]
    with pytest.raises(RecordError, match="4,200 lines with 4,200 different keys are more than 16,777,216 cells"):
        read_source(written(tmp_path, "a.jsonl", "\n".join(lines)))


YAMLS = {
    "python": "!!python/object/apply:os.system ['touch pwned']",
    "bomb": "a: &a [x, x, x, x, x, x, x, x]\n"
    + "\n".join(f"{name}: &{name} [{', '.join([f'*{before}'] * 8)}]" for before, name in pairwise("abcdefghi")),
    "deep": "[" * 5000,
    "self": "&a [*a]",
    "binary": "\x01\x02",
    "list": "[1, 2]",
}


@pytest.mark.parametrize("text", YAMLS.values(), ids=YAMLS)
@pytest.mark.parametrize("sample", ["mlruns", "wandb_online"])
def test_hostile_yaml_costs_one_run(tmp_path: Path, text: str, sample: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / sample
    shutil.copytree(SAMPLES / sample, folder)
    target = min(folder.glob("*/*/meta.yaml")) if sample == "mlruns" else min(folder.glob("*/files/config.yaml"))
    target.write_text(text)
    if sample == "mlruns":
        source = read_source(folder)
        assert len(source.rows) == 2
        assert len(source.problems) == 1
        assert "meta.yaml" in source.problems[0]
    elif text == YAMLS["list"]:
        assert read_source(folder).cells("tokens_per_second") == ["47000.25"]  # of the summary alone
    else:
        with pytest.raises(RecordError, match=r"there is no run in it: run .*config.yaml is no YAML"):
            read_source(folder)
    assert not (tmp_path / "pwned").exists()


def test_each_truncation_and_flip_of_a_log_of_wandb_is_read_or_refused(tmp_path: Path) -> None:
    data = next((SAMPLES / "wandb").glob("*/*.wandb")).read_bytes()
    generator = random.Random(0)
    texts = [data[: generator.randrange(len(data))] for _ in range(40)]
    for _ in range(160):
        place = generator.randrange(7, len(data))
        texts.append(data[:place] + bytes([generator.randrange(256)]) + data[place + 1 :])
    path = written(tmp_path, "run/run-a.wandb", b"")
    n_read = 0
    for text in texts:
        path.write_bytes(text)
        n_rows, refusal = read(tmp_path, "wandb")
        n_read += n_rows
        assert "\n" not in refusal
    assert n_read > 40


def test_a_zip_that_unpacks_to_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openpyxl")
    monkeypatch.setattr(excel, "_MOST_UNPACKED", 2**24)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("xl/workbook.xml", "w") as file:
        for _ in range(17):
            file.write(bytes(2**20))
    with pytest.raises(RecordError, match="unpacks to more than 16 MiB: split it"):
        read_source(written(tmp_path, "a.xlsx", packed.getvalue()))


def test_a_sheet_with_one_far_cell_is_read(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (("tp", "tok/s"), (1, 10), (2, 20)):
        book.active.append(row)
    book.active["XFD1"] = "far"
    book.save(tmp_path / "a.xlsx")
    assert read_source(tmp_path / "a.xlsx").cells("tp") == ["1", "2"]


LOGS = {
    "dashes": "-" * 2_000_000 + " arguments -",
    "blanks": "\n" * 2_000_000 + "tps: 1",
    "spaces": " " * 2_000_000 + "step: 1 tps: 1",
    "one line": "step: 1 tps: 1 " * 200_000,
    "brackets": "[" * 2_000_000 + "tps:",
    "digits": "max allocated: " + "9" * 2_000_000 + "\nstep: 1  tps: 5\n",
    "mesh": "Building device mesh with parallelism: " + "pp=1, " * 300_000,
    "old mesh": "Building 2-D device mesh with ['dp_shard'], [" + "9" * 300 + "]",
    "config": "Running with configs: " + '{"a": ' * DEEP,
}


@pytest.mark.parametrize("text", LOGS.values(), ids=LOGS)
def test_a_hostile_log_is_read_or_refused(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, "a.log", text)
    n_rows, refusal = read(path, "logs")
    assert "\n" not in refusal
    assert bool(refusal) == (n_rows == 0)


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "notes.log", "nothing")
    with pytest.raises(RecordError, match=r"no run in it: run notes.log: no line of torchtitan or Megatron-LM"):
        read_source(tmp_path)
    with pytest.raises(RecordError, match="there is no run in it"):
        read_source(tmp_path, "mlflow")
    (tmp_path / "notes.log").rename(tmp_path / "notes.csv")
    with pytest.raises(RecordError, match=r"holds no records of a known format: name a table, or a folder of runs"):
        read_source(tmp_path)


def test_bad_files_of_deepspeed_cost_one_run(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    shutil.copytree(SAMPLES / "autotuning_results", folder)
    (folder / "z1_gas1_tmbspg3" / "metrics.json").write_text("{")
    (folder / "z2_gas1_tmbspg4" / "ds_config.json").write_text("[]")
    source = read_source(folder)
    assert [label for label, _ in source.rows] == ["z0_gas1_tmbspg8"]
    assert [problem.partition(": ")[0] for problem in source.problems] == ["run z1_gas1_tmbspg3", "run z2_gas1_tmbspg4"]
    assert "metrics.json: no JSON" in source.problems[0]
    assert "ds_config.json must be a JSON object" in source.problems[1]


def test_a_damaged_metric_of_mlflow_is_no_value(tmp_path: Path) -> None:
    folder = tmp_path / "mlruns"
    shutil.copytree(SAMPLES / "mlruns", folder)
    for number, path in enumerate(sorted(folder.glob("*/*/metrics/tokens_per_second"))):
        path.write_bytes([b"", b"1 \xff\x00 x\n17 5.5 1\n16 4.5 9"][number])
    assert sorted(read_source(folder).cells("metrics.tokens_per_second")) == ["", "", "4.5"]


def test_a_huge_cell_of_a_parquet_file_costs_one_row(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"tp": [1, 2], "note": ["x" * 10_000_000, "short"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    source = read_source(tmp_path / "a.parquet")
    assert source.cells("tp") == ["2"]
    assert source.problems[0].startswith("row 1: a value is longer than 65,536 characters")


def test_many_folders_are_told_apart_at_once() -> None:
    recipes = [f"recipe {number}/{name}" for number in range(20_000) for name in ("meta.yaml", "build.sh")]
    assert not is_mlflow(recipes)  # each folder against each file would take hours


def test_the_rows_that_a_parquet_file_claims_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from torchx_cubicml.cli.table_formats import parquet as reader

    parquet.write_table(pyarrow.table({"tp": [1] * 3000}), tmp_path / "a.parquet")
    monkeypatch.setattr(reader, "MOST_CELLS", 2999)
    with pytest.raises(RecordError, match=r"has 3,000 cells of .* MiB: more than 2,999 or 1024 MiB cannot be read"):
        read_source(tmp_path / "a.parquet")


def test_a_list_that_unpacks_to_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from torchx_cubicml.cli.table_formats import parquet as reader

    parquet.write_table(
        pyarrow.table({"sizes": [[1] * 3000], "tp": [1]}), tmp_path / "a.parquet"
    )  # repeats cost nothing
    assert (tmp_path / "a.parquet").stat().st_size < 2000
    monkeypatch.setattr(reader, "MOST_CELLS", 2999)
    with pytest.raises(RecordError, match=r"has 3,001 cells"):
        read_source(tmp_path / "a.parquet")


def test_numbers_of_thousands_of_digits_are_no_numbers(tmp_path: Path) -> None:
    digits = "9" * 5000
    header = "job_id,dp_degree,sharding_degree,mp_degree,pp_degree,ips,max_mem_usage"
    (tmp_path / "a.csv").write_text(f"{header}\n1,{digits},1,4,1,9.5,100\n")
    assert "world_size" not in read_source(tmp_path / "a.csv").headings
    config = json.dumps({"training": {"global_batch_size": digits, "seq_len": digits}})
    lines = (f" iteration {step}/ 9 | elapsed time per iteration (ms): 100.0 | loss: 1 |" for step in range(1, 9))
    (tmp_path / "a.log").write_text("\n".join((f"Running with configs: {config}", *lines)))
    read_source(tmp_path / "a.log", "logs")
    with pytest.raises(RecordError, match="a number has too many digits"):
        flattened({"x": 1 << 20_000})


@pytest.mark.parametrize("cell", ["x" * 60_000, "9" * 60_000, "x9 " * 20_000], ids=["letters", "digits", "both"])
def test_a_long_cell_is_not_searched_for_several_facts(tmp_path: Path, cell: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"parallelism": cell, "TP/PP": cell, "GPUs": cell}] * 2))
    source = read_source(tmp_path / "a.json")
    assert split_columns(source) == (source, {})  # by its patterns, this would take minutes


def test_one_far_cell_in_a_long_sheet_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for _ in range(50):
        book.active.append(["tp", 1])
    book.active.cell(row=2, column=2000, value="x")
    book.save(tmp_path / "a.xlsx")
    monkeypatch.setattr(excel, "MOST_CELLS", 50 * 1000)
    with pytest.raises(RecordError, match="more than 50,000 cells: split it"):
        read_source(tmp_path / "a.xlsx")


def test_the_log_of_a_run_of_wandb_counts_before_its_empty_summary(tmp_path: Path) -> None:
    folder = tmp_path / "wandb"
    shutil.copytree(SAMPLES / "wandb", folder)
    for run in folder.iterdir():
        written(run, "files/wandb-summary.json", '{"_wandb": {"runtime": 0}}')
    assert read_source(folder).cells("tokens_per_second") == ["41000.5", "52000"]
