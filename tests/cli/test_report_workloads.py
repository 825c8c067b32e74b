"""Report of several workloads, and of large stores: index, lessons across workloads, scale, size of the page."""

from __future__ import annotations

import random
import re
from contextlib import chdir, redirect_stderr
from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from torchx.cli.main import main

from tests.cli.test_report import text_of
from torchx_cubicml import State, Trial, TrialStore

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "<script>alert(1)</script> & \" '"
N_WORKLOADS, N_CHAPTERS = 8, 4


def page_of(folder: Path, *words: str) -> str:
    stderr = StringIO()
    with chdir(folder), redirect_stderr(stderr):
        main(["cubicml", "report", "--store", "store", *words])
    return (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page of programs at several scales."""
    folder = tmp_path_factory.mktemp("workloads")
    store = TrialStore(str(folder / "store"))
    for number in range(N_WORKLOADS // 4):
        for devices in (8, 16, 32, 64):
            workload = {"program": f"{HOSTILE} {number}.py", "world_size": devices}
            for batch in (1, 2, 4):
                rate = devices**0.9 * (100 + 10 * batch + number)
                trial = Trial.completed(
                    workload=workload, config={"micro_batch_size": batch, HOSTILE: HOSTILE}, tokens_per_second=rate
                )
                store.add(replace(trial, started_at=f"2026-01-01T00:0{batch}:00Z"))
            failed = Trial.infeasible(workload=workload, config={"micro_batch_size": 8})
            store.add(replace(failed, started_at="2026-01-01T00:09:00Z"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchx_cubicml.cli.report._MOST_ON_PAGE", N_CHAPTERS)
        return page_of(folder)


def test_the_index_has_every_workload_and_links_those_with_a_chapter(page: str) -> None:
    nav = page[page.index("<nav") : page.index("</nav>")]
    assert nav.count("<tr>") == N_WORKLOADS + 2  # and two heads
    assert len(re.findall(r'href="#workload-\d+"', nav)) == N_CHAPTERS
    assert "4 more workloads of as many launches or fewer, without a chapter" in nav
    assert nav.count('aria-label="3 new bests in 4 launches') == N_WORKLOADS
    assert "failures" in nav
    assert "gain" not in text_of(nav)
    assert page.count('<section id="workload-') == N_CHAPTERS


def test_the_values_that_win_are_counted_beside_chance(page: str) -> None:
    assert f"micro_batch_size = 4 {N_WORKLOADS} of {N_WORKLOADS} 100%" in text_of(page)


def test_the_scale_curves_say_what_they_compare(page: str) -> None:
    text = text_of(page)
    assert "Each point is the best measured launch at that scale" in text
    assert re.search(r"0\.py 16 1,\d+ tokens/s 93% 3", text)
    points = re.findall(r'data-label="[^"]* devices; [^"]*"', page)
    assert len(points) == 2 * N_WORKLOADS
    assert "<script>alert" not in page


def test_workloads_are_graded_on_those_left_out(tmp_path: Path) -> None:
    store = TrialStore(str(tmp_path / "store"))
    for devices in (8, 16):
        for batch in range(1, 9):
            trial = Trial.completed(
                workload={"program": "train.py", "world_size": devices},
                config={"micro_batch_size": batch},
                tokens_per_second=devices * 100.0 * batch**0.5,
            )
            store.add(trial)
    found = re.search(r"is (-?[\d.]+) for launches of a workload that the predictor greybox has not", page_of(tmp_path))
    assert found is not None
    assert float(found[1]) > 0.5


def test_a_large_store_makes_a_small_page(tmp_path: Path) -> None:
    rng = random.Random(0)
    store = TrialStore(str(tmp_path / "store"))
    count = 2500
    for number in range(count):
        config = {f"knob_{place}": rng.randrange(5) for place in range(12)}
        trial = Trial.completed(
            workload={"program": "train.py"}, config=config, tokens_per_second=rng.uniform(1, 2), peak_memory_gib=1.5
        )
        times = {"started_at": f"2026-01-{1 + number // 100:02d}T00:{number % 60:02d}:00Z"}
        store.add(replace(trial, **times))
    page = page_of(tmp_path)
    figures = sum(map(len, re.findall(r"<svg.*?</svg>", page, re.DOTALL)))
    table = max(map(len, re.findall(r'<script type="application/json".*?</script>', page, re.DOTALL)))
    assert table < 10_000_000 / 50_000 * count * 0.8  # of 10 MB for 50,000 trials, with room for the figures
    assert figures < 2_000_000
    assert len(page) < table + figures + 200_000


def test_a_text_of_ten_megabytes_stays_small_on_the_page(tmp_path: Path) -> None:
    store = TrialStore(str(tmp_path / "store"))
    ten = 10_000_000
    trial = replace(
        Trial.infeasible(workload={"program": "train.py"}, config={"a": 1}), state=State.USER_ERROR, reason="x" * ten
    )
    try:
        store.add(trial)
    except ValueError:  # a record may be limited by itself
        pytest.skip("the store takes no such text")
    assert len(page_of(tmp_path)) < 200_000
