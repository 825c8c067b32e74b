from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from torchx.cli.main import main

from torchx_cubicml import TrialStore

if TYPE_CHECKING:
    from pathlib import Path

TABLE = """\
Model,# Params,Layers,nGPUs,TP,mbz,gbz,kernel,System,batch size,Throughput (tok/s/GPU),MFU (%),note
gpt,1.3B,24,16,2,2,64,flash,H100,7,"1,000",40,a
gpt,1.3B,24,16,4,2,64,eager,H100,9,900,36,b
gpt,1.3B,24,16,8,2,64,eager,H100,9,OOM,,b
"""


@dataclass(frozen=True)
class Answer:
    """What a command returned and printed."""

    status: object
    out: str
    err: str


class Terminal(StringIO):
    """Standard input at which somebody types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHX_CUBICML_STORE", str(tmp_path / "store"))
    monkeypatch.setattr("sys.stdin", StringIO())
    (tmp_path / "jobs.csv").write_text(TABLE)
    return tmp_path


def importing(*words: str) -> Answer:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(["cubicml", "history", "import", "jobs.csv", *words])
        except SystemExit as end:
            return Answer(end.code or 0, out.getvalue(), err.getvalue())
    return Answer(0, out.getvalue(), err.getvalue())


def trials(folder: Path) -> list[dict[str, object]]:
    rows = [{**trial.workload, **trial.config} for trial in TrialStore(str(folder / "store"))]
    return sorted(rows, key=lambda row: str(row.get("tp_degree", row.get("tp_plan"))))


ANSWERED = ("--map", "batch size=")


def test_without_a_terminal_the_mapping_is_proposed_and_nothing_imported(folder: Path) -> None:
    done = importing()
    assert done.status == 1
    rows = [line.split()[:3] for line in done.out.splitlines()]
    assert ["#", "Params", "n_params"] in rows
    assert ["kernel", "attention_kernel", "word"] in rows
    assert ["System", "device", "text"] in rows
    assert "outcomes, never used as facts: MFU (%)" in done.out
    assert "left over: 'note' (unknown heading, 2 values)" in done.out
    assert "column 'batch size' may be micro_batch_size or global_batch_size; holds 7, 9" in done.out
    assert "--map 'batch size=<micro_batch_size|global_batch_size>' --yes" in done.out
    assert not (folder / "store").exists()


def test_an_ambiguous_column_is_asked_even_with_yes(folder: Path) -> None:
    assert importing("--yes").status == 1
    assert not (folder / "store").exists()


def test_yes_imports_as_proposed_and_says_what_is_left(folder: Path) -> None:
    done = importing(*ANSWERED, "--yes")
    assert done.status == 0
    assert done.out == "imported 3 trials; 0 already known, 0 lines skipped\n"
    assert "left over: 'batch size' (left out as asked)" in done.err
    assert "left over: 'note'" in done.err
    assert "3 rows: 2 measured, 1 out of memory" in done.err
    assert "the others lack seq_len (3)" in done.err
    assert "no trial holds pp_degree" in done.err
    first = trials(folder)[0]
    assert first["tp_degree"] == 2
    assert first["n_params"] == 1_300_000_000
    assert first["attention_kernel"] == "flash_attention"
    assert {"mfu", "note", "MFU (%)"}.isdisjoint(first)


def test_the_printed_command_imports_the_table(folder: Path) -> None:
    import shlex

    done = importing(*ANSWERED, "--fact", "seq_len=4096", "--text", "note", "--map", "note=network name")
    command = done.out.splitlines()[-1].strip()
    words = shlex.split(command)
    assert words[:5] == ["torchx", "cubicml", "history", "import", "jobs.csv"]
    assert importing(*words[5:]).status == 0
    first = trials(folder)[0]
    assert (first["seq_len"], first["network name"]) == (4096, "a")


def test_map_overrides_and_text_keeps_a_column(folder: Path) -> None:
    mapped = ("--map", "mbz=gradient accumulation", "--map", "note=tp_plan", "--map", "TP=", "--text", "Layers")
    assert importing(*ANSWERED, *mapped, "--yes").status == 0
    first = trials(folder)[0]
    assert first["gradient_accumulation_steps"] == 2
    assert first["tp_plan"] == "a"
    assert first["n_layers"] == "24"
    assert "tp_degree" not in first


def test_on_a_terminal_the_user_answers_and_confirms(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("nonsense\n\ny\n"))
    done = importing()
    assert done.status == 0
    assert "Choose from micro_batch_size, global_batch_size, or nothing:" in done.out
    assert "Import 3 rows as proposed? [y/N]" in done.out
    assert len(trials(folder)) == 3


def test_on_a_terminal_no_means_no(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("\n\n"))
    assert importing().status == 1
    assert not (folder / "store").exists()


def test_json_gives_the_proposal(folder: Path) -> None:
    done = importing("--json")
    assert done.status == 1
    found = json.loads(done.out)
    assert found["imported"] == 0
    assert found["questions"] == {"batch size": ["micro_batch_size", "global_batch_size"]}
    assert {"column": "TP", "name": "tp_degree", "reading": "whole number", "example": "2"} in found["proposed"]
    assert found["outcomes"] == ["MFU (%)"]


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 1000)])
def test_the_heading_of_a_named_column_states_its_unit(unit: str, factor: int, folder: Path) -> None:
    heading = f"Iteration time ({unit})"
    (folder / "jobs.csv").write_text(f"nGPUs,global batch,{heading}\n8,64,{2 * factor}\n")
    assert importing("--throughput", heading, "--yes").status == 0
    (trial,) = TrialStore(str(folder / "store"))
    assert trial.measurement is not None
    assert trial.measurement.samples_per_second == 32.0


def test_the_time_of_an_iteration_beside_micro_batches_is_asked_for(folder: Path) -> None:
    (folder / "jobs.csv").write_text("nGPUs,micro batch,accumulation steps,Iteration time (s)\n8,2,4,2\n")
    done = importing("--throughput", "Iteration time (s)", "--yes")
    assert done.status != 0
    assert "one of its micro batches: give --unit seconds_per_step or --unit seconds_per_micro_batch" in done.err
    assert importing("--throughput", "Iteration time (s)", "--unit", "seconds_per_step", "--yes").status == 0


@pytest.mark.parametrize(
    ("table", "fact", "samples"),
    [
        ("nGPUs,micro batch,accumulation steps,{}\n8,2,1,2\n8,4,1,4\n", "", 8.0),
        ("nGPUs,micro batch,{}\n8,2,2\n8,4,4\n", "gradient_accumulation_steps=1", 8.0),
        ("nGPUs,global batch,{}\n8,16,2\n8,32,4\n", "", 8.0),
    ],
    ids=["one micro batch in every row", "one by a fact", "no micro batches"],
)
def test_the_time_of_an_iteration_of_one_micro_batch_is_that_of_a_step(
    table: str, fact: str, samples: float, folder: Path
) -> None:
    (folder / "jobs.csv").write_text(table.format("Iteration time (s)"))
    done = importing("--throughput", "Iteration time (s)", *(("--fact", fact) if fact else ()), "--yes")
    assert done.status == 0, done.err
    rates = [each.measurement.samples_per_second for each in TrialStore(str(folder / "store")) if each.measurement]
    assert rates == [samples, samples]


@pytest.mark.parametrize("named", [(), ("--throughput", "Iteration time (s)")])
def test_steps_alone_are_counted_where_no_column_tells_the_micro_batches(named: tuple[str, ...], folder: Path) -> None:
    (folder / "jobs.csv").write_text("nGPUs,micro batch,Iteration time (s)\n8,2,2\n8,4,4\n")
    line = (
        "'Iteration time (s)' gives steps per second, and no samples: no column is global_batch_size, or "
        "gradient_accumulation_steps; name one with --map, or give --fact gradient_accumulation_steps=1 or the like"
    )
    proposed = importing(*named)
    assert (proposed.status, line in " ".join(proposed.out.split())) == (1, True)
    done = importing(*named, "--yes")
    assert (done.status, line in " ".join(done.err.split())) == (0, True)
    measured = [each.measurement for each in TrialStore(str(folder / "store"))]
    found = sorted((each.steps_per_second, each.samples_per_second) for each in measured if each is not None)
    assert found == [(0.25, None), (0.5, None)]


def test_an_open_question_on_the_batch_comes_before_steps(folder: Path) -> None:
    (folder / "jobs.csv").write_text("nGPUs,batch size,step time (s)\n8,2,2\n8,4,4\n")
    proposed = importing()
    assert "'batch size'" in proposed.out
    assert "gives steps per second" not in proposed.out


def test_a_fact_may_tell_of_micro_batches(folder: Path) -> None:
    (folder / "jobs.csv").write_text("nGPUs,micro batch,Iteration time (s)\n8,2,2\n")
    done = importing("--throughput", "Iteration time (s)", "--fact", "gradient_accumulation_steps=4", "--yes")
    assert "one of its micro batches: give --unit seconds_per_step or --unit seconds_per_micro_batch" in done.err


def test_the_last_row_may_tell_of_micro_batches(folder: Path) -> None:
    rows = [*("8,2,1,2" for _ in range(2500)), "8,2,4,2"]
    (folder / "jobs.csv").write_text("\n".join(["nGPUs,micro batch,accumulation steps,Iteration time (s)", *rows]))
    done = importing("--throughput", "Iteration time (s)", "--yes")
    assert "one of its micro batches: give --unit seconds_per_step or --unit seconds_per_micro_batch" in done.err


OLD = ("--workload", "nGPUs,Layers", "--parameters", "TP", "--throughput", "Throughput (tok/s/GPU)")


def test_complete_options_import_what_they_name_and_list_the_rest(folder: Path) -> None:
    done = importing(*OLD)
    assert done.status == 0
    assert "not imported: 'Model' (looks like program), '# Params' (looks like n_params)" in done.err
    assert "--yes adds them" in done.err
    first = trials(folder)[0]
    assert first == {"program": "jobs", "world_size": 16, "n_layers": 24, "tp_degree": 2}


def test_complete_options_and_map_name_columns_together(folder: Path) -> None:
    done = importing(*OLD, "--map", "mbz=micro_batch_size", "--map", "Model=")
    assert done.status == 0
    assert "'mbz'" not in done.err
    assert trials(folder)[0]["micro_batch_size"] == 2


def test_a_parameter_may_bear_the_name_of_a_role(folder: Path) -> None:
    (folder / "jobs.csv").write_text("status,tok/s\nfast,10\nslow,5\n")
    assert importing("--parameters", "status", "--throughput", "tok/s").status == 0
    assert sorted(row["status"] for row in trials(folder)) == ["fast", "slow"]


def test_complete_options_with_yes_add_what_is_proposed(folder: Path) -> None:
    assert importing(*OLD, *ANSWERED, "--yes").status == 0
    assert trials(folder)[0]["micro_batch_size"] == 2


REFUSED = {
    "no-column": (("--map", "nothing=tp_degree"), "no column 'nothing'; choose from Model"),
    "no-unit": (("--map", "note=throughput"), "--map COLUMN=throughput has no unit; choose from tokens_per_second"),
    "unit": (("--unit", "furlongs"), "argument --unit: invalid choice: 'furlongs' (choose from "),
    "outcome": (("--map", "MFU (%)=mfu", *ANSWERED, "--yes"), "is an outcome of a run"),
    "no-rate": (("--map", "Throughput (tok/s/GPU)="), "no column is a throughput or the time of a step"),
    "status": (("--status", "note", *ANSWERED, "--yes"), "no status in column 'note' says that a job ran"),
    "fact": (("--fact", "seq_len"), "--fact must be NAME=VALUE"),
    "map": (("--map", "seq_len"), "--map must be COLUMN=NAME"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_options_are_refused_with_a_sentence(folder: Path, case: str) -> None:
    words, expected = REFUSED[case]
    done = importing(*words)
    assert done.status == 2
    assert expected in done.err
    assert "Traceback" not in done.err


def test_a_mapping_file_and_an_option_that_it_states_are_refused(folder: Path) -> None:
    (folder / "jobs.toml").write_text('throughput = "x"\n')
    done = importing("--mapping", "jobs.toml", "--program", "train.py")
    assert done.status == 2
    assert "give --program or --mapping, not both: the file states it" in done.err


def test_rows_that_disagree_and_unknown_words_are_named(folder: Path) -> None:
    (folder / "jobs.csv").write_text(
        "GPUs,DP,TP,precision,tok/s\n16,8,2,bf16,10\n16,8,4,bf16,10\n16,8,2,purple,10\n16,,2,bf16,10\n"
    )
    done = importing("--yes")
    assert "line 3: dp_degree 8 x tp_degree 4 = 32, but world_size is 16" in done.err
    assert "precision keeps words that are no standard ones, each as its own category: 'purple' (1 rows)" in done.err
    assert "rows without a value: dp_degree (1)" in done.err
    assert "imported 4 trials" in done.out


def test_an_unknown_precision_is_not_covered(folder: Path) -> None:
    (folder / "jobs.csv").write_text(
        "GPUs,layers,d_model,seq,mbs,precision,tok/s\n8,2,64,128,4,bf16,10\n8,2,64,128,4,nvfp4,12\n"
    )
    done = importing("--yes")
    assert (
        "the roofline formulas cover 1 of 2 trials; the others lack a known precision instead of nvfp4 (1)" in done.err
    )


def test_a_proposal_says_how_many_rows_it_skips(folder: Path) -> None:
    (folder / "jobs.csv").write_text("tp,mbs,tok/s\n1,2,5\n2,2\n4,2,5\n8,2,5,6\n")
    assert "cannot read 2 lines: line 3: the number of fields differs from the header" in importing().out
    assert len(json.loads(importing("--json").out)["skipped"]) == 2


def test_the_printed_command_names_the_given_format(folder: Path) -> None:
    (folder / "jobs.csv").write_text('{"tp": 1, "tok/s": 5, "model": {"layers": 2}}\n')
    command = importing("--format", "jsonl").out.splitlines()[-1].strip()
    assert command == "torchx cubicml history import jobs.csv --format=jsonl --yes"
    assert importing("--format", "jsonl", "--yes").status == 0
    assert trials(folder)[0]["n_layers"] == 2


def test_rows_that_cannot_be_read_and_remarks_on_the_reading_are_shown(folder: Path) -> None:
    (folder / "jobs.csv").unlink()
    for name, text in {
        "z1": '{"num_gpus": 2, "num_nodes": 1, "ds_config": {"train_batch_size": 8}}',
        "z2": "{",
    }.items():
        (folder / "jobs.csv" / name).mkdir(parents=True)
        (folder / "jobs.csv" / name / "exp.json").write_text(text)
    (folder / "jobs.csv" / "z1" / "metrics.json").write_text('{"throughput": 5.0}')
    shown = importing().out
    assert "DeepSpeed's autotuner times forward, backward and step only" in shown
    assert "cannot read 1 run: run z2: exp.json: no JSON" in shown
    done = importing("--yes")
    assert done.out == "imported 1 trials; 0 already known, 1 lines skipped\n"
    assert "DeepSpeed's autotuner" in done.err
