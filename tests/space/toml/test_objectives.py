from __future__ import annotations

import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space.toml import parse_space

PARAMETERS = "\n[parameters.batch]\nchoices = [1, 2]\nflag = '--batch'\n"


def test_one_objective_two_or_none() -> None:
    one = parse_space(f"objective = 'tokens_per_joule'{PARAMETERS}", where="x.toml")
    assert (one.objective, one.second_objective, one.is_objective_stated) == ("tokens_per_joule", "", True)
    two = parse_space(f"objective = ['samples_per_second', 'samples_per_device_hour']{PARAMETERS}", where="x.toml")
    assert (two.objective, two.second_objective) == ("samples_per_second", "samples_per_device_hour")
    assert two.is_objective_stated
    none = parse_space(PARAMETERS, where="x.toml")
    assert (none.objective, none.second_objective, none.is_objective_stated) == ("tokens_per_second", "", False)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("['tokens_per_second']", "must be one objective, or a list of two that differ"),
        ("['tokens_per_second', 'tokens_per_second']", "must be one objective, or a list of two that differ"),
        ("['tokens_per_second', 'tokens_per_joule', 'tokens_per_device_hour']", "a list of two"),
        ("['tokens_per_second', 'samples_per_device_hour']", "must be two that count the same work"),
        ("['tokens_per_second', 'tokens_per_currency']", r"tokens_per_currency needs a table \[prices\]"),
        ("['tokens_per_second', 'tokens_per_hour']", "unknown objective 'tokens_per_hour'; did you mean"),
        ("'mfu'", "unknown objective 'mfu'"),
        ("''", "unknown objective ''"),
        ("['', 'tokens_per_second']", "unknown objective ''"),
        ("[]", "must be a list"),
        ("3", "must be a string"),
    ],
)
def test_what_is_no_objective(value: str, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        parse_space(f"objective = {value}{PARAMETERS}", where="x.toml")
