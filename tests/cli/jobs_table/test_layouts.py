from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.cli.jobs_table.layouts import split_columns
from torchx_cubicml.cli.table_formats.registry import read_source

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("heading", "cells", "expected"),
    [
        ("TP/PP/DP", ["8/4/2", "1 / 1 / 64"], {"TP": ["8", "1"], "PP": ["4", "1"], "DP": ["2", "64"]}),
        ("(tp, pp)", ["(8, 4)", "-"], {"tp": ["8", "-"], "pp": ["4", "-"]}),
        ("layout", ["TP8-PP4", "tp=2,pp=1"], {"tp": ["8", "2"], "pp": ["4", "1"]}),
        ("layout", ["8TP 4PP", "DP2"], {"tp": ["8", ""], "pp": ["4", ""], "dp": ["", "2"]}),
        ("GPUs", ["8xA100-80GB", "64 x H100"], {"GPUs": ["8", "64"], "GPU type": ["A100-80GB", "H100"]}),
        ("Hardware", ["8x A100", "16x A100"], {"GPUs": ["8", "16"], "GPU type": ["A100", "A100"]}),
        ("nodes x gpus_per_node", ["2x8", "4 x 8"], {"nodes": ["2", "4"], "gpus_per_node": ["8", "8"]}),
        ("model", ["gpt-8", "gpt-7"], None),
        ("GPU type", ["A100", "H100"], None),
        ("TP/PP", ["8/4", "none"], None),
        ("layout", ["TP8-PP4", "FSDP"], None),
    ],
)
def test_a_column_of_several_facts_is_split(
    tmp_path: Path, heading: str, cells: list[str], expected: dict[str, list[str]] | None
) -> None:
    path = tmp_path / "jobs.tsv"
    path.write_text(f"job\t{heading}\tspeed\n" + "".join(f"a\t{cell}\t1\n" for cell in cells))
    whole = read_source(path)
    source, origin = split_columns(whole)
    if expected is None:
        assert source is whole
        assert origin == {}
    else:
        assert {name: source.cells(name) for name in source.headings[1:-1]} == expected
        assert origin == dict.fromkeys(expected, heading)
