"""Parts of a program's file that are compared on their own: its constants and the defaults of its flags, and its code.

Comments, docstrings, formatting and calls that only print or log are left out: they change no work. A part is written
as its syntax tree, in a form that each version of Python gives alike, since launcher and job may run on two versions.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CODE = ""
"""Name of the code."""

_MAX_CHARACTERS = 200_000  # a longer file is compared as a text
_MOST_CONSTANTS = 128  # others count as code
_LOGGERS = frozenset({"logger", "logging", "log", "LOG", "LOGGER", "wandb", "mlflow", "writer", "tqdm", "warnings"})
_LOGGING_CALLS = frozenset(
    {
        *("debug", "info", "warning", "warn", "error", "critical", "exception", "log", "write", "print"),
        *("log_metric", "log_metrics", "log_param", "log_params", "add_scalar", "add_scalars", "add_text", "flush"),
        *("basicConfig", "setLevel", "filterwarnings", "simplefilter", "init", "finish", "set_description"),
    }
)
_FORMATTING = frozenset({"str", "repr", "len", "round", "int", "float", "format", "type"})
_NO_PLAIN_VALUE = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_NOT_COMPARED = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


def program_parts(text: str) -> dict[str, str]:
    """Return the parts of a Python file by name; a file that is no Python is its own code.

    A name that is bound twice, and a flag that is added twice, count as code: their order may matter.

    Returns:
        ``NAME`` or ``Class.NAME``: literal that the file assigns to a name of a module or class. ``--flag``: call that
        adds the flag, with its default. Empty name (``CODE``): all else.

    >>> program_parts('''# A comment
    ... n_layer = 12
    ... print("ready")
    ... train(n_layer)
    ... ''')
    {'n_layer': '12', '': "Module(body=[Expr(value=Call(func=Name(id='train'), args=[Name(id='n_layer')]))])"}
    """
    if len(text) > _MAX_CHARACTERS:
        return {CODE: text}
    try:
        tree = ast.parse(text)
        parts = [*_constants(tree, _global_names(tree), ""), *_flags(tree)][:_MOST_CONSTANTS]
        left_out = {id(statement) for _, statement, _ in parts} | {
            id(each) for each in ast.walk(tree) if _is_idle(each)
        }
        return {name: _literal_or_tree(value) for name, _, value in parts} | {CODE: _written(tree, left_out)}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {CODE: text}


def _constants(
    scope: ast.Module | ast.ClassDef, excluded: Iterable[str], prefix: str
) -> Iterator[tuple[str, ast.stmt, ast.expr]]:
    """Yield name, statement and value of each constant of a module or class that is bound once."""
    times = Counter(_bound_names(scope.body))
    for statement in scope.body:
        name, value = _assigned(statement)
        if value is not None and times[name] == 1 and name not in excluded:
            yield f"{prefix}{name}", statement, value
        elif isinstance(statement, ast.ClassDef) and times[statement.name] == 1:
            yield from _constants(statement, (), f"{prefix}{statement.name}.")


def _flags(tree: ast.Module) -> Iterator[tuple[str, ast.stmt, ast.expr]]:
    """Yield name, statement and call of each flag that is added once."""
    added: defaultdict[str, list[ast.Expr | None]] = defaultdict(list)
    calls = {id(each.value): each for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if (flag := _flag(node)) is not None:
            added[flag].append(calls.get(id(node)))
    for flag, (statement, *more) in added.items():
        if statement is not None and not more:
            yield flag, statement, statement.value


def _global_names(tree: ast.Module) -> set[str]:
    """Return the names that functions declare ``global``: they may assign them."""
    return {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}


def _bound_names(body: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that statements bind in their own scope, once for each time."""
    for node in body:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, _SCOPES):
            yield getattr(node, "name", "")
        if not isinstance(node, _SCOPES):
            yield from _bound_names(ast.iter_child_nodes(node))


def _assigned(statement: ast.stmt) -> tuple[str, ast.expr | None]:
    """Return the name to which a statement assigns a literal, and the literal; no value if it does not."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target, value = statement.target, statement.value
    else:
        return "", None
    return (target.id, value) if isinstance(target, ast.Name) and _literal(value) else ("", None)


def _literal(node: ast.expr) -> str:
    """Return the value of a literal as Python writes it; empty for another expression, and for a set (no order)."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return ""
    return _written(node) if any(isinstance(each, ast.Set) for each in ast.walk(node)) else repr(value)


def _literal_or_tree(node: ast.expr) -> str:
    return _literal(node) or _written(node)


def _flag(node: ast.AST) -> str | None:
    """Return the long flag that a call adds to a parser."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"):
        return None
    names = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return next((f"--{name[2:].replace('-', '_')}" for name in names if name.startswith("--")), None)


def _is_idle(node: ast.AST) -> bool:
    """Return whether a statement does no work: ``pass``, a docstring, or a call that only prints or logs."""
    if not isinstance(node, ast.Expr):
        return isinstance(node, ast.Pass)
    return isinstance(node.value, ast.Constant) or _only_logs(node.value)


def _only_logs(node: ast.expr) -> bool:
    """Return whether an expression is a call that prints or logs, and whose arguments call nothing but formatting."""
    if not isinstance(node, ast.Call) or not _is_logging(node.func):
        return False
    arguments = (inner for each in (*node.args, *node.keywords) for inner in ast.walk(each))
    return not any(isinstance(each, _NO_PLAIN_VALUE) and not _formats(each) for each in arguments)


def _is_logging(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id == "print"
    if not isinstance(function, ast.Attribute) or function.attr not in _LOGGING_CALLS:
        return False
    owner = function.value
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    return isinstance(owner, ast.Name) and owner.id in _LOGGERS


def _formats(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id in _FORMATTING
    is_text = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant)
    return is_text and isinstance(node.func, ast.Attribute) and node.func.attr in {"format", "join"}


def _written(value: object, left_out: Iterable[int] = ()) -> str:
    """Return a syntax tree as a text without positions, empty fields and spelling.

    Versions of Python differ in these, in the quotes of an f-string, and in how they split its text.

    Args:
        value: node, list of nodes, or value of a field.
        left_out: ids of the statements to leave out.
    """
    if isinstance(value, list):
        return f"[{', '.join(_written(each, left_out) for each in value if id(each) not in left_out)}]"
    if isinstance(value, ast.Constant):
        return repr(value.value)
    if isinstance(value, ast.JoinedStr):
        return f"JoinedStr({', '.join(_text_pieces(value, left_out))})"
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = ((name, each) for name, each in ast.iter_fields(value) if name not in _NOT_COMPARED and each is not None)
    written = [(name, text) for name, each in fields if (text := _written(each, left_out)) != "[]"]
    return f"{type(value).__name__}({', '.join(f'{name}={text}' for name, text in written)})"


def _text_pieces(node: ast.JoinedStr, left_out: Iterable[int]) -> Iterator[str]:
    """Yield the pieces of an f-string, with adjacent texts as one."""
    text = ""
    for piece in node.values:
        if isinstance(piece, ast.Constant):
            text += str(piece.value)
            continue
        if text:
            yield repr(text)
        text = ""
        yield _written(piece, left_out)
    if text:
        yield repr(text)
