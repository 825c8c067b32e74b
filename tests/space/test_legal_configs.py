from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space import Parameter, SearchSpace
from torchx_cubicml.space.constraints import Conditional
from torchx_cubicml.space.expression import parse_expression
from torchx_cubicml.space.legal_configs import FreeParameter, LegalConfigs

if TYPE_CHECKING:
    from torchx_cubicml.records.values import Config, Value
    from torchx_cubicml.space.expression import Expression


def expression(source: str) -> Expression:
    return parse_expression(source, where="here")


A = FreeParameter("a", (1, 2, 4))
B = FreeParameter("b", (1, 2, 4))
LAYERS = FreeParameter("layers", ("x", "y"), ((0, 1), (2,)))
IDLE = FreeParameter("c", (5, 6), None, Conditional("c", expression("a > 1"), None, 0))


def legal(
    *free: FreeParameter, require: tuple[str, ...] = (), facts: Config | None = None, **derive: str
) -> LegalConfigs:
    return LegalConfigs(
        free,
        derivations={name: expression(source) for name, source in derive.items()},
        constraints=[expression(source) for source in require],
        facts=facts or {},
    )


def completed(configs: LegalConfigs, choice: tuple[int, ...]) -> dict[str, Value]:
    values = configs.values(choice)
    assert configs.complete(values) is None
    return values


def test_choices_of_a_parameter() -> None:
    assert (A.chosen, A.first, A.n_dimensions) == ("a", 1, 1)
    assert (LAYERS.chosen, LAYERS.first, LAYERS.n_dimensions) == ("layers", ("x", "x", "x"), 2)
    assert IDLE.chosen == "c, if used"


def test_values_stand_side_by_side() -> None:
    configs = legal(A, LAYERS, B, facts={"n": 3}, d="a * b")
    assert completed(configs, (2, 0, 1, 1)) == {"n": 3, "a": 4, "layers": ("x", "x", "y"), "b": 2, "d": 8}
    for choice in ((0, 0, 0), (0, 0, 0, 0, 0), (3, 0, 0, 0), (0, 2, 0, 0), (0, 0, 0, -1)):
        with pytest.raises(SpaceError, match="a choice vector needs 4 indices, each below its dimension's number of"):
            configs.values(choice)


def test_the_first_broken_rule_is_named() -> None:
    configs = legal(A, B, require=("a > 1", "b > 1"), d="4 / (a - 1)")
    assert configs.complete(configs.values((0, 1))) == "here: '4 / (a - 1)': `4 / (a - 1)` divides by zero"
    assert configs.complete(configs.values((1, 0))) == "here: 'b > 1' does not hold with b=1"
    assert configs.complete(configs.values((1, 1))) is None


def test_a_value_reads_few_dimensions() -> None:
    configs = legal(A, LAYERS, B, IDLE, d="b * 2", e="d + a", f="len(layers)")
    reads = {name: configs.reads(name) for name in ("a", "layers", "b", "c", "d", "e", "f")}
    assert reads == {"a": (0,), "layers": (1, 2), "b": (3,), "c": (0, 4), "d": (3,), "e": (0, 3), "f": (1, 2)}
    choice = (1, 1, 0, 2, 1)
    values = {name: configs.value(name, choice) for name in reads}
    assert values == {"a": 2, "layers": ("y", "y", "x"), "b": 4, "c": 6, "d": 8, "e": 10, "f": 3}
    assert configs.value("c", (0, 0, 0, 0, 1)) == 0
    assert configs.value("d", (None, None, None, 2, None)) == 8  # no other dimension counts
    with pytest.raises(SpaceError, match="3/2 is not a whole"):
        legal(A, d="(a + 2) / 2").value("d", (0,))


def test_configs_become_choices() -> None:
    configs = legal(A, LAYERS, IDLE, d="a * 2")
    assert configs.encode({"a": 4, "layers": ("y", "y", "x"), "c": 6, "d": 8}) == (2, 1, 0, 1)
    assert configs.encode({"a": 1, "layers": ("x", "x", "y"), "c": 0}) == (0, 0, 1, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": 3}, "a = 3 is not legal; choose from 1, 2, 4"),
        ({"a": "1"}, "a = '1' is not legal; choose from 1, 2, 4"),
        ({"a": (1,)}, r"a = \(1,\) is not legal; choose from 1, 2, 4"),
        ({"layers": ("x", "x")}, r"layers must have 3 entries, got \('x', 'x'\)"),
        ({"layers": "xxx"}, "layers must have 3 entries, got 'xxx'"),
        ({"layers": ("x", "y", "x")}, "layers: entries 0 to 1 are one group and must be equal"),
        ({"layers": ("x", "x", "z")}, r"layers\[2\] = 'z' is not legal; choose from 'x', 'y'"),
        ({"c": 7}, "c = 7 is not legal; choose from 5, 6"),
        ({"a": 1, "c": 5}, "c = 5 is not legal; it must be 0 unless a > 1"),
        ({"a": 1, "c": False}, "c = False is not legal; it must be 0 unless a > 1"),
    ],
    ids=str,
)
def test_configs_that_have_no_choices(change: Config, message: str) -> None:
    with pytest.raises(SpaceError, match=f"^{message}$"):
        legal(A, LAYERS, IDLE).encode({"a": 2, "layers": ("x", "x", "x"), "c": 5, **change})


