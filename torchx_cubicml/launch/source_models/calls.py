"""Calls of functions and classes of a program as abstract values."""

from __future__ import annotations

import ast
from abc import abstractmethod
from typing import TYPE_CHECKING, TypeAlias

from torchx_cubicml.launch.source_files import dotted
from torchx_cubicml.launch.source_models.abstract_values import (
    UNKNOWN,
    UNKNOWN_NAMES,
    UNKNOWN_OBJECT,
    BoundMethod,
    ClassValue,
    FunctionValue,
    Instance,
    LibraryName,
    ModuleValue,
    PartialCall,
)
from torchx_cubicml.launch.source_models.builtin_calls import (
    CHANGING,
    FILE_TESTS,
    METHODS,
    SPOILING,
    builtin_call,
    partial_call,
)
from torchx_cubicml.launch.source_models.class_members import MemberReader
from torchx_cubicml.launch.source_models.evaluator import AROUND
from torchx_cubicml.launch.source_models.torch_modules import library_object
from torchx_cubicml.launch.source_models.value_operations import either, is_small, items_of, same

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torchx_cubicml.launch.source_models.evaluator import Names

RETURNED = "__returned__"
"""Name under which a function has the values that it may have returned before."""
CallHook: TypeAlias = "Callable[[str, Sequence[object], Mapping[str, object]], object | None]"
_DEEPEST = 40  # calls inside calls
_HARMLESS = frozenset(
    {"staticmethod", "classmethod", "property", "cache", "lru_cache", "no_grad", "inference_mode", "override"}
)
"""Decorators that change no value that a function returns."""


class ReturnReached(Exception):  # noqa: N818 - control flow
    """End of a function, with its value."""

    def __init__(self, value: object) -> None:
        self.value = value


class DeadEnd(Exception):  # noqa: N818 - control flow
    """End of a branch that raises, or leaves the program."""


class RoundEnded(Exception):  # noqa: N818 - control flow
    """End of a round of a loop, and with ``leaves`` of the loop."""

    def __init__(self, *, leaves: bool) -> None:
        self.leaves = leaves


