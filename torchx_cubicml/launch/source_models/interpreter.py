"""Abstract interpretation of a program's source: what it would build, as far as its text and its command tell.

Nothing of the program is run. What a text does not tell is unknown, and so is all that depends on it. Of a choice that
is unknown, both branches are followed, and what they set differently is unknown.
"""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import TYPE_CHECKING

from torchx_cubicml.launch.source_models.abstract_values import (
    UNKNOWN,
    UNKNOWN_OBJECT,
    ClassValue,
    FunctionValue,
    Instance,
    LibraryName,
)
from torchx_cubicml.launch.source_models.assignments import Assigner
from torchx_cubicml.launch.source_models.calls import (
    RETURNED,
    DeadEnd,
    ReturnReached,
    RoundEnded,
)
from torchx_cubicml.launch.source_models.evaluator import AROUND
from torchx_cubicml.launch.source_models.value_operations import (
    MOST_ROUNDS,
    either,
    items_of,
    same,
    truth,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torchx_cubicml.launch.source_models.calls import CallHook
    from torchx_cubicml.launch.source_models.evaluator import Names


_NAMES_A_STEP = 5  # that are copied in the time of a step


class Interpreter(Assigner):
    """Interpreter of one program.

    Args:
        modules: syntax trees of the source files that the program imports, by module name.
        call_hook: see ``Caller``.
        on_exec: likewise.
    """

    def __init__(
        self,
        modules: Mapping[str, ast.Module],
        *,
        call_hook: CallHook = lambda name, positional, keywords: None,
        on_exec: Callable[[Names], None] = lambda names: None,
    ) -> None:
        super().__init__(call_hook, on_exec)
        self._trees = modules
        self._loaded: dict[str, Names] = {}

    def run(self, tree: ast.Module, *, name: str) -> None:
        """Interpret a module of the program; ``__main__`` is the name of its script."""
        names: Names = {"__name__": name, "__file__": UNKNOWN}
        with suppress(ReturnReached, DeadEnd):
            self._body(tree.body, names)

    def _body(self, body: Iterable[ast.stmt], names: Names) -> None:
        for statement in body:
            self._step()
            method = _STATEMENTS.get(type(statement))
            if method is not None:
                getattr(self, method)(statement, names)

    def _import(self, node: ast.Import, names: Names) -> None:
        for alias in node.names:
            top = alias.name if alias.asname else alias.name.partition(".")[0]
            names[alias.asname or top] = (
                Instance(attributes=self._load(top)) if top in self._trees else LibraryName(top)
            )

    def _import_from(self, node: ast.ImportFrom, names: Names) -> None:
        module = node.module or ""
        known = next((each for each in (module, module.rpartition(".")[2]) if each in self._trees), None)
        for alias in node.names:
            bound = alias.asname or alias.name
            if known is None:
                names[bound] = LibraryName(f"{module}.{alias.name}")
                if alias.name in self._trees and node.level:
                    names[bound] = Instance(attributes=self._load(alias.name))
            elif alias.name == "*":
                names |= {key: value for key, value in self._load(known).items() if not key.startswith("_")}
            else:
                names[bound] = self._load(known).get(alias.name, UNKNOWN)

    def _load(self, name: str) -> Names:
        """Return the names of another source file, interpreted once."""
        if name not in self._loaded:
            self._loaded[name] = {"__name__": name}
            with suppress(ReturnReached, DeadEnd):
                self._body(self._trees[name].body, self._loaded[name])
        return self._loaded[name]

    def _define_class(self, node: ast.ClassDef, names: Names) -> None:
        names[node.name] = ClassValue(node=node, names=names)

    def _define_function(self, node: ast.FunctionDef, names: Names) -> None:
        names[node.name] = FunctionValue(node=node, names=names)

    def _if(self, node: ast.If, names: Names) -> None:
        test = truth(self.value(node.test, names))
        if test is not None:
            self._body(node.body if test else node.orelse, names)
            return
        branches = [self._branch(body, names) for body in (node.body, node.orelse)]
        outcomes = [each for each, is_left in branches if each is not None and not is_left]
        left = [each for each, is_left in branches if each is not None and is_left]
        if not outcomes:
            raise RoundEnded(leaves=True) if left and RETURNED not in names else DeadEnd
        if left:
            self._doubts += 1  # until the function or the loop ends: what follows may not run
        for name in {name for each in outcomes for name in each} - {AROUND}:
            first, *others = [each.get(name, UNKNOWN) for each in outcomes]
            for other in others:
                first = first if same(first, other) else either(first, other)
            names[name] = first

    def _branch(self, body: Sequence[ast.stmt], names: Names) -> tuple[Names | None, bool]:
        """Return the names after a branch that may run, and whether it leaves the function or the loop.

        The names are ``None`` where it ends the program.
        """
        before, doubts = dict(names), self._doubts
        self._step(1 + len(before) // _NAMES_A_STEP)
        self._doubts += 1
        is_left, is_dead = True, False
        try:
            self._body(body, names)
            is_left = False
        except ReturnReached as found:
            returned = before.setdefault(RETURNED, [])
            if isinstance(returned, list):
                returned.append(found.value)
        except RoundEnded:
            pass
        except DeadEnd:
            is_dead = True
        self._doubts = doubts
        after = None if is_dead else dict(names)
        names.clear()  # the functions inside have these very names around them
        names |= before
        return after, is_left

    def _for(self, node: ast.For, names: Names) -> None:
        items = items_of(self.value(node.iter, names))
        if items is None or len(items) > MOST_ROUNDS:
            self._bind(node.target, UNKNOWN_OBJECT, names)
            self._in_doubt(node.body, names)
            return
        doubts = self._doubts
        ends: list[Names] = []
        for item in items:
            self._bind(node.target, item, names)
            try:
                self._body(node.body, names)
            except RoundEnded as ended:
                if ended.leaves:
                    break
            if self._doubts > doubts:  # this round may have left the loop
                self._step(len(names) // _NAMES_A_STEP)
                ends.append(dict(names))
        for each in ends:
            self._merge(names, each)
        self._doubts = doubts
        self._in_doubt(node.orelse, names)

    def _once(self, node: ast.While, names: Names) -> None:
        self.value(node.test, names)
        self._in_doubt(node.body, names)
        self._in_doubt(node.orelse, names)

    def _in_doubt(self, body: Sequence[ast.stmt], names: Names) -> None:
        """Interpret what may run any number of times; what it sets may have other values."""
        after, _ = self._branch(body, names) if body else (None, False)
        self._merge(names, after or {})

    @staticmethod
    def _merge(names: Names, others: Names) -> None:
        """Make unknown the names that have other values in ``others``."""
        for name, value in others.items():
            before = names.get(name, UNKNOWN)
            if name != AROUND:
                names[name] = value if same(before, value) else either(before, value)

    def _match(self, node: ast.Match, names: Names) -> None:
        for case in node.cases:
            self._in_doubt(case.body, names)

    def _outer(self, node: ast.Global | ast.Nonlocal, names: Names) -> None:
        """Make unknown the names around a function that it sets."""
        for name in node.names:
            scope = names.get(AROUND)
            while isinstance(scope, dict):
                if name in scope:
                    scope[name] = UNKNOWN_OBJECT
                scope = scope.get(AROUND)

    def _with(self, node: ast.With, names: Names) -> None:
        for item in node.items:
            value = self.value(item.context_expr, names)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, value, names)
        before = dict(names)
        self._body(node.body, names)
        if any("suppress" in ast.unparse(item.context_expr) for item in node.items):
            self._merge(names, before)

    def _try(self, node: ast.Try, names: Names) -> None:
        before = dict(names)
        try:
            self._body([*node.body, *node.orelse], names)
        except DeadEnd:
            for handler in node.handlers[:1]:
                self._body(handler.body, names)
        else:
            after = [self._branch(each.body, names)[0] for each in node.handlers]
            if any(each is not None for each in after):  # the body may have ended anywhere
                self._merge(names, before)
            for each in after:
                self._merge(names, each or {})
        self._body(node.finalbody, names)

    def _expression(self, node: ast.Expr, names: Names) -> None:
        self.value(node.value, names)

    def _return(self, node: ast.Return, names: Names) -> None:
        raise ReturnReached(self.value(node.value, names) if node.value is not None else None)

    def _raise(self, node: ast.stmt, names: Names) -> None:
        raise DeadEnd

    def _end_round(self, node: ast.Break | ast.Continue, names: Names) -> None:
        raise RoundEnded(leaves=isinstance(node, ast.Break))


_STATEMENTS: Mapping[type[ast.stmt], str] = {
    ast.Import: "_import",
    ast.ImportFrom: "_import_from",
    ast.ClassDef: "_define_class",
    ast.FunctionDef: "_define_function",
    ast.Assign: "_assign",
    ast.AnnAssign: "_annotated",
    ast.AugAssign: "_augmented",
    ast.If: "_if",
    ast.For: "_for",
    ast.AsyncFor: "_for",
    ast.While: "_once",
    ast.With: "_with",
    ast.AsyncWith: "_with",
    ast.Try: "_try",
    ast.TryStar: "_try",
    ast.Match: "_match",
    ast.Global: "_outer",
    ast.Nonlocal: "_outer",
    ast.Delete: "_delete",
    ast.Expr: "_expression",
    ast.Return: "_return",
    ast.Raise: "_raise",
    ast.Break: "_end_round",
    ast.Continue: "_end_round",
}
