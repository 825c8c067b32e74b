"""MFU and power as the history shows them: known, not known with the reason, and stated by an imported table."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli import history
from torchx_cubicml.cli.efficiency_text import efficiency_json, efficiency_lines, mfu_text
from torchx_cubicml.records.trial import State, Trial

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.records.values import Value

FACTS: dict[str, Value] = {
    "n_params": 6_717_579_264,
    "n_layers": 32,
    "d_model": 4096,
    "seq_len": 16_384,
    "device": "A100-80GB",
    "precision": "bf16",
    "world_size": 8,
}
TABLE = """model,n_params,n_layers,d_model,n_heads,seq_len,gpu_type,n_gpus,precision,micro_batch_size,tokens_per_sec,{}
mpt-7b,6717579264,32,4096,32,16384,A100-80GB,8,bf16,4,18698,{}
mpt-7b,6684024832,32,4096,32,8192,A100-80GB,8,bf16,8,23887,{}
"""


def trial(**changes: object) -> Trial:
    done = Trial.completed(workload=FACTS, config={}, tokens_per_second=18_698.0)
    assert done.measurement is not None
    return replace(done, measurement=replace(done.measurement, **changes))  # type: ignore[arg-type]


def test_what_is_known_is_shown_with_what_it_covers() -> None:
    known = trial(power_watts=2800.0, power_of="GPUs", mean_step_time_s=2.0, statistic="mean", stated_mfu=0.4)
    assert efficiency_lines(known) == [
        "MFU 49.5 % of 312 TFLOP/s of each device in bf16",
        "MFU 40.0 % as the imported table states it",
        "2,800 W (GPUs only), 5,600 J a step, 6.68 tokens/joule",
    ]
    found = efficiency_json(known)
    assert (found["stated_mfu"], found["power_of"], found["joules_per_step"]) == (0.4, "GPUs", 5600.0)
    assert found["mfu"] == pytest.approx(0.495, abs=5e-4)
    assert found["tokens_per_joule"] == pytest.approx(18_698 / 2800)


def test_what_is_not_known_has_its_reason() -> None:
    on_cpu = replace(trial(), workload={**FACTS, "device": "cpu"})
    assert efficiency_lines(on_cpu) == ["MFU not known: a CPU has no peak in the table of devices"]
    assert mfu_text(on_cpu) == ""
    assert efficiency_json(on_cpu)["mfu_unknown"] == "a CPU has no peak in the table of devices"
    failed = replace(trial(), measurement=None, state=State.OUT_OF_MEMORY)
    assert (efficiency_lines(failed), mfu_text(failed), efficiency_json(failed)) == ([], "", {})


@pytest.mark.parametrize(
    ("heading", "first", "second", "stated"),
    [
        ("mfu_pct", "49.5", "50.71", [0.495, 0.5071]),
        ("MFU (%)", "0.9", "50.71 %", [0.009, 0.5071]),
        ("MFU", "0.495", "", [0.495, None]),
        ("mfu", "49.5%", "0.5", [0.495, 0.005]),  # one cell says percent, and so all are
        ("mfu", "0.495", "1.3", [0.495, None]),  # one impossible share makes no percentages
        ("hfu_pct", "49.5", "50.71", [None, None]),
        ("mfu_pct", "-", "170", [None, None]),
    ],
)
def test_the_mfu_of_a_table_is_kept_apart(
    heading: str,
    first: str,
    second: str,
    stated: list[float | None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table, store = tmp_path / "jobs.csv", str(tmp_path / "store")
    table.write_text(TABLE.format(heading, first, second))
    parser = argparse.ArgumentParser()
    history.add_arguments(parser)
    assert history.run(parser.parse_args(["import", str(table), "--store", store, "--yes"])) == 0
    capsys.readouterr()
    assert history.run(parser.parse_args(["list", "--store", store, "--json"])) == 0
    found = {each["config"]["micro_batch_size"]: each for each in json.loads(capsys.readouterr().out)}
    assert [found[size]["efficiency"]["stated_mfu"] for size in (4, 8)] == pytest.approx(stated)
    assert [found[size]["efficiency"]["mfu"] for size in (4, 8)] == pytest.approx([0.495, 0.5071], rel=1e-3)
    assert not any("mfu" in name.lower() for each in found.values() for name in {**each["workload"], **each["config"]})
    assert history.run(parser.parse_args(["list", "--store", store])) == 0
    assert "18,698 tokens/s MFU 49.5 %" in " ".join(capsys.readouterr().out.split())
