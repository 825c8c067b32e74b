"""Source of a program as a whole: its text, and the doubt whether other code runs than what can be read.

Whoever concludes from the source that a program makes no call of a kind must know all of its code. So a library that is
not known to leave models alone is a doubt, and so is code that is chosen while the program runs.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_cubicml.launch.scheduler import sees_this_file_system
from torchx_cubicml.launch.source_files import dotted, imported_names, names_in, source_files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

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
    chosen = next((name for name in names_in(file.tree) if _CHOSEN_AT_RUN_TIME.fullmatch(name)), "")
    chosen = chosen or next(_dynamic_accesses(file.tree), "")
    return f"chooses code while it runs ({chosen} in {file.path})" if chosen else ""


def _is_known(module: str) -> bool:
    top = module.partition(".")[0]
    return top in _LIBRARIES or top in sys.stdlib_module_names


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
