"""The trainers' tables stay as they are until someone accepts a change.

``RENEW_GOLDEN=1 pytest tests/space/trainers/test_tables.py`` writes them anew; read the difference before you
commit it.
"""

from __future__ import annotations

import json
import os
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
