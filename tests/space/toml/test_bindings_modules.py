"""Groups of modules that a space file places by the keys of the script's plan."""

from __future__ import annotations

import pytest

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.space import Binding, BindingKind
from torchx_cubicml.space.toml.bindings import places_of
from torchx_cubicml.space.toml.reader import parse_space

MLP = """
[parameters.mlp]
choices = ["plan", "replicated"]
modules = ["layers.*.up", "layers.*.down"]
hook = "parallelize_module"
"""


def test_a_group_of_modules_is_one_place_with_the_plan_as_default() -> None:
    (mlp,) = parse_space(MLP, where="x.toml").parameters
    assert mlp.binding == Binding(kind=BindingKind.HOOK, name="parallelize_module.layers.*.up,layers.*.down")
    assert mlp.default == "plan"
    assert places_of(mlp.binding) == ("parallelize_module.layers.*.up", "parallelize_module.layers.*.down")
    assert places_of(Binding(kind=BindingKind.HOOK, name="mesh.tp")) == ("mesh.tp",)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('modules = ["layers.*.up", "layers.*.down"]', "", r"parameters\.mlp: hook = .* needs modules, a list of keys"),
        ('"layers.*.down"]', '"layers.*.up"]', r"parameters\.mlp\.modules: must be different keys of a plan"),
        ('"layers.*.down"]', '"layers..down"]', r"parameters\.mlp\.modules: must be different keys of a plan"),
        ('"layers.*.down"]', '"a,b"]', r"parameters\.mlp\.modules: must be different keys of a plan"),
        ('"layers.*.down"]', "3]", r"parameters\.mlp\.modules: must be different keys of a plan"),
        (
            MLP.partition("choices = ")[2],
            '["none", "full"]\nmodules = ["a"]\nhook = "activation_checkpointing"',
            r"modules: only allowed together with hook = 'parallelize_mod",
        ),
        (
            'hook = "parallelize_module"',
            'flag = "--mlp"',
            r"modules: only allowed together with hook = 'parallelize_mo",
        ),
        ('"replicated"]', '"sharded"]', r"choices: hook = .* needs choices from plan, colwise, rowwise, replicated"),
    ],
)
def test_a_group_that_breaks_a_rule_is_told(old: str, new: str, why: str) -> None:
    with pytest.raises(SpaceError, match=rf"^x\.toml: .*{why}"):
        parse_space(MLP.replace(old, new), where="x.toml")


def test_no_module_is_placed_twice() -> None:
    again = MLP.replace("mlp", "other").replace('"layers.*.up", ', '"head", ')
    with pytest.raises(
        SpaceError, match=r"parameters\.mlp and parameters\.other are both bound to hook parallelize_module\.layers"
    ):
        parse_space(MLP + again, where="x.toml")
