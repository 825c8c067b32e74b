"""A ``torchrun`` command as its arguments came, and the same command recorded; no shell comes in between."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from torchx_cubicml.launch.launch import Launch
from torchx_cubicml.launch.shell import Word, keep_texts, with_macro_escape, without_macro_escape
from torchx_cubicml.launch.torchrun_command import (
    TORCHRUN_WITH_VALUE,
    TORCHRUN_WITHOUT_VALUE,
    LaunchCommand,
    take_apart,
    with_option,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PREFIX = "PET_"  # torchrun takes the value of an option that is not typed from PET_<OPTION>


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunLaunch:
    """A torchrun command.

    Args:
        args: what follows the word ``torchrun``.
        parts: what it means; positions count ``args``.
        env: the environment that it is started in.
    """

    args: tuple[str, ...]
    parts: LaunchCommand
    env: Mapping[str, str]

    @classmethod
    def parse(cls, args: Sequence[str], *, env: Mapping[str, str]) -> Self:
        """Read a command as torchrun does, options from the environment included.

        Raises:
            LaunchError: it starts no script or module that can be recorded.
        """
        preset = _preset(env)
        parts = take_apart(["torchrun", *preset, *args])
        return cls(args=tuple(args), parts=_shifted(parts, by=1 + len(preset)), env=env)

    @property
    def launch(self) -> Launch:
        """The launch that it makes."""
        parts = self.parts
        known = parts.nnodes is not None and parts.nproc_per_node is not None
        return Launch(
            program=parts.program,
            is_module=parts.is_module,
            script_args=tuple(word.value for word in self._script_words),
            env=self.env,
            world_size=parts.nnodes * parts.nproc_per_node if parts.nnodes and parts.nproc_per_node else None,
            nnodes=parts.nnodes if known else None,
            nproc_per_node=parts.nproc_per_node,
            resizable=frozenset({"nproc_per_node"} if known and parts.nnodes == 1 else ()),
            not_rewritten=f"{parts.left_open} is decided only when the job starts" if parts.left_open else "",
        )

    def wrapped(self, script_args: Sequence[str], *, recorder: str, nproc_per_node: int | None = None) -> list[str]:
        """Return the arguments of ``torchrun`` with which the module ``recorder`` runs the program.

        Args:
            script_args: arguments of the program.
            recorder: name of the module.
            nproc_per_node: processes per node; ``None`` for as many as typed.
        """
        parts = self.parts
        options = self.args[: parts.head_stop]
        if nproc_per_node not in {None, parts.nproc_per_node}:
            options = with_option(options, len(options), "nproc_per_node", str(nproc_per_node))
        # The recorder is a module, and "--" keeps torchrun's parser away from the script's own flags.
        return [
            *options,
            *([] if parts.takes_module else ["-m"]),
            recorder,
            "--",
            *(["-m"] if parts.is_module else []),
            parts.program,
            *keep_texts(self._script_words, script_args, spell=with_macro_escape),
        ]

    def python(self, *, torchrun_python: Sequence[str]) -> tuple[str, ...]:
        """Return the words that start the Python that the program runs in.

        Args:
            torchrun_python: words that start the one that torchrun runs in.
        """
        if self.parts.python is not None:
            return self.args[self.parts.python]
        override = self.env.get("PYTHON_EXEC")
        return (override,) if override else tuple(torchrun_python)

    @property
    def _script_words(self) -> list[Word]:
        # torchrun substitutes macros of its own, such as ${local_rank}, in the arguments of its workers.
        typed = self.args[self.parts.args_start :]
        return [Word(value=without_macro_escape(text), text=text) for text in typed]


def _preset(env: Mapping[str, str]) -> list[str]:
    variables = {name: _PREFIX + name.upper() for name in sorted(TORCHRUN_WITH_VALUE | TORCHRUN_WITHOUT_VALUE)}
    words = [f"--{name}={env[variables[name]]}" for name in sorted(TORCHRUN_WITH_VALUE) if variables[name] in env]
    flags = sorted(TORCHRUN_WITHOUT_VALUE - {"help"})
    return words + [f"--{name}" for name in flags if env.get(variables[name], "0").strip() not in {"0", ""}]


def _shifted(parts: LaunchCommand, *, by: int) -> LaunchCommand:
    python = parts.python and slice(parts.python.start - by, parts.python.stop - by)
    return replace(parts, head_stop=parts.head_stop - by, args_start=parts.args_start - by, python=python)
