"""Wrapping of a function in the modules of torch that hold it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from torchx_cubicml.recorder.apply.wrapped_function import WrappedFunctions

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable


@pytest.fixture
def holders(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return three modules that hold one function, two of them torch's; it calls itself once for 10."""
    modules = [ModuleType(name) for name in ("torch.one", "torch.two", "other")]

    def scale(number: int, *, by: int = 1) -> int:
        return int(modules[0].scale(1, by=by)) if number == 10 else number * by

    for module in modules:
        module.scale = scale
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return modules


def doubled(make: Callable[[], object], call: inspect.BoundArguments) -> Callable[[], object] | None:
    if call.arguments["number"] == 0:
        return None
    call.arguments["number"] *= 2
    return make


def test_all_modules_of_torch_get_one_wrapper_until_the_release(holders: list[Any]) -> None:
    original = holders[0].scale
    wrapped = WrappedFunctions(lambda call: call)
    wrapped.wrap(original, doubled)
    first, second, other = holders
    assert first.scale is second.scale is not original
    assert (other.scale(3), first.scale(3, by=2), first.scale(0)) == (3, 12, 0)
    assert first.scale(5) == 1  # doubled to 10; the inner call is left
    with pytest.raises(TypeError, match="number"):
        first.scale()
    assert first.scale(3) == 6
    taken = first.scale
    second.scale = replaced = object()
    wrapped.release()
    assert (taken(3), first.scale, second.scale) == (3, original, replaced)


def test_two_hooks_wrap_the_same_function(holders: list[Any]) -> None:
    original = holders[0].scale
    inner, outer = WrappedFunctions(lambda call: call), WrappedFunctions(lambda call: call)
    inner.wrap(original, doubled)
    outer.wrap(holders[0].scale, doubled)
    assert (holders[0].scale(3), holders[1].scale(3)) == (12, 12)
    outer.release()
    assert holders[1].scale(3) == 6
    inner.release()
    assert holders[1].scale is original


def test_methods_are_wrapped_where_the_class_has_them() -> None:
    class Place:
        def __init__(self, number: int) -> None:
            self.number = number

        @staticmethod
        def scale(number: int) -> int:
            return number

    kept = dict(vars(Place))
    wrapped = WrappedFunctions(lambda call: call)
    for name in ("__init__", "scale", "missing"):
        wrapped.wrap_method(Place, name, doubled)
    assert (Place(3).number, Place.scale(3), Place(1).scale(4)) == (6, 6, 8)
    wrapped.release()
    assert dict(vars(Place)) == kept


def test_a_guard_that_calls_nothing_leaves_the_call(holders: list[Any]) -> None:
    wrapped = WrappedFunctions(lambda _call: lambda *_args, **_kwargs: None)
    wrapped.wrap(holders[0].scale, doubled)
    assert holders[0].scale(3) == 3


def test_calls_within_a_call_are_replaced_where_the_hook_asks_for_them(holders: list[Any]) -> None:
    wrapped = WrappedFunctions(lambda call: call, nested=True)
    wrapped.wrap(holders[0].scale, doubled)
    assert holders[0].scale(5) == 2  # doubled to 10, and the inner 1 to 2


def test_a_method_of_a_base_class_is_wrapped_in_the_class_alone() -> None:
    class Base:
        def scale(self, number: int) -> int:
            return number

    class Place(Base):
        pass

    wrapped = WrappedFunctions(lambda call: call)
    wrapped.wrap_method(Place, "scale", doubled)
    assert (Place().scale(3), Base().scale(3)) == (6, 3)
    wrapped.release()
    assert "scale" not in vars(Place)
    assert Place().scale(3) == 3
