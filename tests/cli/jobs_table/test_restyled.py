"""A table restyled at random (headings, words, separators, units) gives the same trials as the plain one."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_cubicml.cli.jobs_table.column_roles import OUTCOME
from torchx_cubicml.cli.jobs_table.given_mapping import GivenMapping
from torchx_cubicml.cli.jobs_table.layouts import split_columns
from torchx_cubicml.cli.jobs_table.proposal import propose_columns
from torchx_cubicml.cli.jobs_table.synonyms import OUTCOME_SYNONYMS, PARAMETER_SYNONYMS, WORKLOAD_SYNONYMS
from torchx_cubicml.cli.jobs_table.table_trials import ReadTable, table_trials
from torchx_cubicml.cli.table_formats.registry import read_source
from torchx_cubicml.records.standard_words import SPELLINGS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torchx_cubicml.cli.jobs_table.proposal import ColumnPlan

PLAIN = {
    "n_params": [1_300_000_000, 6_700_000_000],
    "n_layers": [24, 32],
    "d_model": [2048, 4096],
    "n_heads": [16, 32],
    "vocab_size": [50304],
    "seq_len": [2048, 4096],
    "world_size": [64],
    "device": ["A100-80GB", "H100"],
    "tp_degree": [1, 2, 4],
    "pp_degree": [1, 2],
    "micro_batch_size": [1, 2, 8],
    "gradient_accumulation_steps": [1, 4],
    "zero_stage": [0, 1],
    "precision": ["bf16", "fp8", "nvfp4"],
    "activation_checkpointing": ["none", "selective", "full"],
    "attention_kernel": ["flash_attention", "math", "sdpa"],
    "compile": [True, False],
}
# Spellings that a heading of their own kind alone gives this meaning.
AMBIGUOUS_WORDS = {"layer", "op", "te", "none", "0", "1", "native", "standard", "manual"}
FORMATS = {"bf16": ["bf16", "BF16", "amp_bf16", "bfloat16"], "fp8": ["fp8", "FP8 hybrid"], "nvfp4": ["nvfp4", "NVFP4"]}


def plain_rows(rng: random.Random, count: int) -> list[dict[str, object]]:
    rows = [{name: rng.choice(values) for name, values in PLAIN.items()} for _ in range(count)]
    for number, row in enumerate(rows):
        dp = row["world_size"] // (row["tp_degree"] * row["pp_degree"])
        row["global_batch_size"] = row["micro_batch_size"] * row["gradient_accumulation_steps"] * dp
        row["tokens_per_second"] = 1000.0 + 8.0 * number
    return rows


def restyled_heading(name: str, rng: random.Random) -> str:
    synonyms = {**PARAMETER_SYNONYMS, **WORKLOAD_SYNONYMS}.get(name, ())
    words = rng.choice([name, name, *(each for each in synonyms if "/" not in each and each != "ZeRO-1")]).split()
    words = [part for word in words for part in word.split("_")]
    joined = rng.choice([" ".join, "_".join, "-".join, camel])(words)
    return rng.choice([joined, joined.upper() if not any(map(str.isupper, joined)) else joined, f" {joined} "])


def camel(words: Sequence[str]) -> str:
    return "".join(word if word.isupper() else word.capitalize() for word in words)


def restyled_cell(name: str, value: object, rng: random.Random) -> str:
    if name == "precision":
        return rng.choice(FORMATS[str(value)])
    if name in SPELLINGS:
        spellings = [each for each in SPELLINGS[name][str(value)] if each not in AMBIGUOUS_WORDS and each.isascii()]
        return rng.choice([str(value), *spellings])
    if name == "compile":
        return rng.choice(["yes", "true", "ON", "enabled", "1"] if value else ["no", "False", "off", "disabled", "0"])
    if name == "zero_stage":
        return rng.choice([str(value), f"ZeRO-{value}", f"stage {value}"])
    if isinstance(value, int):
        return rng.choice(
            [str(value), f"{value:,}", f"{value}.0", *([f"{value // 1024}k"] if name == "seq_len" else [])]
        )
    return f"{value}"


def units(name: str, rng: random.Random) -> tuple[str, Callable[[dict[str, object], float], float]]:
    """Return a heading for the throughput, and the number under it."""
    return rng.choice(
        [
            (rng.choice(["tokens/s", "tok_s", "Tokens per second", "Throughput (tok/s)"]), lambda row, speed: speed),
            (rng.choice(["tok/s/GPU", "tokens_per_sec_per_gpu"]), lambda row, speed: speed / row["world_size"]),
            ("ktok/s", lambda row, speed: speed / 1000),
            (rng.choice(["step time (ms)", "train_step_time_ms"]), lambda row, speed: 1000 * tokens(row) / speed),
            (rng.choice(["s/step", "Step Time [s]", "sec_per_step"]), lambda row, speed: tokens(row) / speed),
            ("samples/s", lambda row, speed: speed / row["seq_len"]),
        ]
    )


def tokens(row: dict[str, object]) -> float:
    return row["global_batch_size"] * row["seq_len"]


def written(rows: Sequence[Sequence[str]], delimiter: str) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(rows)
    return text.getvalue()


def imported(path: Path) -> tuple[ReadTable, list[ColumnPlan]]:
    source, _ = split_columns(read_source(path))
    plans = propose_columns(source, {})
    assert [plan.heading.text for plan in plans if plan.choices] == []
    return table_trials(source, GivenMapping().joined(source, plans)), plans


@given(st.randoms(use_true_random=False), st.integers(2, 8), st.sampled_from([",", "\t", ";"]))
@settings(max_examples=60)
def test_a_restyled_table_gives_the_same_trials(
    tmp_path_factory, rng: random.Random, count: int, delimiter: str
) -> None:
    rows = plain_rows(rng, count)
    for name, values in PLAIN.items():  # each word of a vocabulary occurs, so that no column is constant
        for row, value in zip(rows, values, strict=False):
            row[name] = value if name in {*SPELLINGS, "precision", "compile", "zero_stage"} else row[name]
    folder = tmp_path_factory.mktemp("restyled")
    speed_heading, speed = units("", rng)
    names = [*PLAIN, "global_batch_size"]
    columns = rng.sample(names, len(names))
    headings = [restyled_heading(name, rng) for name in columns]
    table = [[*headings, speed_heading]]
    for row in rows:
        cells = [restyled_cell(name, row[name], rng) for name in columns]
        table.append([*cells, repr(speed(row, row["tokens_per_second"]))])
    path = folder / "jobs.csv"
    path.write_text(written(table, delimiter), encoding="utf-8")
    read, _ = imported(path)
    assert read.problems == []
    for trial, row in zip(read.trials, rows, strict=True):
        facts = {**trial.workload, **trial.config}
        assert {name: facts[name] for name in names} == {name: row[name] for name in names}, headings
        assert trial.measurement is not None
        found = trial.measurement.tokens_per_second or trial.measurement.samples_per_second * row["seq_len"]
        assert abs(found / row["tokens_per_second"] - 1) < 1e-9


HEADINGS = st.one_of(
    st.sampled_from(
        [*PLAIN, *OUTCOME_SYNONYMS, "batch", "kernel", "status", "oom", "date", "note", "TP/PP", "fp8", "x"]
    ),
    st.text(alphabet="abgpstx_-/ ()#[]B", max_size=8),
)
CELLS = st.one_of(
    st.sampled_from(
        ["", "-", "1", "8", "1.5", "1,024", "7B", "flash", "bf16", "ok", "OOM", "8/4", "TP8", "8xA100", "2 s"]
    ),
    st.text(max_size=4),
)


@given(st.data(), st.lists(HEADINGS, min_size=1, max_size=8), st.integers(1, 4))
@settings(max_examples=120)
def test_each_column_is_imported_or_an_outcome_or_told(tmp_path_factory, data, headings: list[str], count: int) -> None:
    rows = [[data.draw(CELLS) for _ in headings] for _ in range(count)]
    folder = tmp_path_factory.mktemp("told")
    path = folder / "jobs.csv"
    path.write_text(written([headings, *rows], ","), encoding="utf-8", errors="replace")
    try:
        whole = read_source(path)
    except ValueError:  # a file without a table is refused with a sentence
        return
    source, origin = split_columns(whole)
    plans = propose_columns(source, {})
    assert tuple(plan.heading.text for plan in plans) == source.headings
    assert all(plan.name or plan.choices or plan.reason for plan in plans)
    named = [plan.name for plan in plans if plan.name and plan.name != OUTCOME]
    assert len(named) == len(set(named))
    assert {*whole.headings} == {origin.get(heading, heading) for heading in source.headings}
