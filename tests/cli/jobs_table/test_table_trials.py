from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli.jobs_table.mapping import TableMapping, column_names, fact_values, named_columns
from torchx_cubicml.cli.jobs_table.table_trials import ReadTable, table_trials
from torchx_cubicml.cli.table_formats.registry import read_source
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


def read_table(path: Path, given: TableMapping) -> ReadTable:
    return table_trials(read_source(path), given)


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


@pytest.mark.parametrize("text", ["tp_degree", "=tp_degree"])
def test_a_column_needs_a_name(text: str) -> None:
    with pytest.raises(RecordError, match="--map must be COLUMN=NAME"):
        column_names([text])
    with pytest.raises(RecordError, match="--map names column 'a' twice"):
        column_names(["a=b", "a=c"])


def test_a_fact_needs_a_value() -> None:
    with pytest.raises(RecordError, match="--fact must be NAME=VALUE"):
        fact_values(["seq_len="])
    assert fact_values(["Sequence Length=4,096", "GPU type=H100"]) == {"seq_len": 4096, "device": "H100"}


def plain(**changes: object) -> TableMapping:
    return mapping(
        **{
            "workload": {"world_size": "GPUs", "seq_len": "seq"},
            "parameters": {"micro_batch_size": "mbs"},
            "status": "",
            "completed": (),
            "out_of_memory": (),
            "time": "",
            "peak_memory_gib": "",
            "unit": "tokens_per_second",
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("header", "row", "unit", "tokens", "samples"),
    [
        ("GPUs,seq,mbs,gbs,speed", "8,1k,4,64,41000", "tokens_per_second", 41_000, None),
        ("GPUs,seq,mbs,gbs,speed", "8,1k,4,64,2 s", "seconds_per_step", 64 * 1024 / 2, None),
        ("GPUs,seq,mbs,gbs,speed", "8,1k,4,64,500", "milliseconds_per_step", 64 * 1024 / 0.5, None),
        ("GPUs,seq,mbs,gbs,speed", "8,1k,4,64,500 ms", "seconds_per_step", 64 * 1024 / 0.5, None),
        ("GPUs,seq,mbs,gbs,speed", "8,,4,64,2", "seconds_per_step", None, 32),
        ("GPUs,seq,mbs,gbs,speed", "8,1k,4,64,0.5", "steps_per_second", 64 * 1024 / 2, None),
        ("GPUs,seq,mbs,gbs,step time (ms)", "8,1k,4,64,250", "seconds_per_step", 64 * 1024 / 0.25, None),
        ("GPUs,seq,mbs,gbs,ktok/s", "8,1k,4,64,41", "tokens_per_second", 41_000, None),
    ],
)
def test_a_unit_and_a_batch_give_a_throughput(
    table: Path, header: str, row: str, unit: str, tokens: float | None, samples: float | None
) -> None:
    table.write_text(f"{header}\n{row}\n")
    given = plain(
        unit=unit,
        throughput=header.rpartition(",")[2],
        parameters={"micro_batch_size": "mbs", "global_batch_size": "gbs"},
    )
    (trial,) = read_table(table, given).trials
    assert trial.measurement is not None
    assert (trial.measurement.tokens_per_second, trial.measurement.samples_per_second) == (tokens, samples)


def test_a_step_time_without_a_batch_counts_steps(table: Path) -> None:
    table.write_text("GPUs,seq,mbs,speed\n8,1k,4,2\n")
    (trial,) = read_table(table, plain(unit="seconds_per_step")).trials
    assert trial.measurement is not None
    assert trial.measurement.steps_per_second == 0.5
    assert (trial.measurement.tokens_per_second, trial.measurement.samples_per_second) == (None, None)
    given = plain(unit="seconds_per_step", facts={"gradient_accumulation_steps": 2})
    (trial,) = read_table(table, given).trials
    assert trial.measurement is not None
    assert trial.measurement.tokens_per_second == 4 * 2 * 8 * 1024 / 2
    assert trial.workload["gradient_accumulation_steps"] == 2


@pytest.mark.parametrize(
    ("heading", "cell", "unit", "words"),
    [
        ("step_time", "0.5", "tokens_per_second", "is a time, not a throughput: give --unit seconds_per_step"),
        ("speed", "350 ms", "tokens_per_second", "is a time, not a throughput"),
        ("tok/s", "4100", "seconds_per_step", "is a throughput, not a time: give --unit tokens_per_second"),
    ],
)
def test_a_time_is_never_read_as_a_throughput(table: Path, heading: str, cell: str, unit: str, words: str) -> None:
    table.write_text(f"GPUs,seq,mbs,{heading}\n8,1k,4,{cell}\n")
    with pytest.raises(RecordError, match=words):
        read_table(table, plain(throughput=heading, unit=unit))


@pytest.mark.parametrize("column", ["MFU (%)", "loss", "peak_mem_gb", "TFLOP/s/GPU", "tokens_per_sec"])
def test_an_outcome_is_never_a_fact(table: Path, column: str) -> None:
    table.write_text(f"GPUs,seq,mbs,{column},speed\n8,1k,4,1,2\n")
    with pytest.raises(RecordError, match="is an outcome of a run"):
        read_table(table, plain(parameters={"micro_batch_size": "mbs", "x": column}))


def test_words_and_switches_become_the_standard_ones(table: Path) -> None:
    table.write_text(
        "AC,dtype,compile,stack,image,n,speed\nevery_layer,nvfp4,1,25.09,26.10,odd,5\nodd,BF16,0,26.10,7,2,5\n"
    )
    names = {"activation_checkpointing": "AC", "precision": "dtype", "compile": "compile", "n_layers": "n"}
    given = plain(workload={}, parameters={**names, "stack": "stack", "container": "image"})
    read = read_table(table, given)
    assert [trial.config for trial in read.trials] == [
        {
            "activation_checkpointing": "full",
            "precision": "nvfp4",
            "compile": True,
            "n_layers": "odd",
            "stack": "25.09",
            "container": "26.10",
        },
        {
            "activation_checkpointing": "odd",
            "precision": "bf16",
            "compile": False,
            "n_layers": 2,
            "stack": "26.10",
            "container": "7",
        },
    ]
    assert read.unknown_words == {"activation_checkpointing": {"odd": 1}, "n_layers": {"odd": 1}}


def test_text_columns_stay_as_they_are(table: Path) -> None:
    table.write_text("GPUs,seq,mbs,tune,speed\n8,1k,4,1.50,5\n")
    parameters = {"micro_batch_size": "mbs", "tune": "tune"}
    (as_number,) = read_table(table, plain(parameters=parameters)).trials
    (as_text,) = read_table(table, plain(parameters=parameters, text=frozenset({"tune"}))).trials
    assert (as_number.config["tune"], as_text.config["tune"]) == (1.5, "1.50")


@pytest.mark.parametrize("cell", ["0.5", "-1", "1.5k"])
def test_an_impossible_count_makes_a_bad_row(table: Path, cell: str) -> None:
    table.write_text(f"GPUs,seq,mbs,speed\n8,{cell},4,5\n8,1k,4,5\n")
    read = read_table(table, plain())
    assert len(read.trials) == (2 if cell == "1.5k" else 1)
    assert all("seq_len must be a whole number >= 1" in problem for problem in read.problems)


def test_papers_write_the_failure_in_place_of_the_throughput(table: Path) -> None:
    table.write_text("GPUs,seq,mbs,speed\n8,1k,4,5\n8,1k,8,OOM\n8,1k,16,Fail\n8,1k,2,\n")
    read = read_table(table, plain())
    assert [trial.state for trial in read.trials] == [State.COMPLETED, State.OUT_OF_MEMORY, State.UNKNOWN]
    assert read.other_statuses == {"Fail": 1}
    assert read.problems == ["line 5: speed must be a positive number, got ''"]


def test_a_switch_of_a_format_makes_the_precision(table: Path) -> None:
    table.write_text("mbs,dtype,fp8,speed\n4,bf16,hybrid,5\n4,bf16,none,5\n")
    given = plain(workload={}, parameters={"micro_batch_size": "mbs", "precision": "dtype", "precision=fp8": "fp8"})
    assert [trial.config["precision"] for trial in read_table(table, given).trials] == ["fp8", "bf16"]


def test_the_memory_of_a_device_is_part_of_its_name(table: Path) -> None:
    table.write_text("mbs,gpu,ram,speed\n4,A100,40GB,5\n4,A100-80GB,80GB,5\n")
    workload = {"device": "gpu", "device_memory_gib": "ram"}
    trials = read_table(table, plain(workload=workload)).trials
    assert [trial.workload["device"] for trial in trials] == ["A100 40GB", "A100-80GB"]


def test_a_batch_of_tokens_becomes_one_of_samples(table: Path) -> None:
    table.write_text('GPUs,seq,mbs,batch (tokens),speed\n8,4k,4,4M,5\n8,4096,4,"1,048,576",5\n')
    given = plain(parameters={"micro_batch_size": "mbs", "global_batch_tokens": "batch (tokens)"})
    assert [trial.config["global_batch_size"] for trial in read_table(table, given).trials] == [1024, 256]


@pytest.mark.parametrize(
    ("heading", "cell", "samples"),
    [
        ("batch (k tokens)", "512", 128),
        ("batch (k tokens)", "262.1", 64),
        ("batch (k tokens)", "6291.5", 1536),
        ("batch (M tokens)", "4", 1024),
        ("batch (tokens)", "1048576", 256),
        ("batch (tokens)", "10240", 2.5),
    ],
)
def test_a_rounded_batch_of_tokens_is_a_whole_number_of_samples(
    table: Path, heading: str, cell: str, samples: float
) -> None:
    table.write_text(f"GPUs,seq,mbs,{heading},speed\n8,4k,4,{cell},5\n")
    given = plain(parameters={"micro_batch_size": "mbs", "global_batch_tokens": heading})
    assert [trial.config["global_batch_size"] for trial in read_table(table, given).trials] == [samples]


def test_columns_of_which_nothing_is_said_are_counted(table: Path) -> None:
    table.write_text("GPUs,seq,mbs,speed\n8,1k,4,5\n8,?,4,5\n8,1k,,5\n")
    read = read_table(
        table, plain(parameters={"micro_batch_size": "mbs", "world_size": "GPUs"}, workload={"seq_len": "seq"})
    )
    assert read.gaps == {"seq_len": 1, "micro_batch_size": 1}


@pytest.mark.parametrize(
    ("header", "row", "config"),
    [
        ("GPUs,mbs,dev,speed", "8,4,32,5", {"gradient_accumulation_steps": 8, "global_batch_size": 256}),
        ("GPUs,mbs,dev,speed", "8,5,32,5", {"global_batch_size": 256}),
        ("mbs,dev,speed", "4,32,5", {"gradient_accumulation_steps": 8}),
    ],
    ids=["both", "no-whole-accumulation", "unknown-ranks"],
)
def test_a_batch_of_one_rank_gives_accumulation_and_global_batch(
    table: Path, header: str, row: str, config: dict[str, object]
) -> None:
    table.write_text(f"{header}\n{row}\n")
    workload = {"world_size": "GPUs"} if "GPUs" in header else {}
    given = plain(workload=workload, parameters={"micro_batch_size": "mbs", "device_batch_size": "dev"})
    (trial,) = read_table(table, given).trials
    assert {name: value for name, value in trial.config.items() if name != "micro_batch_size"} == config


def test_a_batch_of_one_rank_turns_a_step_time_into_a_throughput(table: Path) -> None:
    table.write_text("GPUs,seq,dev,speed\n8,1k,32,2\n")
    (trial,) = read_table(table, plain(unit="seconds_per_step", parameters={"device_batch_size": "dev"})).trials
    assert trial.measurement is not None
    assert trial.measurement.tokens_per_second == 8 * 32 * 1024 / 2


def test_a_switch_of_sharded_parameters_says_full_sharding_or_its_own_word(table: Path) -> None:
    table.write_text("mbs,Shard params,speed\n4,on,5\n4,off,5\n")
    read = read_table(
        table, plain(workload={}, parameters={"micro_batch_size": "mbs", "sharding_strategy": "Shard params"})
    )
    assert [trial.config["sharding_strategy"] for trial in read.trials] == ["FULL_SHARD", "off"]
    assert read.unknown_words == {"sharding_strategy": {"off": 1}}


@pytest.mark.parametrize(("heading", "cell"), [("peak (MB/GPU)", "5488.64"), ("max_mem (GiB/GPU)", "5.36")])
def test_a_memory_of_one_device_has_its_unit(table: Path, heading: str, cell: str) -> None:
    table.write_text(f"GPUs,seq,mbs,{heading},speed\n8,1k,4,{cell},5\n")
    (trial,) = read_table(table, plain(peak_memory_gib=heading)).trials
    assert trial.measurement is not None
    assert trial.measurement.peak_memory_gib == pytest.approx(5.36)


def test_thousands_of_a_vocabulary_are_decimal_and_those_of_a_length_binary(table: Path) -> None:
    table.write_text("GPUs,seq,vocab,mbs,speed\n8,4k,128k,4,5\n")
    (trial,) = read_table(table, plain(workload={"seq_len": "seq", "vocab_size": "vocab"})).trials
    assert (trial.workload["seq_len"], trial.workload["vocab_size"]) == (4096, 128_000)


@pytest.mark.parametrize(
    ("header", "row"), [("GA,gbs", "4,64"), ("GA", "4"), ("gbs", "64")], ids=["both", "accumulation", "global-batch"]
)
@pytest.mark.parametrize(
    ("unit", "cell"), [("seconds_per_micro_batch", "0.5"), ("milliseconds_per_micro_batch", "500")]
)
def test_a_time_of_a_micro_batch_counts_as_often_as_a_step_has_them(
    table: Path, header: str, row: str, unit: str, cell: str
) -> None:
    table.write_text(f"GPUs,mbs,{header},speed\n8,2,{row},{cell}\n")
    names = {"mbs": "micro_batch_size", "GA": "gradient_accumulation_steps", "gbs": "global_batch_size"}
    parameters = {names[column]: column for column in ("mbs", *header.split(","))}
    (trial,) = read_table(table, plain(unit=unit, workload={"world_size": "GPUs"}, parameters=parameters)).trials
    assert trial.measurement is not None
    assert trial.measurement.samples_per_second == 64 / (4 * 0.5)


def test_a_time_of_a_micro_batch_needs_their_number(table: Path) -> None:
    table.write_text("mbs,speed\n2,0.5\n")
    (problem,) = read_table(table, plain(unit="seconds_per_micro_batch", workload={})).problems
    assert "a time of a micro batch needs gradient_accumulation_steps to become a throughput" in problem
