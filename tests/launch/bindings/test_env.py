from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import LaunchError
from torchx_cubicml.launch import Launch, read_config, write_config
from torchx_cubicml.space import Binding, BindingKind, Parameter, SearchSpace, WorkloadFact
from torchx_cubicml.space.toml import parse_space

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Scalar, Value

SPACE = """
[parameters.sharding_strategy]
choices = ["FULL_SHARD", "NO_SHARD"]
per_layer = 4
env = "SHARDING"
"""


def config_of(text: str) -> object:
    launch = Launch(program="train.py", env={"SHARDING": text}, world_size=2)
    _, config = read_config(launch, parse_space(SPACE, where="space.toml"))
    return config["sharding_strategy"]


@pytest.mark.parametrize("text", ["NO_SHARD", "NO_SHARD,NO_SHARD,NO_SHARD,NO_SHARD"])
def test_one_entry_counts_for_every_layer(text: str) -> None:
    assert config_of(text) == ("NO_SHARD",) * 4


def test_another_number_of_entries_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"SHARDING of .* has 3 entries; it must have 1 or 4"):
        config_of("NO_SHARD,NO_SHARD,NO_SHARD")


ENV = Binding(kind=BindingKind.ENV, name="V")


def of_variable(*choices: Scalar, count: int | None = None, default: Value | None = None) -> SearchSpace:
    parameter = Parameter(name="p", choices=choices, binding=ENV, per_layer=count, default=default)
    return SearchSpace(parameters=(parameter,))


def launch(text: str | None) -> Launch:
    return Launch(program="t.py", env={} if text is None else {"V": text}, world_size=1)


@pytest.mark.parametrize(
    ("text", "choices", "value"),
    [
        ("1", (True, False), True),
        ("off", (True, False), False),
        ("1", (1, 2), 1),
        ("2.0", (1, 2), 2),
        ("on", ("on", "off"), "on"),
        ("true", ("a", "b"), "true"),
    ],
)
def test_a_variable_is_read_as_the_kind_of_its_choices(text: str, choices: tuple[Scalar, ...], value: Value) -> None:
    read = read_config(launch(text), of_variable(*choices))[1]["p"]
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [(None, True, "1"), (None, False, "0"), ("yes", False, "no"), ("True", False, "False")],
)
def test_a_switch_is_written_in_the_style_of_the_variable(before: str | None, value: bool, after: str) -> None:
    declared = of_variable(True, False, default=not value)
    assert write_config(launch(before), declared, {"p": value}).env == {"V": after}


def test_an_unset_variable_has_its_default_or_none() -> None:
    assert read_config(launch(None), of_variable(1, 2, default=2))[1] == {"p": 2}
    assert read_config(launch("1"), of_variable(1, 2, default=2))[1] == {"p": 1}
    with pytest.raises(LaunchError, match=r"^variable V of parameter p is not set .*; variables there: none$"):
        read_config(launch(None), of_variable(1, 2))


@pytest.mark.parametrize(("env", "facts"), [({}, {}), ({"V": "3"}, {"f": 3})])
def test_an_optional_fact_of_a_variable(env: dict[str, str], facts: dict[str, Value]) -> None:
    typed = Launch(program="t.py", env=env)
    optional = WorkloadFact(name="f", binding=ENV, optional=True)
    assert read_config(typed, SearchSpace(parameters=(), workload=(optional,)))[0] == {"program": "t.py", **facts}
    known = replace(optional, value=7)
    assert read_config(typed, SearchSpace(parameters=(), workload=(known,)))[0]["f"] == facts.get("f", 7)


def test_entries_are_joined_by_commas() -> None:
    declared = of_variable(1, 2, count=3)
    assert read_config(launch("1,2,1"), declared)[1] == {"p": (1, 2, 1)}
    assert write_config(launch("1"), declared, {"p": (1, 2, 2)}).env == {"V": "1,2,2"}
