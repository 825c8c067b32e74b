from __future__ import annotations

from io import StringIO

from rich.console import Console

from torchx_cubicml.advisor import Alternative, ParameterSensitivity
from torchx_cubicml.cli.sensitivity_table import sensitivity_table


def other(value: object, *, measured: float | None = None, fits: float = 1.0) -> Alternative:
    return Alternative(
        value=value,
        predicted=0.8,
        low=0.75,
        high=0.85,
        measured=measured,
        n_measured=measured is not None,
        probability_to_fit=fits,
    )


def test_each_other_value_has_a_row() -> None:
    batch = (other(1, measured=0.81), other(16, fits=0.2), other(32, fits=0.0))
    layers = ("NO_SHARD", "NO_SHARD", "FULL_SHARD")
    table = sensitivity_table(
        [
            ParameterSensitivity(name="micro_batch_size", value=8, own=batch[0], alternatives=batch),
            ParameterSensitivity(
                name="sharding_strategy", value=layers, own=None, alternatives=(other(("FULL_SHARD",) * 3),)
            ),
            ParameterSensitivity(
                name="rows",
                value=("a", "a"),
                own=None,
                alternatives=(other(("a", "b")),),
                entries="tables",
            ),
            ParameterSensitivity(name="backend", value="a", own=None, alternatives=()),
        ]
    )
    out = StringIO()
    Console(file=out, width=160).print(table)
    title, heading, _, *rows = (line.rstrip() for line in out.getvalue().splitlines() if line.strip())
    assert title == "Changing one parameter of the best known config (1x)"
    assert heading.split()[0] == "parameter"
    assert [" ".join(row.split()) for row in rows] == [
        "batch 8 1x",
        "1 0.80x 0.75x to 0.85x 0.81x",
        "16, may not fit 0.80x 0.75x to 0.85x",
        "32, does not fit 0.80x 0.75x to 0.85x",
        "sharding NO_SHARD in 2, FULL_SHARD in 1 layers 1x",
        "FULL_SHARD in all layers 0.80x 0.75x to 0.85x",
        "rows a in all tables 1x",
        "a in 1, b in 1 tables 0.80x 0.75x to 0.85x",
        "backend a, no other legal value 1x",
    ]
