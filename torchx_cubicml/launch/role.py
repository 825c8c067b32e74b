"""Command of a role in a TorchX app, as typed and recorded."""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchx_cubicml.launch.launch import Launch
from torchx_cubicml.launch.launchers.table import parse_any_command
from torchx_cubicml.launch.recorder_fallback import fallback_arguments, fallback_line, probe_condition
from torchx_cubicml.launch.shell import (
    ShellWord,
    join,
    quote,
    respell,
    split_line,
    with_macro_escape,
    without_macro_escape,
    word_of_argument,
)
from torchx_cubicml.launch.torchrun_command import (
    RECORDER,
    TORCHRUN_WITH_SECOND_ATTEMPT,
    LaunchCommand,
    recorder_words,
    without_module_options,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx.specs import Role

_SHELLS = frozenset({"bash", "sh"})
_RUNS_A_LINE = re.compile(r"-[a-z]*c")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCommand:
    """A role's command, split into words.

    Args:
        shell: the shell that runs it and its option; ``None`` if the role starts it without one.
        words: its words.
        parts: the parsed words.
        replicas: copies of the role that the scheduler starts.
        left_open: description of what is decided only when the job starts; empty if nothing is.
    """

    shell: tuple[str, str] | None
    words: tuple[ShellWord, ...]
    parts: LaunchCommand
    replicas: int
    left_open: str

    @property
    def is_torchrun(self) -> bool:
        """Return whether torchrun starts the program."""
        return self.parts.is_torchrun

    @property
    def can_have_second_attempt(self) -> bool:
        """Return whether the command can be started again as typed in the same job: torchrun of a known size."""
        parts = self.parts
        return parts.picks_python and parts.nnodes == self.replicas and not parts.launcher

    @property
    def script_words(self) -> tuple[ShellWord, ...]:
        """Words of the program's arguments, with the values that it receives."""
        words = self.words[self.parts.args_start :]
        # torchrun substitutes macros of its own, such as ${local_rank}, in the arguments of its workers.
        if self.is_torchrun:
            words = tuple(replace(word, value=without_macro_escape(word.value)) for word in words)
        return words

    def as_seen(self, argument: str) -> str:
        """Return an argument of the component as the program receives it."""
        value = without_macro_escape(argument)
        return without_macro_escape(value) if self.is_torchrun else value

    def as_typed(self, value: str) -> str:
        """Return the component argument with which the program receives ``value``."""
        argument = with_macro_escape(value)
        return with_macro_escape(argument) if self.is_torchrun else argument

    def launch(self, *, env: Mapping[str, str], device: str, obstacle: str) -> Launch:
        """Return the role's command as a launch.

        Args:
            env: environment variables of the role.
            device: the host that the component's arguments name.
            obstacle: reason outside the command why it may not be changed; empty without one.
        """
        nnodes = world_size = None
        nproc = self.parts.nproc_per_node
        if nproc is not None and not self.left_open:
            nnodes = self.replicas if self.parts.nnodes is None else self.parts.nnodes
            world_size = nnodes * nproc
        elif self.parts.n_processes is not None and not self.left_open and self.replicas == 1:
            world_size = self.parts.n_processes
        return Launch(
            program=self.parts.program,
            is_module=self.parts.is_module,
            script_args=tuple(word.value for word in self.script_words),
            env=env,
            world_size=world_size,
            nnodes=nnodes,
            nproc_per_node=nproc,
            device=device,
            why_not_rewritten=obstacle or self._obstacle(),
            can_have_second_attempt=self.can_have_second_attempt,
            resizable=frozenset({"nproc_per_node"} if world_size and self.parts.size_place is not None else ()),
            launcher=self.parts.launcher,
            launcher_args=tuple(word.value for word in self.words[self.parts.launcher_options]),
        )

    def with_launcher_of(self, launch: Launch) -> RoleCommand:
        """Return the command with the launcher's own options, and its number of processes, of ``launch``."""
        made, options = self, self.parts.launcher_options
        if tuple(word.value for word in self.words[options]) != launch.launcher_args:
            texts = respell(self.words[options], launch.launcher_args, spell=quote)
            pairs = zip(launch.launcher_args, texts, strict=True)
            changed = [ShellWord(value=value, text=text) for value, text in pairs]
            words = (*self.words[: options.start], *changed, *self.words[options.stop :])
            made = replace(self, words=words, parts=parse_any_command([word.value for word in words]))
        place, count = made.parts.size_place, launch.nproc_per_node
        if place is None or count in {None, made.parts.nproc_per_node}:
            return made
        word = ShellWord(value=f"{place.before}{count}", text=quote(f"{place.before}{count}"))
        words = (*made.words[: place.index], word, *made.words[place.index + 1 :])
        return replace(made, words=words, parts=replace(made.parts, nproc_per_node=count))

    def wrapped(
        self,
        script_args: Sequence[str],
        variables: Mapping[str, str],
        *,
        fallback: str = "",
        second_attempt: RoleCommand | None = None,
    ) -> tuple[str, list[str]]:
        """Return entrypoint and arguments of the recorded role, with a fallback for a job without the recorder.

        Args:
            script_args: arguments of the program.
            variables: environment variables that differ from the user's own.
            fallback: shell text that runs if the job cannot record; empty for this command as typed.
            second_attempt: command as typed, which runs if the recorded one fails early; ``None`` for none.

        Raises:
            LaunchError: the command does not fit into one argument.
        """
        parts, words = self.parts, self.words
        if self.shell is None and parts.python is not None and not self._starts_torchrun:
            return self._wrapped_without_shell(parts.python, script_args, variables, second_attempt)
        python = join(words[parts.python]) if parts.python is not None else None
        launcher = words[parts.process_start].text if python is None else None
        probe = probe_condition(torchrun=launcher, python=python, honours_override=parts.is_torchrun)
        head, recorded = [word.text for word in words[: parts.options_start]], self._recorded(script_args)
        if second_attempt is not None:
            # As torchrun does, its Python leaves the working directory out of the module search path.
            first = '"$cubicml_python" -P' if python is None else f"${{PYTHON_EXEC:-{python}}}"
            head = [first, *second_attempt._first_words(in_shell=True)]
        wrapped = [*head, *recorded]
        line = fallback_line(
            probe=probe,
            wrapped=" ".join(wrapped),
            typed=fallback or join(words),
            variables=variables,
        )
        # Only the shebang line of torchrun names its Python, and reading that line takes a shell.
        shell, option = self.shell or ("sh", "-c")
        return shell, [option, line]

    @property
    def _starts_torchrun(self) -> bool:
        return posixpath.basename(self.words[self.parts.process_start].value) == "torchrun"

    def _wrapped_without_shell(
        self,
        python: slice,
        script_args: Sequence[str],
        variables: Mapping[str, str],
        second_attempt: RoleCommand | None,
    ) -> tuple[str, list[str]]:
        parts, texts = self.parts, [_argument(word) for word in self.words]
        start = parts.process_start
        head, recorded = texts[start : parts.options_start], self._recorded(script_args, in_shell=False)
        if second_attempt is not None:
            head = [*texts[python], *second_attempt._first_words(in_shell=False)]
        guard = fallback_arguments(
            python=texts[python],
            picks_python=parts.picks_python,
            wrapped=[*head, *recorded],
            typed=texts[start:],
            variables=variables,
        )
        return self.words[0].value, [*texts[1 : python.stop], *guard]

    def _first_words(self, *, in_shell: bool) -> list[str]:
        """Return the words that start a first attempt, with this command as the second one."""
        typed = self._recorded([word.value for word in self.script_words], in_shell=in_shell)
        return ["-m", TORCHRUN_WITH_SECOND_ATTEMPT, str(len(typed)), *typed]

    def _recorded(self, script_args: Sequence[str], *, in_shell: bool = True) -> list[str]:
        """Return the words of the recorded command behind those that start torchrun or Python.

        Args:
            script_args: arguments of the program.
            in_shell: whether a shell reads the words.
        """
        parts = self.parts
        options, arguments = without_module_options(self.words, parts.options_start, parts), self.script_words
        recorder = recorder_words(parts, RECORDER)
        if in_shell:
            words, program = [word.text for word in options], quote(parts.program)
            return [*words, *recorder, program, *respell(arguments, script_args, spell=self._quote)]
        argument_words = [replace(word, text=_argument(word)) for word in arguments]
        texts = respell(argument_words, script_args, spell=self.as_typed)
        return [*map(_argument, options), *recorder, with_macro_escape(parts.program), *texts]

    def unrecorded(self, script_args: Sequence[str]) -> str:
        """Return shell text of the command with other program arguments, and without the recorder."""
        return " ".join(self.unrecorded_words(script_args))

    def unrecorded_words(self, script_args: Sequence[str]) -> list[str]:
        """Return the words of that text, each as a shell reads it."""
        head = [word.text for word in self.words[: self.parts.args_start]]
        return [*head, *respell(self.script_words, script_args, spell=self._quote)]

    def _quote(self, value: str) -> str:
        return quote(with_macro_escape(value) if self.is_torchrun else value)

    def _obstacle(self) -> str:
        if self.left_open:
            return f"{self.left_open} is known only when the job starts"
        if not all(word.literal for word in self.script_words):
            return "the shell expands some arguments only when the job starts"
        return ""


def _argument(word: ShellWord) -> str:
    """Return the argument behind a word that no shell reads, with its macros not yet substituted."""
    return shlex.split(word.text)[0]


def read_role(role: Role) -> RoleCommand:
    """Return the command that a role runs.

    Raises:
        LaunchError: the command is not a plain torchrun or python command.
    """
    entrypoint, args = str(role.entrypoint), [str(arg) for arg in role.args]
    shell = None
    if posixpath.basename(entrypoint) in _SHELLS and len(args) == 2 and _RUNS_A_LINE.fullmatch(args[0]):
        shell = entrypoint, args[0]
        words = split_line(args[1])
    else:
        words = [ShellWord(value=entrypoint, text=quote(entrypoint)), *map(word_of_argument, args)]
    parts = parse_any_command([word.value for word in words])
    replicas, least = int(role.num_replicas), role.min_replicas
    elastic = [f"the number of nodes ({least}:{replicas})"] if least is not None and least != replicas else []
    left_open = parts.left_open or " and ".join(elastic)
    return RoleCommand(shell=shell, words=tuple(words), parts=parts, replicas=replicas, left_open=left_open)