class Caller(MemberReader):
    """Evaluator that follows the functions and classes of the program; statements are left open.

    Args:
        call_hook: returns the value of a call that the command decides, such as that of a parser; ``None`` for others.
        on_exec: called with the names of a module where it executes another text.

    Attributes:
        asks_for_files: whether the program asks which files exist.
        replaced: those of them whose place in another module was given to something else.
    """

    def __init__(self, call_hook: CallHook, on_exec: Callable[[Names], None]) -> None:
        super().__init__()
        self._hook, self._on_exec = call_hook, on_exec
        self._depth, self._doubts = 0, 0
        self._wrapped: dict[ast.FunctionDef, bool] = {}
        self.asks_for_files = False
        self.replaced: list[ModuleValue] = []

    def _call(self, node: ast.Call, names: Names) -> object:
        function = self.value(node.func, names)
        text = ast.unparse(node.func)
        if text == "exec":
            self._on_exec(names)
            return UNKNOWN
        if text == "globals":
            return _outermost(names)
        positional, keywords = self._arguments(node, names)
        if isinstance(function, LibraryName):
            decided = self._hook(function.path, positional, keywords)
            if decided is not None:
                return decided
        if self._is_super(node.func):
            return self._call_super(text.rpartition(".")[2], names, positional, keywords)
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

    def _call_super(self, name: str, names: Names, positional: Sequence[object], keywords: Names) -> object:
        """Return the value of a method of the class above; one of a library may add parameters that are not seen."""
        owner, kind = names.get("__self__"), names.get("__class__")
        if not isinstance(kind, ClassValue):
            return UNKNOWN_OBJECT
        for base in self._line(kind)[1:]:
            method = self._own_function(base, name)
            if method is not None:
                return self._call_function(FunctionValue(method, base.names, owner), positional, keywords, kind=base)
        if isinstance(owner, ModuleValue):
            owner.is_open = owner.is_open or not self._is_plain_module(kind)
        return None

    def call(self, function: object, positional: Sequence[object], keywords: Names) -> object:
        """Return the value of a call."""
        if isinstance(function, ClassValue):
            return self._instantiate(function, positional, keywords)
        if isinstance(function, FunctionValue):
            return self._call_function(function, positional, keywords)
        if isinstance(function, PartialCall):
            return self.call(function.function, [*function.positional, *positional], {**function.keywords, **keywords})
        if isinstance(function, BoundMethod):
            return self._call_method(function, positional, keywords)
        if not isinstance(function, LibraryName):
            return UNKNOWN_OBJECT
        return self._call_library(function, positional, keywords)

    def _call_method(self, function: BoundMethod, positional: Sequence[object], keywords: Names) -> object:
        owner = function.owner
        is_followed = function.name == "update" and isinstance(owner, dict) and not self._doubts
        is_followed = is_followed and all(isinstance(each, dict) for each in (*positional, keywords))
        if function.name == "extend" and isinstance(owner, list):
            entries = items_of(positional[0]) if positional else None
            is_spoiled = entries is None or not is_small([owner, entries])
            positional = [entries]
        else:
            is_spoiled = function.name in SPOILING and not is_followed
        if is_spoiled or UNKNOWN_NAMES in keywords:
            self._spoil(owner)
            return UNKNOWN_OBJECT
        if self._doubts > getattr(owner, "doubts", 0) and function.name in CHANGING:
            positional = [UNKNOWN_OBJECT]
        return METHODS.get(function.name, _unknown)(owner, positional, keywords)

    def _call_library(self, function: LibraryName, positional: Sequence[object], keywords: Names) -> object:
        if function.path in {"exit", "quit", "sys.exit", "os._exit"}:
            raise DeadEnd
        if function.path in {"functools.partial", "partial"}:
            return partial_call(positional, keywords)
        if UNKNOWN_NAMES in keywords:
            return UNKNOWN_OBJECT
        if function.path in {"setattr", "delattr"} and positional:
            self._set_named(*[*positional, UNKNOWN, UNKNOWN][:3])
            return None
        self.asks_for_files = self.asks_for_files or function.path in FILE_TESTS
        if function.path == "dataclasses.fields" and positional:
            return self._described_fields(positional[0])
        if "." not in function.path or function.path.partition(".")[0] in {"math", "os", "copy"}:
            return builtin_call(function.path, positional, keywords)
        found = library_object(function.path, positional, keywords)
        if isinstance(found, ModuleValue) and found not in positional:
            found.doubts = self._doubts
            self.built.append(found)
        return found

    def _set_named(self, owner: object, name: object, value: object) -> None:
        """Set an attribute whose name is a value."""
        if isinstance(name, str) and isinstance(owner, Instance | ModuleValue):
            self._set_attribute(owner, name, value)
        else:
            self._spoil(owner)

    @abstractmethod
    def _set_attribute(self, owner: Instance | ModuleValue, name: str, value: object) -> None:
        """Set an attribute."""

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
                self._construct(owner, FunctionValue(init, each.names, owner), positional, keywords, each)
                return owner
        if isinstance(owner, Instance):
            self._set_fields(owner, line, positional, keywords)
        return owner

    def _set_fields(
        self, owner: Instance, line: Sequence[ClassValue], positional: Sequence[object], keywords: Names
    ) -> None:
        """Set the fields of an object as the constructor of a dataclass does."""
        fields = {name: value for each in reversed(line) for name, value in self._fields(each).items()}
        if UNKNOWN_NAMES in keywords:
            fields = dict.fromkeys(fields, UNKNOWN)
        owner.attributes |= fields | dict(zip(self._field_names(line), positional, strict=False)) | keywords
        for each in line:
            after = self._own_function(each, "__post_init__")
            if after is not None:
                self._call_function(FunctionValue(after, each.names, owner), [], {}, kind=each)
                return

    def _construct(
        self,
        owner: Instance | ModuleValue,
        init: FunctionValue,
        positional: Sequence[object],
        keywords: Names,
        kind: ClassValue,
    ) -> None:
        """Follow a constructor; an object whose constructor is not followed to its end may hold more."""
        is_whole = False
        try:
            is_whole = self._call_function(init, positional, keywords, kind=kind) is None
        finally:
            if not is_whole:
                self._spoil(owner)

    def _call_function(
        self,
        function: FunctionValue,
        positional: Sequence[object],
        keywords: Names,
        kind: ClassValue | None = None,
    ) -> object:
        node = function.node
        if self._depth >= _DEEPEST:
            return UNKNOWN_OBJECT
        given = [*([function.bound_to] if function.bound_to is not None else []), *positional]
        names: Names = {AROUND: function.names, "__self__": function.bound_to, "__class__": kind}
        if kind is None and isinstance(function.bound_to, Instance | ModuleValue):
            names["__class__"] = function.bound_to.kind
        names |= self._parameters(node.args, given, keywords, function.names)
        if isinstance(node, ast.Lambda):
            return self.value(node.body, names)
        self._depth, doubts = self._depth + 1, self._doubts
        value: object = None
        try:
            self._body(node.body, names)
        except ReturnReached as found:
            value = found.value
        except DeadEnd:
            value = UNKNOWN_OBJECT
        finally:
            self._depth, self._doubts = self._depth - 1, doubts
        others = names.get(RETURNED, [])
        for other in others if isinstance(others, list) else ():
            value = value if same(value, other) else either(value, other)
        return UNKNOWN_OBJECT if self._is_wrapped(node) else value

    def _is_wrapped(self, node: ast.FunctionDef) -> bool:
        """Return whether a call gives another value than its function returns: by decorators or yields."""
        if node not in self._wrapped:
            decorators = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
            names = {dotted(each).rpartition(".")[2] for each in decorators}
            has_yields = any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(node))
            self._wrapped[node] = has_yields or not names <= _HARMLESS
        return self._wrapped[node]

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


def _outermost(names: Names) -> Names:
    inner = names.get(AROUND)
    return _outermost(inner) if isinstance(inner, dict) else names


def _unknown(owner: object, positional: Sequence[object], keywords: Names) -> object:
    return UNKNOWN if isinstance(owner, str | list | dict | ModuleValue) else UNKNOWN_OBJECT
