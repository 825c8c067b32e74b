"""Source of a program as a whole: its text, and the doubt whether other code runs than what can be read.

Whoever concludes from the source that a program makes no call of a kind must know all of its code. So a library that is
not known to leave models alone is a doubt, and so is code that is chosen while the program runs.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from torchx_cubicml.launch.scheduler import sees_this_file_system
from torchx_cubicml.launch.source_files import dotted, imported_names, nodes_of, parsed_modules, source_files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from torchx_cubicml.launch.launch import Launch
    from torchx_cubicml.launch.source_files import SourceFile

_LIBRARIES = frozenset(
    {
        *("torch", "torchvision", "torchaudio", "torchdata", "torchinfo", "torchsummary", "torchx_cubicml", "numpy"),
        *("scipy", "pandas", "polars", "sklearn", "pyarrow", "h5py", "zarr", "PIL", "cv2", "skimage", "albumentations"),
        *("matplotlib", "seaborn", "plotly", "tqdm", "rich", "yaml", "toml", "tomli", "omegaconf", "fire", "click"),
        *("tensorboard", "tensorboardX", "wandb", "tiktoken", "sentencepiece", "tokenizers", "regex", "requests"),
        *("psutil", "pynvml", "loguru", "colorama", "termcolor", "tabulate", "einops", "safetensors", "filelock"),
        *("packaging", "typing_extensions", "absl", "simple_parsing", "boto3", "fsspec", "s3fs", "gcsfs", "soundfile"),
    }
)
"""Libraries that neither shard, nor parallelise, nor make meshes for a program that imports them, besides torch."""

_CHOSEN_AT_RUN_TIME = re.compile(
    r"(?:importlib|runpy|pkgutil|imp|zipimport|zipapp|subprocess|pty|code|codeop|ctypes|site|builtins|__builtins__"
    r"|pydoc|marshal|logging\.config|unittest\.mock|exec|eval|__import__|sys\.(?:path|modules|meta_path|path_hooks)"
    r"|os\.(?:system|popen|exec\w*|spawn\w*|posix_spawn\w*)|operator\.(?:attrgetter|methodcaller)"
    r"|asyncio\.(?:subprocess|create_subprocess_\w+)|torch\.distributed\.(?:run|launch|launcher|elastic\.agent)"
    r"|torch\.(?:hub|package|utils\.cpp_extension|ops\.load_library|classes\.load_library))(?:\..*)?"
)
"""Names of what may import or run other code than the program's text shows."""
_ATTRIBUTES = frozenset({"__dict__", "__getattribute__", "__globals__", "__loader__"})
_BY_NAME = frozenset({"getattr", "vars", "inspect.getmembers"})
_STARTERS = frozenset({"accelerate", "deepspeed"})
"""Packages that start a program and may change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSource:
    """Source files of a program, read without running anything.

    Args:
        files: their paths, the script first.
        text: their texts, in lower case.
        doubt: why other code may run besides them, as the predicate of a sentence on the program; empty if none does.
    """

    files: tuple[str, ...]
    text: str
    doubt: str = ""

    @classmethod
    def of(cls, launch: Launch) -> ProgramSource:
        """Read the source of a launch.

        >>> from torchx_cubicml.launch import Launch
        >>> ProgramSource.of(Launch(program="not/here.py", scheduler="local_cwd")).doubt
        'has a file that cannot be read (not/here.py)'
        """
        found = list(source_files(launch))
        doubts = [_doubt_of_launch(launch), *map(_doubt_of_file, found)]
        return cls(
            files=tuple(str(file.path) for file in found),
            text="\n".join(file.text for file in found).lower(),
            doubt=next(filter(None, doubts), ""),
        )

    def has(self, marks: Collection[str]) -> bool:
        """Return whether one of ``marks``, in lower case, occurs anywhere in the texts, comments included."""
        return any(mark in self.text for mark in marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCall:
    """Call in the source of a program.

    Args:
        node: the call.
        name: last part of the function's name.
        imported: names that imports bind in its file, with what they stand for.
        values: name of a variable -> the list, tuple or dict that is its only value in this file.
    """

    node: ast.Call
    name: str
    imported: Mapping[str, str]
    values: Mapping[str, ast.expr]

    def entries(self, keyword: str, position: int | None = None) -> list[object]:
        """Return the entries of a list or tuple that is an argument, ``None`` for each that is no literal."""
        given = self._argument(keyword, position)
        entries = given.elts if isinstance(given, ast.Tuple | ast.List) else []
        return [each.value if isinstance(each, ast.Constant) else None for each in entries]

    def pairs(self, keyword: str, position: int | None = None) -> dict[str, str]:
        """Return the texts that are keys of a dict that is an argument, each with the function that its value calls."""
        given = self._argument(keyword, position)
        return {
            key.value: _called(value, self.imported)
            for key, value in (zip(given.keys, given.values, strict=True) if isinstance(given, ast.Dict) else ())
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(value, ast.Call)
        }

    def _argument(self, keyword: str, position: int | None) -> ast.expr | None:
        """Return an argument by its keyword or its position, with the value in place of a variable's name."""
        given = {each.arg: each.value for each in self.node.keywords}.get(keyword)
        if given is None and position is not None and position < len(self.node.args):
            given = self.node.args[position]
        return self.values.get(given.id, given) if isinstance(given, ast.Name) else given


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCalls:
    """Calls and names in the source of a program.

    Args:
        calls: in the order of the files.
        names: full names that it imports or mentions.
    """

    calls: tuple[SourceCall, ...]
    names: frozenset[str]

    @classmethod
    def of(cls, launch: Launch) -> Self:
        """Read the source of a program.

        >>> from torchx_cubicml.launch import Launch
        >>> ProgramCalls.of(Launch(program="not/here.py")).calls
        ()
        """
        calls: list[SourceCall] = []
        names: set[str] = set()
        for _, tree in parsed_modules(launch):
            imported, values = imported_names(tree), _only_values(tree)
            names.update(_names(tree))
            for node in nodes_of(tree):
                if isinstance(node, ast.Call):
                    name = _called(node, imported)
                    calls.append(SourceCall(node=node, name=name, imported=imported, values=values))
        return cls(calls=tuple(calls), names=frozenset(names))

    def names_one_of(self, *functions: str) -> bool:
        """Return whether a name in the source is that of a function."""
        return any(name.endswith(functions) for name in self.names)

    def mentions(self, *marks: str) -> bool:
        """Return whether a text is a part of a name in the source."""
        return any(mark in name for name in self.names for mark in marks)


