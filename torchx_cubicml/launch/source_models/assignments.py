"""Assignments of a program to names, attributes and entries."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchx_cubicml.launch.source_models.abstract_values import (
    UNKNOWN,
    UNKNOWN_OBJECT,
    BoundMethod,
    ChildOf,
    ClassValue,
    Instance,
    ModuleValue,
)
from torchx_cubicml.launch.source_models.calls import Caller
from torchx_cubicml.launch.source_models.evaluator import AROUND
from torchx_cubicml.launch.source_models.value_operations import (
    either,
    get_item,
    is_child,
    is_inside,
    operate,
    same,
    set_item,
)

if TYPE_CHECKING:
    from torchx_cubicml.launch.source_models.evaluator import Names


class Assigner(Caller):
    """Evaluator that follows assignments, and notes which modules they replace; other statements are left open."""

    def _assign(self, node: ast.Assign, names: Names) -> None:
        value = self.value(node.value, names)
        for target in node.targets:
            self._bind(target, value, names)

    def _annotated(self, node: ast.AnnAssign, names: Names) -> None:
        if node.value is not None:
            self._bind(node.target, self.value(node.value, names), names)

    def _augmented(self, node: ast.AugAssign, names: Names) -> None:
        before, value = self.value(node.target, names), self.value(node.value, names)
        if isinstance(before, list | ModuleValue) and isinstance(node.op, ast.Add):
            self._call_method(BoundMethod(before, "extend"), [value], {})
        elif isinstance(before, dict) and isinstance(node.op, ast.BitOr):
            self._call_method(BoundMethod(before, "update"), [value], {})
        else:
            self._bind(node.target, operate(type(node.op), before, value), names)

    def _bind(self, target: ast.expr, value: object, names: Names) -> None:
        if isinstance(target, ast.Name):
            before, names[target.id] = names.get(target.id), value
            self._note_part(before, value, names)
        elif isinstance(target, ast.Tuple | ast.List):
            entries = list(value) if isinstance(value, list | tuple) else []
            for index, inner in enumerate(target.elts):
                self._bind(inner, entries[index] if len(entries) == len(target.elts) else UNKNOWN, names)
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, names)
            if isinstance(owner, Instance | ModuleValue):
                self._set_attribute(owner, target.attr, value)
            elif isinstance(owner, ClassValue):
                owner.attributes[target.attr] = value if not self._doubts else UNKNOWN_OBJECT
        elif isinstance(target, ast.Subscript):
            self._set_entry(self.value(target.value, names), self.value(target.slice, names), value)

    def _set_entry(self, owner: object, key: object, value: object) -> None:
        """Set an entry; after a choice that is unknown, it may have another value."""
        if isinstance(owner, ModuleValue):
            owner.is_open = owner.is_open or (self._doubts > owner.doubts and not is_child(value, owner))
            self._note_replaced(get_item(owner, key), value)
        if not isinstance(owner, list | dict):
            set_item(owner, key, value)
        elif isinstance(key, str | int) and (key in owner if isinstance(owner, dict) else True) and self._doubts:
            set_item(owner, key, either(get_item(owner, key), value))
        elif isinstance(key, str | int) and not self._doubts:
            set_item(owner, key, value)
        else:
            self._spoil(owner)

    def _note_replaced(self, before: object, value: object) -> None:
        if isinstance(before, ModuleValue) and before is not value:
            self.replaced.append(before)

    def _note_part(self, before: object, value: object, names: Names) -> None:
        """Note a module whose last name is given to a part of it: which of both is the model is not told."""
        if not isinstance(before, ModuleValue) or before is value:
            return
        is_part = value.owner is before if isinstance(value, ChildOf) else is_inside(value, before)
        scope: object = names
        while is_part and isinstance(scope, dict):
            is_part = not any(each is before for each in scope.values())
            scope = scope.get(AROUND)
        if is_part:
            self.taken_apart.append(before)

    def _set_attribute(self, owner: Instance | ModuleValue, name: str, value: object) -> None:
        """Set an attribute; after a choice that is unknown, it may have another value."""
        if self._doubts > owner.doubts and not same(owner.attributes.get(name, UNKNOWN), value):
            value = either(owner.attributes.get(name, UNKNOWN), value)
        if isinstance(owner, ModuleValue):
            self._note_replaced(owner.attributes.get(name), value)
        owner.attributes[name] = value

    def _delete(self, node: ast.Delete, names: Names) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                names[target.id] = UNKNOWN
            elif isinstance(target, ast.Attribute | ast.Subscript):
                self._spoil(self.value(target.value, names))
