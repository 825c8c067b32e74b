"""Source files of a program, parsed: the script, and the modules beside it that it imports; nothing is run."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.launch.bindings.argv import positionals
from torchx_cubicml.launch.command_texts import program_path
from torchx_cubicml.user_files import read_python

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchx_cubicml.launch.launch import Launch

_LAUNCHERS = frozenset({"accelerate.commands.launch", "deepspeed.launcher.runner", "torch.distributed.run"})
_MOST_FILES = 50  # the script, and modules beside it
_MOST_BYTES_IN_ALL = 2 << 20  # a syntax tree takes some hundred times the memory of its text
_COMPILED = (".so", ".pyd", ".pyc")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """Source file of a program.

    Args:
        path: of the file.
        text: its text; empty if it was not read.
        tree: its syntax tree; ``None`` if it was not read, or is no legal Python.
        elsewhere: dotted names of the modules that it imports from elsewhere than beside the script.
    """

    path: Path
    text: str = ""
    tree: ast.Module | None = None
    elsewhere: tuple[str, ...] = ()


def source_files(launch: Launch) -> Iterator[SourceFile]:
    """Yield the script and the modules beside it, nearest first; files beyond the limit come without a tree.

    >>> from torchx_cubicml.launch import Launch
    >>> [(file.path.name, file.tree) for file in source_files(Launch(program="not/here.py"))]
    [('here.py', None)]
    """
    program = _script(launch)
    root = Path() if launch.is_module and launch.program not in _LAUNCHERS else program.parent
    pending, seen, n_read = [program, *_packages_around(launch, root)], set[Path](), 0
    while pending:
        path = pending.pop(0)
        if path in seen:
            continue
        seen.add(path)
        text, tree = read_python(path) if len(seen) <= _MOST_FILES and n_read <= _MOST_BYTES_IN_ALL else ("", None)
        n_read += len(text)
        imports = _Imports(path, root)
        if tree is not None:
            imports.follow(tree)
            pending += imports.local
        yield SourceFile(path=path, text=text, tree=tree, elsewhere=tuple(dict.fromkeys(imports.elsewhere)))


def parsed_modules(launch: Launch) -> Iterator[tuple[Path, ast.Module]]:
    """Yield path and syntax tree of the source files that can be read, nearest first.

    >>> from torchx_cubicml.launch import Launch
    >>> list(parsed_modules(Launch(program="not/here.py")))
    []
    """
    return ((file.path, file.tree) for file in source_files(launch) if file.tree is not None)


@lru_cache(maxsize=2 * _MOST_FILES)
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Return all nodes of a syntax tree, as ``ast.walk`` does, once for all who ask."""
    return tuple(ast.walk(tree))


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Return the names that imports bind, with what they stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imports_package(launch: Launch, package: str) -> bool:
    """Return whether the program's source imports a package.

    >>> from torchx_cubicml.launch import Launch
    >>> imports_package(Launch(program="not/here.py"), "torch")
    False
    """
    for node in (node for _, tree in parsed_modules(launch) for node in nodes_of(tree)):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        if any(name.partition(".")[0] == package for name in names):
            return True
    return False


def dotted(node: ast.expr) -> str:
    """Return the dotted name that an expression is; empty for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def _script(launch: Launch) -> Path:
    """Return the file of the program; of a launcher's module, the script that it starts."""
    if launch.is_module and launch.program in _LAUNCHERS:
        return Path(next((word for word in positionals(launch.script_args) if word.endswith(".py")), ""))
    return program_path(launch.program, is_module=launch.is_module, folder=".") or Path(launch.program)


def _packages_around(launch: Launch, root: Path) -> Iterator[Path]:
    """Yield the files that Python runs before a program started with ``-m``: those of the packages it lies in."""
    names = launch.program.split(".") if launch.is_module and launch.program not in _LAUNCHERS else []
    files = (root.joinpath(*names[:count], "__init__.py") for count in range(1, len(names) + 1))
    return (file for file in files if file.is_file())


class _Imports:
    """Imports of one module, as Python resolves them.

    Args:
        path: of the module.
        root: folder in which absolute imports are looked up first.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self._root = root
        self.local: list[Path] = []
        self.elsewhere: list[str] = []

    def follow(self, tree: ast.Module) -> None:
        """Sort the imports of the module into files beside the script and modules from elsewhere."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._find(self._root, alias.name.split("."))
            elif isinstance(node, ast.ImportFrom):
                self._follow_from(node)

    def _follow_from(self, node: ast.ImportFrom) -> None:
        parents, names = self._path.parents, node.module.split(".") if node.module else []
        base = parents[min(node.level, len(parents)) - 1] if node.level else self._root
        if self._find(base, names, parts=True, dots="." * node.level):
            package = base.joinpath(*names)
            is_module = (package / "__init__.py").is_file() or bool(names and package.with_suffix(".py").is_file())
            for name in (alias.name for alias in node.names):
                files = _files_of(package / name)
                self.local += files
                if not files and (not is_module or _is_compiled(package / name)):
                    self.elsewhere.append(f"{'.' * node.level}{'.'.join([*names, name])}")

    def _find(self, base: Path, names: Sequence[str], *, parts: bool = False, dots: str = "") -> bool:
        """Note the files of a module and of the packages around it; return whether it lies below ``base``.

        A folder without ``__init__.py`` counts where its ``parts`` are imported. ``dots`` are those of a relative
        import.
        """
        for count in range(1, len(names) + 1):
            inner = base.joinpath(*names[:count])
            files = _files_of(inner)
            self.local += files
            if not files and not (inner.is_dir() and (parts or count < len(names))):
                self.elsewhere.append(f"{dots}{'.'.join(names)}")
                return False
        return True


def _files_of(module: Path) -> list[Path]:
    return [each for each in (module.with_suffix(".py"), module / "__init__.py") if each.is_file()]


def _is_compiled(module: Path) -> bool:
    folder = module.parent
    return folder.is_dir() and any(
        each.suffix in _COMPILED and each.name.partition(".")[0] == module.name for each in folder.iterdir()
    )
