"""The box of a breakdown in a real browser (``make test-report``): it chooses the config beside the first ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from torchx.cli.main import main

from tests.browser.chromium import NAMES, Browser, chromium
from torchx_cubicml import Origin, Trial, TrialStore

if TYPE_CHECKING:
    from pathlib import Path

    from torchx_cubicml.records.values import Value

pytestmark = pytest.mark.skipif(chromium() is None, reason=f"none of {', '.join(NAMES)} is installed")
WORKLOAD: dict[str, Value] = {
    "program": "train.py",
    "world_size": 8,
    "n_layers": 4,
    "d_model": 1024,
    "seq_len": 1024,
    "vocab_size": 32_000,
    "device": "NVIDIA A100-SXM4-80GB",
}
SHOWN = ".filter(each => each.offsetParent).map(each => each.textContent)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of four configs: two of them recompute, and the best does not."""
    folder = tmp_path_factory.mktemp("breakdown")
    store = TrialStore(str(folder / "store"))
    for number, (size, word) in enumerate([(1, "full"), (8, "none"), (4, "none"), (2, "full")]):
        config = {"micro_batch_size": size, "activation_checkpointing": word}
        trial = Trial.completed(workload=WORKLOAD, config=config, tokens_per_second=1e5 * size)
        origin = Origin.USER if number == 0 else Origin.EXPLORE
        store.add(replace(trial, origin=origin, started_at=f"2026-01-01T00:0{number}:00Z"))
    main(["cubicml", "report", "--store", str(folder / "store"), "--out", str(folder / "report.html")])
    return folder / "report.html"


def test_a_box_chooses_the_config_beside_the_first_ones(page: Path, tmp_path: Path) -> None:
    path = chromium()
    assert path is not None
    with Browser(path, tmp_path) as browser:
        browser.open(page)
        heads = f"[...document.querySelector('.breakdown').querySelectorAll('thead th')]{SHOWN}"
        bars = f"[...document.querySelector('.bars').querySelectorAll('.of')]{SHOWN}"
        assert browser.run(heads)[1:] == ["your config", "best found", "2nd best"]
        browser.run("document.querySelector('.chooser select').focus()")
        browser.press("ArrowDown", code=40)
        assert browser.run(heads)[1:] == ["your config", "best found", "3rd best"]
        names: list[str] = browser.run(bars)
        assert [name for name in names if name.startswith("3rd best")] == ["3rd bestmicro_batch_size 2"]
        assert len(names) == 3
        empty = "[...document.querySelectorAll('.breakdown tbody tr')].filter(row => row.offsetParent && "
        empty += "[...row.cells].slice(1).every(cell => !cell.offsetParent || cell.textContent === '-'))"
        assert browser.run(f"{empty}.length") == 0
        assert browser.problems() == []
