"""Values of an abstract interpretation: what is known of the objects that a program would build."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Unknown:
    """Value of which nothing is known, but perhaps that it is no module of torch."""

    may_be_module: bool


UNKNOWN = Unknown(may_be_module=False)
UNKNOWN_OBJECT = Unknown(may_be_module=True)
UNKNOWN_NAMES = "**"
"""Name among those of arguments or attributes, which says that there are others whose names are unknown."""


@dataclass(eq=False, slots=True)
class TensorValue:
    """Tensor by its number of elements; ``None`` where unknown."""

    size: int | None


@dataclass(eq=False, slots=True)
class ParameterValue:
    """Parameter of a module by its number of elements; ``None`` where unknown. One that is shared is one object."""

    size: int | None


@dataclass(eq=False, slots=True)
class ClassValue:
    """Class of the program: its definition, the names of the module around it, and attributes set later."""

    node: ast.ClassDef
    names: dict[str, object]
    attributes: dict[str, object] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class FunctionValue:
    """Function of the program: its definition, the names around it, and the object that it is bound to."""

    node: ast.FunctionDef | ast.Lambda
    names: dict[str, object]
    bound_to: object = None


@dataclass(eq=False, slots=True)
class Instance:
    """Object of a class of the program that is no module, or of ``argparse`` and its like.

    Args:
        kind: its class; ``None`` for what only holds attributes.
        attributes: by name; any other attribute is unknown.
        doubts: unknown choices around its making.
    """

    kind: ClassValue | None = None
    attributes: dict[str, object] = field(default_factory=dict)
    doubts: int = 0


@dataclass(eq=False, slots=True)
class BoundMethod:
    """Method of a known object."""

    owner: object
    name: str


@dataclass(eq=False, slots=True)
class PartialCall:
    """Function with some of its arguments (``functools.partial``)."""

    function: object
    positional: tuple[object, ...]
    keywords: dict[str, object]


@dataclass(eq=False, slots=True)
class ModuleValue:
    """Module of torch.

    Args:
        name: of its class.
        kind: its class, if the program defines it.
        attributes: children and parameters by name, and whatever else it holds.
        items: children in order, of a container.
        is_open: whether it may have parameters that are not seen.
        doubts: unknown choices around its making: what a further one changes in it is not certain.
    """

    name: str
    kind: ClassValue | None = None
    attributes: dict[str, object] = field(default_factory=dict)
    items: list[object] = field(default_factory=list)
    is_open: bool = False
    doubts: int = 0

    def modules(self) -> Iterator[ModuleValue]:
        """Yield the module and all below it, each once."""
        pending: list[ModuleValue] = [self]
        seen: set[int] = set()
        while pending:
            module = pending.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield module
            pending += [each for each in (*module.attributes.values(), *module.items) if isinstance(each, ModuleValue)]

    def n_params(self) -> int | None:
        """Return the number of parameters, shared ones counted once; ``None`` where a size is unknown."""
        sizes: dict[int, int | None] = {}
        for module in self.modules():
            held = (*module.attributes.values(), *module.items)
            if module.is_open or any(isinstance(each, Unknown) and each.may_be_module for each in held):
                return None
            sizes |= {id(each): each.size for each in module.attributes.values() if isinstance(each, ParameterValue)}
        known = [size for size in sizes.values() if size is not None]
        return sum(known) if len(known) == len(sizes) else None


@dataclass(eq=False, slots=True)
class ChildOf:
    """One of the children of a module, unknown which."""

    owner: ModuleValue


@dataclass(frozen=True, slots=True)
class LibraryName:
    """Name of something outside the program, in full, such as ``torch.nn.Linear``."""

    path: str


def is_number(value: object) -> bool:
    """Return whether a value is a known number."""
    return isinstance(value, int | float) and not isinstance(value, bool)
