"""Data flow within a module: whether outputs of some of its layers reach other layers by element-wise operations only.

Such outputs may be whole or sharded: the operations do the same to each element. The source of ``forward`` tells, and
nothing is run. Whatever the source does not tell for certain counts as another use.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from torch import nn

_MODULES = frozenset(
    {"ReLU", "ReLU6", "LeakyReLU", "GELU", "SiLU", "Mish", "ELU", "SELU", "CELU", "Sigmoid", "Tanh", "Softplus"}
    | {"Softsign", "Hardswish", "Hardsigmoid", "Hardtanh", "LogSigmoid", "Identity"}
)
_FUNCTIONS = (
    *("relu", "relu6", "leaky_relu", "gelu", "silu", "mish", "elu", "selu", "celu", "sigmoid", "tanh", "softplus"),
    *("hardswish", "hardsigmoid"),
)
_METHODS = frozenset({"relu", "sigmoid", "tanh", "square"})
_PLAIN_STATEMENTS = (ast.Assign, ast.Return, ast.Expr)
_INNER_SCOPES = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Global, ast.Nonlocal, ast.Delete)


class _OtherUse(Exception):  # noqa: N818 - an outcome of the analysis, caught in this module
    """Use of an output by something else than an element-wise operation."""


def only_feeds(parent: nn.Module, sources: Collection[str], sinks: Collection[str]) -> bool:
    """Return whether the outputs of ``sources`` are used element-wise, and then by ``sinks`` only.

    Args:
        parent: module that calls the layers.
        sources: names of layers of it.
        sinks: names of other layers of it, each of which takes such outputs only.
    """
    from torch import nn

    if any(_has_hooks(child) for name, child in parent.named_children() if name in {*sources, *sinks}):
        return False
    if type(parent) is nn.Sequential:
        return _feeds_in_sequence(parent, sources, sinks)
    if "forward" in vars(parent) or _has_hooks(parent):
        return False
    function = type(parent).forward
    tree = _parsed(function)
    if tree is None:
        return False
    flow = _Flow(parent, getattr(function, "__globals__", {}), tree.args.args[0].arg, sources, sinks)
    try:
        flow.run(tree.body)
    except _OtherUse:
        return False
    return sorted(flow.called) == sorted([*sources, *sinks])


def _parsed(function: Callable[..., object]) -> ast.FunctionDef | None:
    """Return the syntax tree of a plain method; ``None`` for another one, or without its source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if not isinstance(tree, ast.FunctionDef) or tree.decorator_list or not tree.args.args:
        return None
    inner = (node for statement in tree.body for node in ast.walk(statement))
    return None if any(isinstance(node, _INNER_SCOPES) for node in inner) else tree


def _feeds_in_sequence(parent: nn.Module, sources: Collection[str], sinks: Collection[str]) -> bool:
    is_open, seen = False, set[str]()
    for name, child in parent.named_children():
        if name in sources:
            if is_open:
                return False
            is_open = True
            seen.add(name)
        elif name in sinks:
            if not is_open:
                return False
            is_open = False
            seen.add(name)
        elif is_open and not _is_elementwise(child):
            return False
    return not is_open and seen == {*sources, *sinks}


