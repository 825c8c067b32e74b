"""Start of a rewritten launch as typed, by the launch's own process, where no launcher can start it again."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

from torchx_cubicml.recorder.attempt.notes import GOES_ON_AS_TYPED
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, encode_contract
from torchx_cubicml.settings import child_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.recorder.process.assignment import Assignment


@dataclass(frozen=True, slots=True)
class TypedStart:
    """Start of this process as typed, where no launcher can start it again.

    Args:
        words: of its command, recorded.
        environment: its environment variables.
        folder: its working folder.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str

    @classmethod
    def of(cls, assignment: Assignment) -> Self | None:
        """Return the start of a rewritten launch, before its program runs; ``None`` if it has ranks or a launcher.

        Raises:
            ContractError: the contract is too large.
        """
        contract, program = assignment.contract, assignment.program
        typed, is_alone = contract.as_typed, assignment.job.world_size == 1 and assignment.starter is None
        if typed is None or program is None or not is_alone or assignment.job.attempt_folder:
            return None
        words = sys.orig_argv[1 : len(sys.orig_argv) - len(program.arguments)]
        variables = {patch.variable: patch.path for patch in contract.files if patch.variable}
        environment = child_environment(variables | {name: text or "" for name, text in typed.env.items()})
        for name in (name for name, text in typed.env.items() if text is None):
            del environment[name]
        second = replace(contract.typed(), is_second_attempt=True, refused=GOES_ON_AS_TYPED)
        environment[CONTRACT_VARIABLE] = encode_contract(second)
        return cls((sys.executable, *words, *typed.args), environment, str(Path.cwd()))

    def run(self) -> NoReturn:
        """Replace this process.

        Raises:
            OSError: it cannot be replaced.
        """
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.chdir(self.folder)
        os.execve(sys.executable, self.words, self.environment)  # noqa: S606 - a shell would intercept signals
