"""The rules of trainers' tables against recorded verdicts of their releases, and against documented cases."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.release_cases import DOCUMENTED, ReleaseCase, is_legal
from torchx_cubicml.space.trainers import TRAINERS

DATA = Path(__file__).parents[2] / "data"
RECORDED = json.loads((DATA / "release_checks.json").read_text())
CASES = json.loads((DATA / "documented_rules.json").read_text())


@pytest.mark.parametrize("trainer", RECORDED)
def test_what_the_release_accepts_is_legal_and_nothing_else(trainer: str) -> None:
    agreed = Counter[bool]()
    for recorded in RECORDED[trainer]:
        values = {name: value for name, value in recorded.items() if name != "refused"}
        legal = is_legal(ReleaseCase(**values), ignored=DOCUMENTED.get(trainer, ()))
        assert legal == (recorded["refused"] is None), recorded
        agreed[legal] += 1
    assert min(agreed[True], agreed[False]) >= 50


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['rule']}, {case['why']}")
def test_documented_cases(case: dict[str, object]) -> None:
    values = {name: case[name] for name in ("trainer", "world_size", "fixed", "own", "proposed")}
    proposed = ReleaseCase(**values)  # type: ignore[arg-type]
    assert is_legal(proposed) is case["legal"]
    assert case["legal"] or is_legal(proposed, ignored=(str(case["rule"]),))
    assert case["source"] in TRAINERS[proposed.trainer].release.checks