def _doubt_of_launch(launch: Launch) -> str:
    if not sees_this_file_system(launch.scheduler):
        return "may be another file in the job than here"
    if launch.is_module and launch.program.partition(".")[0] in _STARTERS:
        return f"is started by {launch.program}"
    return ""


def _doubt_of_file(file: SourceFile) -> str:
    if file.tree is None:
        return f"has a file that cannot be read ({file.path})"
    unknown = next((name for name in file.elsewhere if not _is_known(name)), "")
    if unknown:
        return f"imports {unknown.lstrip('.')}, which may"
    chosen = next((name for name in _names(file.tree) if _CHOSEN_AT_RUN_TIME.fullmatch(name)), "")
    chosen = chosen or next(_dynamic_accesses(file.tree), "")
    return f"chooses code while it runs ({chosen} in {file.path})" if chosen else ""


def _is_known(module: str) -> bool:
    top = module.partition(".")[0]
    return top in _LIBRARIES or top in sys.stdlib_module_names


def _names(tree: ast.Module) -> Iterator[str]:
    """Yield the full names that a module imports or mentions."""
    imported = imported_names(tree)
    yield from imported.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module)
        elif isinstance(node, ast.Name | ast.Attribute):
            first, dot, rest = dotted(node).partition(".")
            yield f"{imported.get(first, first)}{dot}{rest}"


def _dynamic_accesses(tree: ast.Module) -> Iterator[str]:
    """Yield the accesses to a part of a module by a name that is known only while the program runs."""
    modules = set(imported_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _ATTRIBUTES:
            yield node.attr
        if isinstance(node, ast.Call) and dotted(node.func) in _BY_NAME and node.args:
            is_constant = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
            if dotted(node.args[0]).partition(".")[0] in modules and not is_constant:
                yield dotted(node.func)


def _called(node: ast.Call, imported: Mapping[str, str]) -> str:
    """Return the last part of the name of the function that a call names."""
    name = dotted(node.func) or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
    return imported.get(name, name).rpartition(".")[2]


def _only_values(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the variables that are assigned once, and to a list, a tuple or a dict."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes_of(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    once = {name: values[0] for name, values in found.items() if len(values) == 1}
    return {name: value for name, value in once.items() if isinstance(value, ast.List | ast.Tuple | ast.Dict)}