def _has_hooks(module: nn.Module) -> bool:
    """Return whether a hook sees what a module takes or returns."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _is_elementwise(module: nn.Module) -> bool:
    is_known = type(module).__module__.startswith("torch.nn.modules.") and type(module).__name__ in _MODULES
    return is_known and not _has_hooks(module)


class _Flow:
    """Walk over the statements of one ``forward``.

    Args:
        parent: the module.
        names: global names of the function.
        own: name of its first argument.
        sources: names of layers whose outputs are followed.
        sinks: names of the layers that may take them.
    """

    def __init__(
        self,
        parent: nn.Module,
        names: Mapping[str, object],
        own: str,
        sources: Collection[str],
        sinks: Collection[str],
    ) -> None:
        self._children, self._names, self._own = dict(parent.named_children()), names, own
        self._sources, self._sinks = sources, sinks
        self._followed: set[str] = set()
        self.called: list[str] = []

    def run(self, statements: Iterable[ast.stmt]) -> None:
        """Follow the outputs through straight-line code; raise ``_OtherUse`` if anything else uses them."""
        for statement in statements:
            if not isinstance(statement, _PLAIN_STATEMENTS):
                n_called = len(self.called)
                self._check_unused(statement)
                if len(self.called) > n_called:
                    raise _OtherUse  # within a loop or a branch
            elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self._assign(statement.targets[0], is_followed=self._follow(statement.value))
            else:
                self._check_unused(statement)

    def _assign(self, target: ast.expr, *, is_followed: bool) -> None:
        if isinstance(target, ast.Name):
            (self._followed.add if is_followed else self._followed.discard)(target.id)
        elif is_followed:
            raise _OtherUse
        else:
            self._check_unused(target)

    def _check_unused(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if self._follow(child):
                raise _OtherUse

    def _follow(self, node: ast.AST) -> bool:
        """Return whether an expression is an output that is followed, after element-wise operations."""
        if isinstance(node, ast.Name):
            if node.id == self._own:
                raise _OtherUse  # the whole module is passed on
            return node.id in self._followed
        if isinstance(node, ast.Call):
            return self._follow_call(node)
        if isinstance(node, ast.BinOp):
            return self._follow_operation(node)
        if isinstance(node, ast.Attribute) and self._is_own(node.value):
            if node.attr in {*self._sources, *self._sinks}:
                raise _OtherUse  # not called
            return False
        self._check_unused(node)
        return False

    def _follow_operation(self, node: ast.BinOp) -> bool:
        left, right = self._follow(node.left), self._follow(node.right)
        is_constant = isinstance(node.right if left else node.left, ast.Constant)
        if isinstance(node.op, ast.Mult | ast.Add | ast.Sub) and left != right and not is_constant:
            raise _OtherUse
        if not isinstance(node.op, ast.Mult | ast.Add | ast.Sub) and (left or right):
            raise _OtherUse
        return left or right

    def _follow_call(self, node: ast.Call) -> bool:
        if isinstance(node.func, ast.Attribute) and self._is_own(node.func.value):
            return self._follow_layer(node, node.func.attr)
        if isinstance(node.func, ast.Attribute) and self._follow_value(node.func.value):
            if node.func.attr not in _METHODS or node.args or node.keywords:
                raise _OtherUse
            return True
        return self._follow_function(node)

    def _follow_layer(self, node: ast.Call, name: str) -> bool:
        if name not in self._children:
            raise _OtherUse  # a method may use the layers
        given = [self._follow(argument) for argument in node.args]
        self._check_keywords(node)
        if name in self._sinks or name in self._sources:
            self.called.append(name)
            if given != [name in self._sinks]:
                raise _OtherUse
            return name in self._sources
        if any(given) and (len(given) > 1 or not _is_elementwise(self._children[name])):
            raise _OtherUse
        return any(given)

    def _follow_function(self, node: ast.Call) -> bool:
        given = [self._follow(argument) for argument in node.args]
        self._check_keywords(node)
        if not any(given):
            return False
        others = [*node.args[1:], *(each.value for each in node.keywords)]
        if not given[0] or not all(isinstance(each, ast.Constant) for each in others):
            raise _OtherUse
        if not self._is_elementwise_function(node.func):
            raise _OtherUse
        return True

    def _follow_value(self, node: ast.expr) -> bool:
        """Return whether the object of a method call is followed; a module such as ``torch`` is not."""
        return self._follow(node) if not isinstance(node, ast.Name) or node.id != self._own else False

    def _check_keywords(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if self._follow(keyword.value):
                raise _OtherUse

    def _is_own(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self._own

    def _is_elementwise_function(self, node: ast.expr) -> bool:
        import torch
        from torch.nn import functional

        if isinstance(node, ast.Name):
            found = self._names.get(node.id)
        elif isinstance(node, ast.Attribute):
            holder = self._module_of(node.value)
            found = getattr(holder, node.attr, None) if holder is not None else None
        else:
            return False
        known = [getattr(place, name, None) for place in (torch, functional) for name in _FUNCTIONS]
        return found is not None and any(found is each for each in known)

    def _module_of(self, node: ast.expr) -> object | None:
        """Return the Python module that an expression such as ``torch.nn.functional`` names; ``None`` for another."""
        if isinstance(node, ast.Name):
            found = self._names.get(node.id)
        elif isinstance(node, ast.Attribute):
            found = getattr(self._module_of(node.value), node.attr, None)
        else:
            return None
        return found if inspect.ismodule(found) else None
