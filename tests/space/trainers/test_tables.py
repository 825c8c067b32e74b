"""The trainers' tables stay as they are until someone accepts a change.

``RENEW_GOLDEN=1 pytest tests/space/trainers/test_tables.py`` writes them anew; read the difference before you
commit it.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields
from pathlib import Path

import pytest

from torchx_cubicml.space.trainers import TRAINERS, Trainer, TrainerFlag, TrainerRelease

GOLDEN = Path(__file__).parents[2] / "golden" / "trainers.json"


def stated(record: Trainer | TrainerFlag | TrainerRelease) -> dict[str, object]:
    """What a record states beyond its defaults, as JSON has it."""
    values = {field.name: (getattr(record, field.name), field.default) for field in fields(record)}
    return {name: plain(value) for name, (value, default) in values.items() if repr(value) != repr(default)}


def plain(value: object) -> object:
    if isinstance(value, TrainerFlag | TrainerRelease):
        return stated(value)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def test_every_trainer_has_its_record() -> None:
    found = {name: stated(trainer) for name, trainer in TRAINERS.items()}
    if os.environ.get("RENEW_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    assert list(json.loads(GOLDEN.read_text())) == list(found)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainers_table_is_as_it_was_reviewed(name: str) -> None:
    assert json.dumps(stated(TRAINERS[name])) == json.dumps(json.loads(GOLDEN.read_text())[name])


@pytest.mark.parametrize("with_values", [True, False])
def test_the_reference_lists_the_names_of_each_table(with_values: bool) -> None:
    text = (Path(__file__).parents[3] / "docs" / "space-file.md").read_text()
    _, _, text = text.partition("These names are in the tables.")
    parts = text.partition("## ")[0].partition("Without values.")
    listed = re.findall(r"^- (`.*(?:\n  .*)*)", parts[0 if with_values else 2], re.MULTILINE)
    names = [tuple(re.findall(r"`([^`]+)`", line)) for line in listed]
    tables = [(trainer.name, *trainer.names(with_values=with_values)) for trainer in TRAINERS.values()]
    assert names == [row for row in tables if len(row) > 1]
