"""The synonyms, and the table of them in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchx_cubicml.cli.jobs_table.headings import read_heading
from torchx_cubicml.cli.jobs_table.synonyms import (
    AMBIGUOUS_HEADINGS,
    NAME_BY_HEADING,
    OUTCOME_SYNONYMS,
    PARAMETER_SYNONYMS,
    ROLE_SYNONYMS,
    WORKLOAD_SYNONYMS,
    heading_key,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "importing.md"
SECTION = PAGE.read_text().partition("## Headings")[2].partition("## Values")[0]
SYNONYMS = {**PARAMETER_SYNONYMS, **WORKLOAD_SYNONYMS, **ROLE_SYNONYMS}
DOCUMENTED = {
    name: headings.split(", ")
    for name, headings in re.findall(r"^\| `([a-z_]+)` \| (.+) \|$", SECTION, flags=re.MULTILINE)
}


def test_each_name_is_documented() -> None:
    assert {*SYNONYMS, "tokens_per_second", "seconds_per_step"} - {*DOCUMENTED} == {"world_size+device"}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_documented_heading_is_understood(name: str) -> None:
    assert {read_heading(heading).name for heading in DOCUMENTED[name]} == {name}


@pytest.mark.parametrize("name", SYNONYMS)
def test_each_synonym_is_understood_in_any_case(name: str) -> None:
    for heading in SYNONYMS[name]:
        for spelling in (heading, heading.upper(), heading.replace(" ", "_"), heading.replace(" ", "-").lower()):
            assert read_heading(spelling).name == name, spelling


def test_outcomes_are_understood() -> None:
    assert {read_heading(heading).name for heading in OUTCOME_SYNONYMS} == {"outcome"}


def test_no_heading_means_one_thing_and_several() -> None:
    assert not NAME_BY_HEADING.keys() & AMBIGUOUS_HEADINGS.keys()
    keys = [heading_key(heading) for headings in SYNONYMS.values() for heading in {*map(heading_key, headings)}]
    assert len(keys) == len(set(keys))
