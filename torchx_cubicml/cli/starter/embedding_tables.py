"""Commented parameters of a starter space file for the embedding tables of a script that imports TorchRec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.cli.starter.toml_text import toml
from torchx_cubicml.launch.source_files import imports_package
from torchx_cubicml.records.standard_names import EMBEDDING_SHARDINGS, LEFT_TO_PLANNER
from torchx_cubicml.space.trainers import SHARDING_STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx_cubicml.cli.starter.script_flag import ScriptFlag
    from torchx_cubicml.launch import Launch
    from torchx_cubicml.records.trial import Trial

_USUAL = (LEFT_TO_PLANNER, *EMBEDDING_SHARDINGS[:4])


def table_lines(launch: Launch, flags: Sequence[ScriptFlag], trials: Sequence[Trial] = ()) -> list[str]:
    """Return a commented parameter for the sharding of each embedding table; none without TorchRec.

    Args:
        launch: the command.
        flags: flags of the command and of its script; one of them may state the sharding.
        trials: recorded launches of the program; the latest that knows its tables counts them.
    """
    known = [count for trial in trials if (count := trial.fact("n_embedding_tables")) is not None]
    if not known and not imports_package(launch, "torchrec"):
        return []
    flag = next((each for each in flags if _states_sharding(each)), None)
    stated = (flag.value or "").split(",") if flag is not None else []
    choices = dict.fromkeys([*filter(None, stated), *((flag and flag.choices) or _USUAL)])
    n_tables, asked = (known[-1], "") if known else (max(len(stated), 1), ", and count the tables")
    lines = [
        f"TorchRec shards the embedding tables of this script. Uncomment this{asked}:",
        "[parameters.embedding_sharding] # one choice per table",
        f"choices = [{', '.join(map(toml, choices))}]",
        f"per_table = {n_tables} # number of tables; with groups = 2, one choice for each half of them",
    ]
    if flag is None:
        lines.append('hook = "torchrec" # the script needs no flag for it')
    else:
        lines.append(f"flag = {toml(flag.name)}")
        lines += [] if flag.default is None else [f"default = {toml(flag.default)} # if the command does not set it"]
    return [f"# {line}" for line in lines]


def _states_sharding(flag: ScriptFlag) -> bool:
    """Return whether a flag states how tables are sharded: its values are not those of FSDP."""
    values = {*(flag.value or "").split(","), *flag.choices}
    return flag.meaning == "sharding_strategy" and not flag.file and values.isdisjoint(SHARDING_STRATEGIES)
