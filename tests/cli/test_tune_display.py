from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.comparisons import compare
from torchx_cubicml.advisor.comparison import Repeats, compared
from torchx_cubicml.cli.terminal import open_console
from torchx_cubicml.cli.tune_display import comparison_table
from torchx_cubicml.cli.tune_result import print_result
from torchx_cubicml.records.trial import Trial
from torchx_cubicml.tuner import Prepared, TuneRequest, TuneResult, prepare
from torchx_cubicml.tuner.unconfirmed import unconfirmed_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from torchx_cubicml.records.values import Config

SPACE = """
[parameters.micro_batch_size]
choices = [2, 32]
flag = "--micro"
changes_training = true

[parameters.gradient_accumulation_steps]
choices = [16]
flag = "--accum"

[parameters.dtype]
choices = ["fp32", "bf16"]
flag = "--dtype"
changes_training = true

[parameters.workers]
choices = [0, 1]
flag = "--workers"
"""
OWN = {"micro_batch_size": 2, "gradient_accumulation_steps": 16, "dtype": "fp32", "workers": 0}


def prepared_in(folder: Path) -> Prepared:
    (folder / "space.toml").write_text(SPACE)
    words = ("--micro", "2", "--accum", "16", "--dtype", "fp32", "--workers", "0")
    return prepare(
        TuneRequest(
            component="dist.ddp",
            component_args=("-j", "1x2", "--script", "train.py", "--", *words),
            space=str(folder / "space.toml"),
            store=str(folder / "store"),
            scheduler="local_cwd",
        )
    )


def rows(prepared: Prepared, config: Config, *, observed: tuple[int, int] | None = None) -> dict[str, list[str]]:
    """Return the cells of the table by the heading of their row."""
    sides = []
    for number, each in enumerate((OWN, config)):
        done = Trial.completed(workload=prepared.workload, config=each, tokens_per_second=10.0)
        seen = {} if observed is None else {"global_batch_size": observed[number]}
        sides.append(Repeats.of(each, [replace(done, observed=seen)] * 2, objective="tokens_per_second"))
    table = comparison_table(compare(*sides, objective="tokens_per_second"), prepared=prepared)
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return {heading: list(cells) for heading, *cells in zip(*columns, strict=True)}


def test_a_changed_global_batch_is_shown_and_the_accumulation_never_folded(tmp_path: Path) -> None:
    found = rows(prepared_in(tmp_path), {**OWN, "micro_batch_size": 32})
    assert found["batch"] == ["2", "32"]
    assert found["accumulation"] == ["16", "16"]
    assert found["dtype"] == ["fp32", "fp32"]
    assert found["global batch"] == ["64", "1,024"]
    assert found["1 other"] == ["the same", "the same"]


def test_the_observed_global_batch_goes_before(tmp_path: Path) -> None:
    prepared = prepared_in(tmp_path)
    assert rows(prepared, {**OWN, "micro_batch_size": 32}, observed=(32, 512))["global batch"] == ["32", "512"]
    assert rows(prepared, {**OWN, "workers": 1}, observed=(32, 48))["global batch"] == ["32", "48"]


def result_of(prepared: Prepared, rates: Sequence[float], *, seen: Sequence[float] = ()) -> TuneResult:
    """Return the result of a tune that measured its winner at some rates, and perhaps a third config."""
    winner, third = {**OWN, "workers": 1}, {**OWN, "dtype": "bf16"}

    def launched(config: Config, rates: Sequence[float]) -> list[Trial]:
        done = [Trial.completed(workload=prepared.workload, config=config, tokens_per_second=rate) for rate in rates]
        return [replace(each, trial_id=f"{len(rates)}-{number}") for number, each in enumerate(done)]

    trials = [*launched(OWN, (10.0, 10.1)), *launched(winner, rates), *launched(third, seen)]
    found = compared(OWN, winner, trials, objective="tokens_per_second")
    assert found is not None
    unconfirmed = unconfirmed_of(OWN, trials, objective="tokens_per_second") if not found.claims_gain else None
    return TuneResult(
        comparison=found,
        best=None,
        launches=8,
        device_hours=0.1,
        command=(),
        others_measured=2,
        unconfirmed=unconfirmed,
    )


def test_each_config_of_a_result_has_the_word_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared = prepared_in(tmp_path)

    def shown(result: TuneResult) -> str:
        print_result(open_console(), result, prepared)
        return " ".join(capsys.readouterr().out.replace("┃", " ").split())

    sure = shown(result_of(prepared, (20.0, 20.1, 20.2)))
    assert "your config confirmed" in sure
    assert "seen" not in sure
    doubtful = shown(result_of(prepared, (9.0, 10.5, 10.2), seen=(14.0,)))
    assert "your config not confirmed" in doubtful
    assert "Fastest seen: dtype fp32 -> bf16: 1.39x your config. Not confirmed: it takes at least" in doubtful


def test_a_kept_global_batch_needs_no_row(tmp_path: Path) -> None:
    found = rows(prepared_in(tmp_path), {**OWN, "workers": 1})
    assert "global batch" not in found
    assert not any("other" in heading for heading in found)
