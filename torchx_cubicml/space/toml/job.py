"""Reader of the ``[job]`` section of a space file: the work of the whole job, for the objective "soonest done"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.records.job_time import JOB_UNITS, Job
from torchx_cubicml.records.objective_units import SOONEST_DONE

if TYPE_CHECKING:
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.space.toml.schema import TomlTable

_MOST = 1e18  # units of any job
_FORM = "needs one of steps, samples and tokens, such as steps = 1000"


def read_job(root: TomlTable) -> Job | None:
    """Return the job of ``[job]``; ``None`` if absent.

    Raises:
        SpaceError: the section does not hold exactly one number from 1 to 1e18.
    """
    if "job" not in root:
        return None
    section = root.table("job", legal=JOB_UNITS)
    if len(section) != 1:
        raise SpaceError(f"{section.place}: {_FORM}, got {len(section)}")
    (unit,) = section
    amount = section.number(unit)
    if amount is None or not 1 <= amount <= _MOST:
        raise section.error(unit, f"must be the number of {unit} of the whole job, from 1 to 1e18")
    return Job(unit=unit, amount=float(amount))


def check_job(space: SearchSpace, where: str) -> None:
    """Check that the objective has its job, and the job its objective.

    Raises:
        SpaceError: one of them lacks.
    """
    if space.objective == SOONEST_DONE and space.job is None:
        raise SpaceError(f"{where}: objective {SOONEST_DONE} {_FORM}, in a table [job]")
    if space.objective != SOONEST_DONE and space.job is not None:
        raise SpaceError(f'{where}: a table [job] counts for objective = "{SOONEST_DONE}" only')
