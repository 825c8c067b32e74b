from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from torchx_cubicml.cli.csv_trials import TableMapping, named_columns, read_table

from torchx_cubicml.errors import RecordError
from torchx_cubicml.records.trial import State

if TYPE_CHECKING:
    from pathlib import Path

TABLE = """\
model,n_gpus,tp,mbs,speed,how,when,peak
small,8,2,4,100.5,done,2026-01-01T00:00:00Z,40.5
small,8,1,8,,oom,2026-01-02T00:00:00Z,
small,8,1,4,,crash,2026-01-03T00:00:00Z,
small,8,4,4,fast,done,2026-01-04T00:00:00Z,
small,,4,4,10,done,2026-01-05T00:00:00Z,
"""


def mapping(**changes: object) -> TableMapping:
    given: dict[str, object] = {
        "workload": named_columns(["program=model", "n_gpus"]),
        "parameters": named_columns(["tp", "mbs"]),
        "throughput": "speed",
        "unit": "tokens_per_second_per_device",
        "status": "how",
        "completed": ("done",),
        "out_of_memory": ("oom",),
        "time": "when",
        "peak_memory_gib": "peak",
    }
    return TableMapping(**{**given, **changes})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(TABLE)
    return path


def test_good_rows_become_trials_of_the_whole_job(table: Path) -> None:
    first, second, third = read_table(table, mapping()).trials
    assert first.workload == {"program": "small", "world_size": 8}
    assert first.config == {"tp_degree": 2, "micro_batch_size": 4}
    assert first.measurement is not None
    assert first.measurement.tokens_per_second == pytest.approx(804.0)
    assert first.measurement.peak_memory_gib == 40.5
    assert first.started_at == "2026-01-01T00:00:00Z"
    assert [trial.state for trial in (first, second, third)] == [State.COMPLETED, State.OUT_OF_MEMORY, State.UNKNOWN]


def test_an_empty_cell_is_no_value(table: Path) -> None:
    table.write_text("n_gpus,tp,mbs,recompute,speed\n8,NaN,4,none,10\n8,2,n/a,full,20\n")
    parameters = named_columns(["tp", "mbs", "recompute"])
    given = mapping(
        parameters=parameters,
        workload={},
        status="",
        completed=(),
        out_of_memory=(),
        time="",
        peak_memory_gib="",
        unit="tokens_per_second",
    )
    configs = [trial.config for trial in read_table(table, given).trials]
    assert configs == [
        {"micro_batch_size": 4, "activation_checkpointing": "none"},
        {"tp_degree": 2, "activation_checkpointing": "full"},
    ]


def test_bad_rows_are_named_by_line_and_reason(table: Path) -> None:
    assert read_table(table, mapping()).problems == [
        "line 5: speed must be a positive number, got 'fast'",
        "line 6: a throughput per device needs world_size, a whole number >= 1",
    ]


def test_ids_follow_from_what_rows_say(table: Path) -> None:
    table.write_text(TABLE + TABLE.splitlines()[1] + "\n")
    once, again = (read_table(table, mapping()).trials for _ in range(2))
    assert [trial.trial_id for trial in once] == [trial.trial_id for trial in again]
    assert len({trial.trial_id for trial in once}) == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unit": "furlongs"}, "unknown unit 'furlongs'; choose from tokens_per_second"),
        ({"throughput": ""}, "no throughput column"),
        ({"completed": ()}, "must be given together"),
        ({"throughput": "velocity"}, "no column 'velocity'; choose from model, n_gpus"),
    ],
    ids=["unit", "throughput", "status", "column"],
)
def test_illegal_input_is_refused(table: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(RecordError, match=words):
        read_table(table, mapping(**changes))


def test_a_mapping_file_says_the_same(table: Path, tmp_path: Path) -> None:
    path = tmp_path / "mapping.toml"
    path.write_text(
        'workload = ["program=model", "n_gpus"]\nparameters = ["tp", "mbs"]\nthroughput = "speed"\n'
        'unit = "tokens_per_second_per_device"\nstatus = "how"\ncompleted = ["done"]\nout_of_memory = ["oom"]\n'
        'time = "when"\npeak_memory_gib = "peak"\n'
    )
    assert TableMapping.from_toml(path) == mapping()
    path.write_text('speed = "tokens"\n')
    with pytest.raises(RecordError, match="unknown key 'speed'"):
        TableMapping.from_toml(path)
    path.write_text("workload = 3\nthroughput = 'speed'\n")
    with pytest.raises(RecordError, match="must be a list or a table"):
        TableMapping.from_toml(path)
    path.write_text("throughput = 'speed'\nstatus = 'how'\ncompleted = 3\n")
    with pytest.raises(RecordError, match="completed and out_of_memory must be lists, got 3"):
        TableMapping.from_toml(path)


def test_a_row_of_another_length_is_named(table: Path) -> None:
    table.write_text(TABLE + "small,8\n" + "small,8,1,4,10,done,2026,40,41\n")
    problems = read_table(table, mapping()).problems
    assert [text.partition(":")[0] for text in problems[2:]] == ["line 7", "line 8"]


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(RecordError, match="two columns are named tp_degree"):
        named_columns(["tp", "tp_degree"])


def test_a_status_is_read_in_any_case(table: Path) -> None:
    read = read_table(table, mapping(completed=("Done",), out_of_memory=("OOM",)))
    assert [trial.state for trial in read.trials] == [State.COMPLETED, State.OUT_OF_MEMORY, State.UNKNOWN]
    assert read.other_statuses == {"crash": 1}


@pytest.mark.parametrize("time", ["yesterday", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_an_illegal_time_makes_a_bad_row(table: Path, time: str) -> None:
    table.write_text(TABLE.replace("2026-01-01T00:00:00Z", time))
    assert "the time must be ISO 8601" in read_table(table, mapping()).problems[0]


def test_a_peak_that_was_not_measured_costs_no_row(table: Path) -> None:
    table.write_text(TABLE.replace("40.5", "nan"))
    first = read_table(table, mapping()).trials[0]
    assert first.measurement is not None
    assert first.measurement.peak_memory_gib is None