def test_missing_values_list_their_choices() -> None:
    long = FreeParameter("b", tuple(range(13)))
    with pytest.raises(
        SpaceError, match=r"^b is missing; choose from 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, \.\.\. \(13 in all\)$"
    ):
        legal(long).encode({})
    with pytest.raises(SpaceError, match=r"choose from 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11$"):
        legal(FreeParameter("b", tuple(range(12)))).encode({})


def test_idle_layers_have_the_kind_of_their_value() -> None:
    layers = FreeParameter("c", (1, 2), ((0,), (1,)), Conditional("c", expression("a > 1"), None, (0, 0)))
    assert legal(A, layers).encode({"a": 1, "c": (0, 0)}) == (0, 0, 0)
    with pytest.raises(SpaceError, match=r"c = \(0, False\) is not legal; it must be \(0, 0\) unless a > 1"):
        legal(A, layers).encode({"a": 1, "c": (0, False)})


def test_a_condition_reads_derived_values_that_are_not_given() -> None:
    on_derived = FreeParameter("c", (5, 6), None, Conditional("c", expression("d > 4"), None, 0))
    configs = legal(A, on_derived, d="a * 2")
    assert configs.encode({"a": 4, "c": 6}) == configs.encode({"a": 4, "c": 6, "d": 8}) == (2, 1)
    assert configs.encode({"a": 2, "c": 0}) == (1, 0)


@pytest.mark.parametrize(
    ("require", "message"),
    [
        (("a > 9",), "no config is legal: all break here: 'a > 9'; the first: here: 'a > 9' does not hold with a=1"),
        (
            ("a > 0", "a > 1", "b > 0", "a < 2"),
            "no config is legal: none satisfies all of: here: 'a > 1'; here: 'a < 2'",
        ),
    ],
)
def test_empty_spaces_name_their_conflict(require: tuple[str, ...], message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        legal(A, B, require=require).refuse_empty()
    assert str(caught.value) == message


def test_empty_spaces_name_derivations_and_conditions() -> None:
    with pytest.raises(SpaceError, match=r"^no config is legal: all break d = 1 / 3; the first: here"):
        legal(A, d="1 / 3").refuse_empty()
    idle = FreeParameter("c", (5, 6), None, Conditional("c", expression("a"), None, 0))
    with pytest.raises(
        SpaceError, match=r"^no config is legal: all break c while a; the first: `a` needs true or false"
    ):
        legal(A, idle).refuse_empty()
    legal(A, B).refuse_empty()


@pytest.mark.parametrize(
    ("require", "message"),
    [
        ("a < z", "here: 'a < z' needs z, unknown for this workload; known: a, n"),
        (
            "z < global_batch_size",
            "here: 'z < global_batch_size' needs global_batch_size, z, unknown for this workload "
            "(computed if the command sets micro_batch_size and the world size is known); known: a, n",
        ),
    ],
)
def test_unknown_names_are_listed(require: str, message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        legal(A, require=(require,), facts={"n": 1})
    assert str(caught.value) == message


def test_the_degree_of_data_parallelism_follows_a_tuned_mesh() -> None:
    mesh = FreeParameter("tp_degree", (1, 2, 4))
    world = {"world_size": 8}
    assert completed(legal(mesh, facts=world), (1,))["dp_degree"] == 4
    assert "dp_degree" not in completed(legal(A, facts=world), (1,))
    assert "dp_degree" not in completed(legal(mesh), (1,))
    assert completed(legal(mesh, facts={**world, "dp_degree": 3}), (1,))["dp_degree"] == 3
    assert completed(legal(FreeParameter("world_size", (2, 4))), (1,))["dp_degree"] == 4


def width(configs: LegalConfigs) -> list[int]:
    ((_, targets),) = configs.choices.ties
    assert targets is not None
    return [len(level) for level in targets]


def test_equal_products_of_whole_numbers_are_one_node() -> None:
    third = FreeParameter("e", (1, 2, 4))
    rule = ("a * (b * e) == 8",)
    assert width(legal(A, B, third, require=rule)) == [1, 3, 5]  # 1, 2, 4, 8 and 16 so far
    for choices in ((1.0, 2.0, 4.0), (1, 2.5, 4)):  # floats round: the order counts
        assert width(legal(A, B, FreeParameter("e", choices), require=rule)) == [1, 3, 9]


def test_layers_that_no_longer_matter_are_one_node() -> None:
    layers = FreeParameter("s", (1, 2, 3), tuple((layer,) for layer in range(4)))
    assert width(legal(layers, require=("max(s) < 3",))) == [1, 3, 3, 3]  # the largest so far: 1, 2 or 3
    assert width(legal(layers, require=("3 in s",))) == [1, 2, 2, 2]  # found or not
    assert width(legal(layers, require=("not 3 in s",))) == [1, 1, 1, 1]
    assert legal(layers, require=("max(s) < 3",)).choices.size() == 2**4


def test_a_broken_rule_ends_a_path_early() -> None:
    ((_, targets),) = legal(A, B, require=("a > 1 and b > 1",)).choices.ties
    assert targets == [[[-1, 0, 0]], [[-1, 0, 0]]]


def test_whole_spaces_use_these_configs() -> None:
    space = SearchSpace(parameters=(Parameter(name="a", choices=(1, 2)),)).bind(workload={}, current={})
    assert space.legal.value("a", (1,)) == 2
