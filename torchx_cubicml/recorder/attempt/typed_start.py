"""Start of a rewritten launch as typed, by the launch's own process, where no launcher can start it again."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

from torchx_cubicml.errors import ContractError
from torchx_cubicml.recorder.attempt.first_attempt import open_descriptors, tell_of_paths
from torchx_cubicml.recorder.attempt.new_paths import movable, move_aside, watch_new_paths
from torchx_cubicml.recorder.attempt.notes import GOES_ON_AS_TYPED
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, encode_contract
from torchx_cubicml.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx_cubicml.recorder.process.assignment import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedStart:
    """Start of this process as typed.

    Args:
        words: of its command, recorded.
        environment: its environment variables.
        folder: its working folder.
        descriptors: file descriptors that were open at its start.
        made: paths that it has made since then.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    descriptors: frozenset[int]
    made: set[str]

    @classmethod
    def of(cls, assignment: Assignment) -> Self | None:
        """Return the start of a rewritten launch, before its program runs; ``None`` if it has ranks or a launcher."""
        contract, program = assignment.contract, assignment.program
        typed, is_alone = contract.as_typed, assignment.job.world_size == 1 and assignment.starter is None
        if typed is None or program is None or not is_alone or assignment.job.attempt_folder:
            return None
        variables = {patch.variable: patch.path for patch in contract.files if patch.variable}
        environment = child_environment(variables | {name: text or "" for name, text in typed.env.items()})
        for name in (name for name, text in typed.env.items() if text is None):
            del environment[name]
        options = [word for word in sys.orig_argv[1:] if word.startswith("-m")][:1]
        head = sys.orig_argv[1 : sys.orig_argv.index(options[0])] if options else []
        module = "-m" if program.is_module else ""
        recorder = __name__.rpartition(".attempt.")[0]
        try:
            second = replace(contract.typed(), is_second_attempt=True, refused=GOES_ON_AS_TYPED)
            environment[CONTRACT_VARIABLE] = encode_contract(second)
            return cls(
                words=(sys.executable, *head, "-m", recorder, "--", *filter(None, [module]), program.name, *typed.args),
                environment=environment,
                folder=str(Path.cwd()),
                descriptors=open_descriptors(),
                made=watch_new_paths(),
            )
        except (ContractError, OSError):  # a contract that is too large, or a folder that is gone
            return None

    def moving(self) -> list[str]:
        """Return the paths that stand in the way of the next start, once this process is in its first folder.

        Raises:
            OSError: the folder is gone.
            RuntimeError: the home of a cache is not known.
        """
        os.chdir(self.folder)
        return movable(self.made)

    def run(self, moving: Sequence[str]) -> NoReturn:
        """Replace this process; leave nothing of it in the way: what it has made, its children and descriptors.

        Raises:
            OSError: it cannot be replaced; its files are where they were.
        """
        moved, left = move_aside(moving, time.strftime(".failed-%Y%m%d-%H%M%S"))
        tell_of_paths(moved, left)
        if (multiprocessing := sys.modules.get("multiprocessing")) is not None:
            for child in multiprocessing.active_children():  # such as workers of a loader, which wait for this process
                child.terminate()
        for descriptor in open_descriptors() - self.descriptors:
            with suppress(OSError):
                os.set_inheritable(descriptor, False)
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # it is closed
                stream.flush()
        try:
            os.execve(sys.executable, self.words, self.environment)  # noqa: S606 - a shell would intercept signals
        finally:
            for old, new in moved.items():
                Path(new).rename(old)
