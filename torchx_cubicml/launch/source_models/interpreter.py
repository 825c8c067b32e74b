"""Abstract interpretation of a program's source: what it would build, as far as its text and its command tell.

Nothing of the program is run. What a text does not tell is unknown, and so is all that depends on it. Of a choice that
is unknown, both branches are followed, and what they set differently is unknown.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from torchx_cubicml.launch.source_models.abstract_values import (
    UNKNOWN,
    UNKNOWN_NAMES,
    UNKNOWN_OBJECT,
    ChildOf,
    ClassValue,
    FunctionValue,
    Instance,
    LibraryName,
    ModuleValue,
    ParameterValue,
    PartialCall,
    Unknown,
    is_number,
)
from torchx_cubicml.launch.source_models.builtin_calls import CHANGING, METHODS, builtin_call, partial_call
from torchx_cubicml.launch.source_models.torch_modules import library_object

if TYPE_CHECKING:
    from collections.abc import Sequence

Names = dict[str, object]

_MOST_STEPS = 400_000  # statements and expressions of one program: a second or so
_DEEPEST = 40  # calls inside calls
_MOST_ROUNDS = 1_000  # of a loop
_LARGEST = 1 << 80
_OPERATIONS: Mapping[type[ast.AST], Callable[[object, object], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,  # type: ignore[operator]  # a TypeError makes it unknown
    ast.NotIn: lambda left, right: left not in right,  # type: ignore[operator]  # likewise
    ast.Pow: lambda left, right: left**right if abs(right) <= 64 and abs(left) <= 1e6 else UNKNOWN,  # type: ignore
    ast.BitOr: operator.or_,
}


class OutOfSteps(Exception):  # noqa: N818 - it ends an interpretation, and is no error
    """End of an interpretation that takes too long."""


class _Return(Exception):  # noqa: N818 - control flow
    def __init__(self, value: object) -> None:
        self.value = value


class _Dead(Exception):  # noqa: N818 - control flow
    """End of a branch that raises, or leaves the program or a loop."""


class Interpreter:
    """Interpreter of one program.

    Args:
        modules: names of each source file that the program imports, by dotted name; they are filled when interpreted.
        call_hook: returns the value of a call that the command decides, such as that of a parser; ``None`` for others.
        on_exec: called with the names of a module where it executes another text.

    Attributes:
        built: modules that were built, in order.
    """

    def __init__(
        self,
        modules: Mapping[str, ast.Module],
        *,
        call_hook: Callable[[str, ast.Call], object | None] = lambda name, node: None,
        on_exec: Callable[[Names], None] = lambda names: None,
    ) -> None:
        self._trees = modules
        self._loaded: dict[str, Names] = {}
        self._hook, self._on_exec = call_hook, on_exec
        self._steps, self._depth, self._doubts = 0, 0, 0
        self.built: list[ModuleValue] = []

    def run(self, tree: ast.Module, *, name: str) -> None:
        """Interpret a module of the program; ``__main__`` is the name of its script."""
        names: Names = {"__name__": name, "__file__": UNKNOWN}
        try:
            self._body(tree.body, names)
        except (_Return, _Dead):
            pass

    # Statements.

    def _body(self, body: Iterable[ast.stmt], names: Names) -> None:
        for statement in body:
            self._step()
            method = _STATEMENTS.get(type(statement))
            if method is not None:
                method(self, statement, names)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise OutOfSteps

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
            try:
                self._body(self._trees[name].body, self._loaded[name])
            except (_Return, _Dead):
                pass
        return self._loaded[name]

    def _define_class(self, node: ast.ClassDef, names: Names) -> None:
        names[node.name] = ClassValue(node=node, names=names)

    def _define_function(self, node: ast.FunctionDef, names: Names) -> None:
        names[node.name] = FunctionValue(node=node, names=names)

    def _assign(self, node: ast.Assign, names: Names) -> None:
        value = self.value(node.value, names)
        for target in node.targets:
            self._bind(target, value, names)

    def _annotated(self, node: ast.AnnAssign, names: Names) -> None:
        if node.value is not None:
            self._bind(node.target, self.value(node.value, names), names)

    def _augmented(self, node: ast.AugAssign, names: Names) -> None:
        before = self.value(_loaded(node.target), names)
        self._bind(node.target, _operate(type(node.op), before, self.value(node.value, names)), names)

    def _bind(self, target: ast.expr, value: object, names: Names) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            entries = list(value) if isinstance(value, list | tuple) else []
            for index, inner in enumerate(target.elts):
                self._bind(inner, entries[index] if len(entries) == len(target.elts) else UNKNOWN, names)
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, names)
            if isinstance(owner, Instance | ModuleValue):
                self._set_attribute(owner, target.attr, value)
        elif isinstance(target, ast.Subscript):
            owner, key = self.value(target.value, names), self.value(target.slice, names)
            if isinstance(owner, ModuleValue) and self._doubts > owner.doubts and not _is_child(value, owner):
                owner.is_open = True
            _set_item(owner, key, value)

    def _set_attribute(self, owner: Instance | ModuleValue, name: str, value: object) -> None:
        """Set an attribute; after a choice that is unknown, it may have another value."""
        if self._doubts > owner.doubts and not _same(owner.attributes.get(name, UNKNOWN), value):
            value = _either(owner.attributes.get(name, UNKNOWN), value)
        owner.attributes[name] = value

    def _if(self, node: ast.If, names: Names) -> None:
        test = _truth(self.value(node.test, names))
        if test is not None:
            self._body(node.body if test else node.orelse, names)
            return
        outcomes = []
        for body in (node.body, node.orelse):
            branch = dict(names)
            self._doubts += 1
            try:
                self._body(body, branch)
                outcomes.append(branch)
            except (_Dead, _Return):
                continue
            finally:
                self._doubts -= 1
        if not outcomes:
            raise _Dead
        for name in {name for each in outcomes for name in each}:
            first, *others = [each.get(name, UNKNOWN) for each in outcomes]
            for other in others:
                first = first if _same(first, other) else _either(first, other)
            names[name] = first

    def _for(self, node: ast.For, names: Names) -> None:
        items = _items(self.value(node.iter, names))
        if items is None or len(items) > _MOST_ROUNDS:
            self._bind(node.target, UNKNOWN_OBJECT, names)
            self._in_doubt(node.body, names)
            return
        for item in items:
            self._bind(node.target, item, names)
            try:
                self._body(node.body, names)
            except _Dead:
                continue

    def _once(self, node: ast.While, names: Names) -> None:
        self._in_doubt(node.body, names)

    def _in_doubt(self, body: Sequence[ast.stmt], names: Names) -> None:
        """Interpret what may run any number of times."""
        self._doubts += 1
        try:
            self._body(body, names)
        except _Dead:
            return
        finally:
            self._doubts -= 1

    def _with(self, node: ast.With, names: Names) -> None:
        for item in node.items:
            value = self.value(item.context_expr, names)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, value, names)
        self._body(node.body, names)

    def _try(self, node: ast.Try, names: Names) -> None:
        try:
            self._body([*node.body, *node.orelse], names)
        except _Dead:
            for handler in node.handlers[:1]:
                self._body(handler.body, names)
        self._body(node.finalbody, names)

    def _expression(self, node: ast.Expr, names: Names) -> None:
        self.value(node.value, names)

    def _return(self, node: ast.Return, names: Names) -> None:
        raise _Return(self.value(node.value, names) if node.value is not None else None)

    def _raise(self, node: ast.stmt, names: Names) -> None:
        raise _Dead

    # Expressions.

    def value(self, node: ast.expr, names: Names) -> object:
        """Return the value of an expression; unknown where the text does not tell it."""
        self._step()
        method = _EXPRESSIONS.get(type(node))
        return UNKNOWN if method is None else method(self, node, names)

    def _constant(self, node: ast.Constant, names: Names) -> object:
        return node.value

    def _name(self, node: ast.Name, names: Names) -> object:
        scope: object = names
        while isinstance(scope, dict):
            if node.id in scope:
                return scope[node.id]
            scope = scope.get("__around__")
        return LibraryName(node.id)

    def _attribute(self, node: ast.Attribute, names: Names) -> object:
        return self._member(self.value(node.value, names), node.attr)

    def _member(self, owner: object, name: str) -> object:
        if isinstance(owner, LibraryName):
            return LibraryName(f"{owner.path}.{name}")
        if isinstance(owner, ClassValue):
            return self._class_member(owner, name, bound_to=None)
        if not isinstance(owner, Instance | ModuleValue):
            return LibraryName(f"*.{name}") if not isinstance(owner, str | list | dict) else _Bound(owner, name)
        if name in owner.attributes:
            return owner.attributes[name]
        if owner.kind is not None:
            return self._class_member(owner.kind, name, bound_to=owner)
        return _Bound(owner, name)

    def _class_member(self, kind: ClassValue, name: str, *, bound_to: object) -> object:
        for each in self._line(kind):
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
        return _Bound(bound_to, name) if bound_to is not None else UNKNOWN

    def _line(self, kind: ClassValue) -> list[ClassValue]:
        """Return a class and those of the program that it inherits from, in the order in which they are searched."""
        found = [kind]
        for base in kind.node.bases:
            value = self.value(base, kind.names)
            if isinstance(value, ClassValue) and value is not kind:
                found += self._line(value)
        return found

    def _fields(self, kind: ClassValue) -> Names:
        names: Names = {"__around__": kind.names}
        for statement in kind.node.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                self._body([statement], names)
        return {name: value for name, value in names.items() if name != "__around__"}

    def _binary(self, node: ast.BinOp, names: Names) -> object:
        return _operate(type(node.op), self.value(node.left, names), self.value(node.right, names))

    def _unary(self, node: ast.UnaryOp, names: Names) -> object:
        operand = self.value(node.operand, names)
        if isinstance(node.op, ast.Not):
            truth = _truth(operand)
            return UNKNOWN if truth is None else not truth
        return -operand if isinstance(node.op, ast.USub) and isinstance(operand, int | float) else UNKNOWN

    def _bool(self, node: ast.BoolOp, names: Names) -> object:
        is_and, unknown = isinstance(node.op, ast.And), False
        value: object = UNKNOWN
        for each in node.values:
            value = self.value(each, names)
            truth = _truth(value)
            if truth is not None and truth != is_and:
                return value if not unknown else not is_and
            unknown = unknown or truth is None
        return UNKNOWN if unknown else value

    def _compare(self, node: ast.Compare, names: Names) -> object:
        if len(node.ops) != 1:
            return UNKNOWN
        return _operate(type(node.ops[0]), self.value(node.left, names), self.value(node.comparators[0], names))

    def _conditional(self, node: ast.IfExp, names: Names) -> object:
        test = _truth(self.value(node.test, names))
        if test is not None:
            return self.value(node.body if test else node.orelse, names)
        one, other = self.value(node.body, names), self.value(node.orelse, names)
        return one if _same(one, other) else _either(one, other)

    def _sequence(self, node: ast.List | ast.Tuple | ast.Set, names: Names) -> object:
        entries: list[object] = []
        for each in node.elts:
            if isinstance(each, ast.Starred):
                items = _items(self.value(each.value, names))
                if items is None:
                    return UNKNOWN
                entries += items
            else:
                entries.append(self.value(each, names))
        return tuple(entries) if isinstance(node, ast.Tuple) else entries

    def _dict(self, node: ast.Dict, names: Names) -> object:
        table: dict[object, object] = {}
        for key, each in zip(node.keys, node.values, strict=True):
            value = self.value(each, names)
            if key is None and isinstance(value, dict):
                table |= value
                continue
            name = self.value(key, names) if key is not None else UNKNOWN
            if not isinstance(name, str | int | float | bool):
                return UNKNOWN
            table[name] = value
        return table

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, names: Names) -> object:
        found: list[object] = []
        return (
            found
            if self._generate(node.generators, names, lambda inner: found.append(self.value(node.elt, inner)))
            else UNKNOWN
        )

    def _dict_comprehension(self, node: ast.DictComp, names: Names) -> object:
        found: dict[object, object] = {}

        def add(inner: Names) -> None:
            key = self.value(node.key, inner)
            if isinstance(key, str | int):
                found[key] = self.value(node.value, inner)

        return found if self._generate(node.generators, names, add) else UNKNOWN

    def _generate(self, generators: Sequence[ast.comprehension], names: Names, add: Callable[[Names], None]) -> bool:
        """Call ``add`` with the names of each round; return whether all rounds are known."""
        first, *rest = generators
        items = _items(self.value(first.iter, names))
        if items is None or len(items) > _MOST_ROUNDS:
            return False
        for item in items:
            inner: Names = {"__around__": names}
            self._bind(first.target, item, inner)
            tests = [_truth(self.value(each, inner)) for each in first.ifs]
            if None in tests:
                return False
            if all(tests):
                if rest and not self._generate(rest, inner, add):
                    return False
                if not rest:
                    add(inner)
        return True

    def _subscript(self, node: ast.Subscript, names: Names) -> object:
        owner, key = self.value(node.value, names), self.value(node.slice, names)
        return _get_item(owner, key)

    def _lambda(self, node: ast.Lambda, names: Names) -> object:
        return FunctionValue(node=node, names=names)

    def _joined(self, node: ast.JoinedStr, names: Names) -> object:
        pieces = []
        for piece in node.values:
            value = (
                self.value(piece.value, names) if isinstance(piece, ast.FormattedValue) else self.value(piece, names)
            )
            if not isinstance(value, str | int | float):
                return UNKNOWN
            pieces.append(str(value))
        return "".join(pieces)

    def _call(self, node: ast.Call, names: Names) -> object:
        function = self.value(node.func, names)
        text = ast.unparse(node.func)
        decided = self._hook(text, node)
        if decided is not None:
            return decided
        if text == "exec":
            self._on_exec(names)
            return UNKNOWN
        if text.startswith("super("):
            return UNKNOWN
        positional, keywords = self._arguments(node, names)
        if text.endswith(".__init__") and self._is_super(node.func):
            return self._super_init(names, positional, keywords)
        return self.call(function, positional, keywords)

    def _arguments(self, node: ast.Call, names: Names) -> tuple[list[object], Names]:
        positional = self._sequence(ast.List(elts=node.args, ctx=ast.Load()), names)
        keywords: Names = {}
        for each in node.keywords:
            value = self.value(each.value, names)
            if each.arg is not None:
                keywords[each.arg] = value
            elif isinstance(value, dict):
                keywords |= {str(key): inner for key, inner in value.items()}
            elif isinstance(value, Instance):
                keywords |= value.attributes
            else:
                keywords[UNKNOWN_NAMES] = UNKNOWN
        return (positional, keywords) if isinstance(positional, list) else ([UNKNOWN], keywords)

    @staticmethod
    def _is_super(node: ast.expr) -> bool:
        owner = node.value if isinstance(node, ast.Attribute) else None
        return isinstance(owner, ast.Call) and getattr(owner.func, "id", "") == "super"

    def _super_init(self, names: Names, positional: Sequence[object], keywords: Names) -> object:
        owner, kind = names.get("__self__"), names.get("__class__")
        if isinstance(kind, ClassValue):
            for base in self._line(kind)[1:]:
                init = self._own_function(base, "__init__")
                if init is not None:
                    return self._call_function(FunctionValue(init, base.names, owner), positional, keywords, kind=base)
            if isinstance(owner, ModuleValue):
                owner.is_open = owner.is_open or not self._is_plain_module(kind)
        return None

    def _is_plain_module(self, kind: ClassValue) -> bool:
        """Return whether the last of the classes is ``torch.nn.Module`` itself, or nothing else of a library."""
        bases = [self.value(base, each.names) for each in self._line(kind) for base in each.node.bases]
        paths = [each.path for each in bases if isinstance(each, LibraryName)]
        harmless = ("torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module", "abc.ABC", "object")
        return all(path in harmless or path.partition(".")[0] in {"typing", "Generic"} for path in paths)

    @staticmethod
    def _own_function(kind: ClassValue, name: str) -> ast.FunctionDef | None:
        functions = (each for each in kind.node.body if isinstance(each, ast.FunctionDef) and each.name == name)
        return next(functions, None)

    # Calls.

    def call(self, function: object, positional: Sequence[object], keywords: Names) -> object:
        """Return the value of a call."""
        if isinstance(function, ClassValue):
            return self._instantiate(function, positional, keywords)
        if isinstance(function, FunctionValue):
            return self._call_function(function, positional, keywords)
        if isinstance(function, PartialCall):
            return self.call(function.function, [*function.positional, *positional], {**function.keywords, **keywords})
        if isinstance(function, _Bound):
            return self._call_method(function, positional, keywords)
        if not isinstance(function, LibraryName):
            return UNKNOWN_OBJECT
        return self._call_library(function, positional, keywords)

    def _call_method(self, function: _Bound, positional: Sequence[object], keywords: Names) -> object:
        owner = function.owner
        if self._doubts > getattr(owner, "doubts", 0) and function.name in CHANGING:
            positional = [UNKNOWN_OBJECT]
        return METHODS.get(function.name, _unknown)(owner, positional, keywords)

    def _call_library(self, function: LibraryName, positional: Sequence[object], keywords: Names) -> object:
        if function.path in {"exit", "quit", "sys.exit", "os._exit"}:
            raise _Dead
        if function.path in {"functools.partial", "partial"}:
            return partial_call(positional, keywords)
        if UNKNOWN_NAMES in keywords:
            return UNKNOWN_OBJECT
        if "." not in function.path or function.path.partition(".")[0] in {"math", "os", "copy"}:
            return builtin_call(function.path, positional, keywords)
        found = library_object(function.path, positional, keywords)
        if isinstance(found, ModuleValue) and found not in positional:
            found.doubts = self._doubts
            self.built.append(found)
        return found

    def _instantiate(self, kind: ClassValue, positional: Sequence[object], keywords: Names) -> object:
        line = self._line(kind)
        bases = [self.value(base, each.names) for each in line for base in each.node.bases]
        libraries = [each.path for each in bases if isinstance(each, LibraryName)]
        is_module = any(path.startswith("torch.nn.") for path in libraries)
        owner: Instance | ModuleValue = ModuleValue(name=kind.node.name, kind=kind) if is_module else Instance(kind)
        owner.doubts = self._doubts
        if isinstance(owner, ModuleValue):
            if "torch.nn.Module" not in libraries:  # such as a subclass of ``torch.nn.Linear``
                owner.is_open = True
            self.built.append(owner)
        for each in line:
            init = self._own_function(each, "__init__")
            if init is not None:
                self._call_function(FunctionValue(init, each.names, owner), positional, keywords, kind=each)
                return owner
        fields = {name: value for each in reversed(line) for name, value in self._fields(each).items()}
        if UNKNOWN_NAMES in keywords:
            fields = dict.fromkeys(fields, UNKNOWN)
        if isinstance(owner, Instance):
            owner.attributes |= fields | dict(zip(self._field_names(line), positional, strict=False)) | keywords
        return owner

    @staticmethod
    def _field_names(line: Sequence[ClassValue]) -> list[str]:
        statements = [each for kind in reversed(line) for each in kind.node.body if isinstance(each, ast.AnnAssign)]
        return [each.target.id for each in statements if isinstance(each.target, ast.Name)]

    def _call_function(
        self,
        function: FunctionValue,
        positional: Sequence[object],
        keywords: Names,
        kind: ClassValue | None = None,
    ) -> object:
        node = function.node
        if self._depth >= _DEEPEST:
            return UNKNOWN
        given = [*([function.bound_to] if function.bound_to is not None else []), *positional]
        names: Names = {"__around__": function.names, "__self__": function.bound_to, "__class__": kind}
        if kind is None and isinstance(function.bound_to, Instance | ModuleValue):
            names["__class__"] = function.bound_to.kind
        names |= self._parameters(node.args, given, keywords, function.names)
        if isinstance(node, ast.Lambda):
            return self.value(node.body, names)
        self._depth += 1
        try:
            self._body(node.body, names)
        except _Return as found:
            return found.value
        except _Dead:
            return UNKNOWN
        finally:
            self._depth -= 1
        return None

    def _parameters(self, node: ast.arguments, given: Sequence[object], keywords: Names, around: Names) -> Names:
        """Return the names that a call binds."""
        places = [each.arg for each in (*node.posonlyargs, *node.args)]
        found: Names = dict.fromkeys([*places, *(each.arg for each in node.kwonlyargs)], UNKNOWN)
        for name, default in zip(reversed(places), reversed(node.defaults), strict=False):
            found[name] = self.value(default, around)
        for each, default_of in zip(node.kwonlyargs, node.kw_defaults, strict=True):
            if default_of is not None:
                found[each.arg] = self.value(default_of, around)
        if UNKNOWN_NAMES in keywords:
            found = dict.fromkeys(found, UNKNOWN)
        found |= dict(zip(places, given, strict=False))
        found |= {name: value for name, value in keywords.items() if name in found}
        if node.vararg is not None:
            found[node.vararg.arg] = tuple(given[len(places) :])
        if node.kwarg is not None:
            found[node.kwarg.arg] = {name: value for name, value in keywords.items() if name not in found}
        return found


class _Bound:
    """Method of a known object."""

    def __init__(self, owner: object, name: str) -> None:
        self.owner, self.name = owner, name


def _unknown(owner: object, positional: Sequence[object], keywords: Names) -> object:
    return UNKNOWN if isinstance(owner, str | list | dict | ModuleValue) else UNKNOWN_OBJECT


def _loaded(node: ast.expr) -> ast.expr:
    return node


def _is_child(value: object, owner: ModuleValue) -> bool:
    return (isinstance(value, ChildOf) and value.owner is owner) or value in owner.items


def _either(one: object, other: object) -> Unknown:
    """Return what is known of a value that is one of two."""
    kinds = ModuleValue | ParameterValue | ChildOf
    values = (one, other)
    is_open = any(isinstance(each, kinds) or (isinstance(each, Unknown) and each.may_be_module) for each in values)
    return UNKNOWN_OBJECT if is_open else UNKNOWN


def _operate(kind: type[ast.AST], left: object, right: object) -> object:
    if isinstance(left, Unknown | LibraryName) or isinstance(right, Unknown | LibraryName):
        return UNKNOWN
    if kind in {ast.Is, ast.IsNot} and not (left is None or right is None or isinstance(left, bool)):
        return UNKNOWN
    operation = _OPERATIONS.get(kind)
    if operation is None:
        return UNKNOWN
    if kind is ast.Mult and not (is_number(left) and is_number(right)) and not _is_short(left, right):
        return UNKNOWN
    try:
        result = operation(left, right)
    except Exception:  # noqa: BLE001 - operands are the program's own, and any failure makes the result unknown
        return UNKNOWN
    return UNKNOWN if isinstance(result, int) and abs(result) > _LARGEST else result


def _is_short(left: object, right: object) -> bool:
    """Return whether the product of a sequence and a count is no larger than loops may be."""
    counts = [each for each in (left, right) if isinstance(each, int)]
    return bool(counts) and counts[0] <= _MOST_ROUNDS


def _truth(value: object) -> bool | None:
    if value is None or isinstance(value, bool | int | float | str | list | tuple | dict):
        return bool(value)
    return True if isinstance(value, ModuleValue | ClassValue | FunctionValue) else None


def _same(one: object, other: object) -> bool:
    if one is other:
        return True
    is_plain = all(isinstance(each, bool | int | float | str) for each in (one, other))
    return is_plain and type(one) is type(other) and one == other


def _items(value: object) -> list[object] | None:
    if isinstance(value, list | tuple | range):
        return list(value) if len(value) <= _MOST_ROUNDS else None
    if isinstance(value, dict):
        return list(value)
    if isinstance(value, ModuleValue) and value.kind is None and not value.is_open:
        return list(value.items)
    return None


def _get_item(owner: object, key: object) -> object:
    if isinstance(owner, ModuleValue):
        if isinstance(key, str):
            return owner.attributes.get(key, UNKNOWN_OBJECT)
        if not isinstance(key, int | slice):
            return ChildOf(owner)
        owner = owner.items
    if isinstance(owner, Instance):
        return owner.attributes.get(str(key), UNKNOWN)
    try:
        return owner[key]  # type: ignore[index]  # whatever fails is unknown
    except Exception:  # noqa: BLE001 - the objects are the program's own, and any failure makes the result unknown
        return UNKNOWN_OBJECT


def _set_item(owner: object, key: object, value: object) -> None:
    if isinstance(owner, ModuleValue):
        if isinstance(value, ChildOf) and value.owner is owner:
            return
        if isinstance(key, str):
            owner.attributes[key] = value
        elif isinstance(key, int) and -len(owner.items) <= key < len(owner.items):
            owner.items[key] = value
        else:
            owner.is_open = True
    elif isinstance(owner, Instance):
        owner.attributes[str(key)] = value
    elif (isinstance(owner, dict) and isinstance(key, str | int)) or (isinstance(owner, list) and isinstance(key, int) and -len(owner) <= key < len(owner)):
        owner[key] = value


_STATEMENTS: Mapping[type[ast.stmt], Callable[..., None]] = {
    ast.Import: Interpreter._import,
    ast.ImportFrom: Interpreter._import_from,
    ast.ClassDef: Interpreter._define_class,
    ast.FunctionDef: Interpreter._define_function,
    ast.Assign: Interpreter._assign,
    ast.AnnAssign: Interpreter._annotated,
    ast.AugAssign: Interpreter._augmented,
    ast.If: Interpreter._if,
    ast.For: Interpreter._for,
    ast.While: Interpreter._once,
    ast.With: Interpreter._with,
    ast.Try: Interpreter._try,
    ast.Expr: Interpreter._expression,
    ast.Return: Interpreter._return,
    ast.Raise: Interpreter._raise,
    ast.Break: Interpreter._raise,
    ast.Continue: Interpreter._raise,
}
_EXPRESSIONS: Mapping[type[ast.expr], Callable[..., object]] = {
    ast.Constant: Interpreter._constant,
    ast.Name: Interpreter._name,
    ast.Attribute: Interpreter._attribute,
    ast.BinOp: Interpreter._binary,
    ast.UnaryOp: Interpreter._unary,
    ast.BoolOp: Interpreter._bool,
    ast.Compare: Interpreter._compare,
    ast.IfExp: Interpreter._conditional,
    ast.List: Interpreter._sequence,
    ast.Tuple: Interpreter._sequence,
    ast.Set: Interpreter._sequence,
    ast.Dict: Interpreter._dict,
    ast.ListComp: Interpreter._comprehension,
    ast.SetComp: Interpreter._comprehension,
    ast.GeneratorExp: Interpreter._comprehension,
    ast.DictComp: Interpreter._dict_comprehension,
    ast.Subscript: Interpreter._subscript,
    ast.Call: Interpreter._call,
    ast.Lambda: Interpreter._lambda,
    ast.JoinedStr: Interpreter._joined,
}
