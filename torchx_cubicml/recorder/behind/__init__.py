"""Start of the recorder in a Python that stands behind other words, as in ``timeout 60 python train.py``.

The command starts as typed, word by word. This folder comes first on ``PYTHONPATH``, so each Python in it loads our
``sitecustomize``. The one that was started with the words of the launch replaces itself with the recorded command.
Where these variables or this package do not reach, the command runs as typed.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from torchx_cubicml.errors import ContractError
from torchx_cubicml.records.contract import CONTRACT_VARIABLE, CONTRACT_VERSION, decode_contract, encode_contract
from torchx_cubicml.records.trial import new_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VARIABLE = "TORCHX_CUBICML_BEHIND"
"""Variable with what ``start_variables`` is given, as JSON."""


def start_variables(
    typed: Sequence[str],
    recorded: Sequence[str | None],
    *,
    script: str,
    variables: Mapping[str, str],
    search_path: str | None,
) -> dict[str, str]:
    """Return the environment variables by which a command that starts as typed is recorded.

    Args:
        typed: words of the launch behind the one that starts Python, or behind the script's.
        recorded: words in their place; ``None`` stands for the path of the script.
        script: name of the script that starts Python, such as ``torchrun``; empty where Python is named.
        variables: environment variables of the recorded command.
        search_path: ``PYTHONPATH`` as typed; ``None`` where it is unset.
    """
    found = {"typed": typed, "recorded": recorded, "script": script, "variables": variables}
    folder = str(Path(__file__).parent)
    path = folder if search_path is None else f"{folder}{os.pathsep}{search_path}"
    return {"PYTHONPATH": path, VARIABLE: json.dumps({**found, "version": CONTRACT_VERSION})}


def become(words: Sequence[str], environment: Mapping[str, str], *, version: int) -> NoReturn:
    """Replace this process with the recorded command; each time is a trial of its own, unless the contract names it.

    Args:
        words: of the command, the first of which started this Python.
        environment: its environment variables.
        version: of the contract that the launcher wrote.

    Raises:
        ContractError: this package reads another version.
        OSError: the command does not start.
    """
    if version != CONTRACT_VERSION:
        raise ContractError(f"its recorder reads contract version {CONTRACT_VERSION}, this launch wrote {version}")
    contract = decode_contract(environment[CONTRACT_VARIABLE])
    named = replace(contract, trial_id=contract.trial_id or new_id("trial"))
    os.execve(sys.executable, list(words), {**environment, CONTRACT_VARIABLE: encode_contract(named)})  # noqa: S606 - a shell would intercept signals
