"""Attributes of objects and classes of a program as abstract values."""

from __future__ import annotations

import ast
from abc import abstractmethod
from typing import TYPE_CHECKING

from torchx_cubicml.launch.source_models.abstract_values import (
    UNKNOWN,
    UNKNOWN_OBJECT,
    BoundMethod,
    ClassValue,
    FunctionValue,
    Instance,
    LibraryName,
    ModuleValue,
)
from torchx_cubicml.launch.source_models.evaluator import AROUND, Evaluator

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchx_cubicml.launch.source_models.evaluator import Names


class MemberReader(Evaluator):
    """Evaluator that finds attributes, along the classes of the program; calls and statements are left open."""

    @abstractmethod
    def _body(self, body: Iterable[ast.stmt], names: Names) -> None:
        """Interpret statements."""

    @abstractmethod
    def _call_function(
        self,
        function: FunctionValue,
        positional: Sequence[object],
        keywords: Names,
        kind: ClassValue | None = None,
    ) -> object:
        """Return the value of a call of a function of the program, one of ``kind`` if it is a method of a class."""

    def _attribute(self, node: ast.Attribute, names: Names) -> object:
        return self._member(self.value(node.value, names), node.attr)

    def _member(self, owner: object, name: str) -> object:
        if isinstance(owner, LibraryName):
            return LibraryName(f"{owner.path}.{name}")
        if isinstance(owner, ClassValue):
            return self._class_member(owner, name, bound_to=None)
        if not isinstance(owner, Instance | ModuleValue):
            return LibraryName(f"*.{name}") if not isinstance(owner, str | list | dict) else BoundMethod(owner, name)
        if name in owner.attributes or name == "__dict__":
            return owner.attributes.get(name, owner.attributes)
        if owner.kind is not None:
            return self._class_member(owner.kind, name, bound_to=owner)
        return BoundMethod(owner, name)

    def _class_member(self, kind: ClassValue, name: str, *, bound_to: object) -> object:
        for each in self._line(kind):
            if name in each.attributes:
                return each.attributes[name]
            for statement in each.node.body:
                if isinstance(statement, ast.FunctionDef) and statement.name == name:
                    found = FunctionValue(node=statement, names=each.names, bound_to=bound_to)
                    decorators = {getattr(decorator, "id", "") for decorator in statement.decorator_list}
                    if "staticmethod" in decorators:
                        return FunctionValue(node=statement, names=each.names)
                    if "classmethod" in decorators:
                        return FunctionValue(node=statement, names=each.names, bound_to=kind)
                    return self._call_function(found, [], {}) if "property" in decorators else found
            fields = self._fields(each)
            if name in fields:
                return fields[name]
        return BoundMethod(bound_to, name) if bound_to is not None else UNKNOWN

    def _line(self, kind: ClassValue) -> list[ClassValue]:
        """Return a class and those of the program that it inherits from, in the order in which they are searched."""
        found = [kind]
        for base in kind.node.bases:
            value = self.value(base, kind.names)
            if isinstance(value, ClassValue) and value is not kind:
                found += self._line(value)
        return found

    def _fields(self, kind: ClassValue) -> Names:
        names: Names = {AROUND: kind.names}
        for statement in kind.node.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                self._body([statement], names)
        return {name: value for name, value in names.items() if name != AROUND}

    @staticmethod
    def _own_function(kind: ClassValue, name: str) -> ast.FunctionDef | None:
        functions = (each for each in kind.node.body if isinstance(each, ast.FunctionDef) and each.name == name)
        return next(functions, None)

    def _is_plain_module(self, kind: ClassValue) -> bool:
        """Return whether the last of the classes is ``torch.nn.Module`` itself, or nothing else of a library."""
        bases = [self.value(base, each.names) for each in self._line(kind) for base in each.node.bases]
        paths = [each.path for each in bases if isinstance(each, LibraryName)]
        harmless = ("torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module", "abc.ABC", "object")
        return all(path in harmless or path.partition(".")[0] in {"typing", "Generic"} for path in paths)

    def _described_fields(self, kind: object) -> object:
        """Return the fields of a dataclass with names and defaults, as ``dataclasses.fields`` does."""
        kind = kind.kind if isinstance(kind, Instance) else kind
        if not isinstance(kind, ClassValue):
            return UNKNOWN_OBJECT
        line = self._line(kind)
        defaults = {name: value for each in reversed(line) for name, value in self._fields(each).items()}
        names = self._field_names(line)
        return [Instance(attributes={"name": name, "default": defaults.get(name, UNKNOWN)}) for name in names]

    @staticmethod
    def _field_names(line: Sequence[ClassValue]) -> list[str]:
        statements = [each for kind in reversed(line) for each in kind.node.body if isinstance(each, ast.AnnAssign)]
        return [each.target.id for each in statements if isinstance(each.target, ast.Name)]
