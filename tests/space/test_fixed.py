"""Parameters fixed to the values of one config."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.space.fixed import with_fixed_values
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config

SPACE = parse_space(
    """
    [parameters.a]
    choices = [1, 2, 4]
    flag = "--a"
    [parameters.b]
    flag = "--b"
    derive = "8 / a"
    [parameters.c]
    choices = [false, true]
    flag = "--c"
    [parameters.d]
    choices = ["x", "y"]
    flag = "--d"
    per_layer = 2
    """,
    where="space.toml",
)
OWN: Config = {"a": 2, "b": 4, "c": True, "d": ("x", "y")}


@pytest.mark.parametrize(
    ("name", "value", "n_configs"),
    [("a", 2, 8), ("a", 8, 8), ("b", 4, 8), ("c", True, 12), ("d", ("x", "x"), 6), ("d", ("x", "y"), 6)],
)
def test_every_legal_config_has_the_fixed_value(name: str, value: object, n_configs: int) -> None:
    current: Config = {**OWN, name: value, **({"b": 1} if value == 8 else {})}  # type: ignore[dict-item]
    configs = list(with_fixed_values(SPACE, current, {name}).bind(workload={}, current=current).configs())
    assert {config.get(name, value) for config in configs} == {value}
    assert len(configs) == n_configs


def test_what_the_config_lacks_stays_free() -> None:
    assert with_fixed_values(SPACE, {}, {"a", "b"}) == SPACE
