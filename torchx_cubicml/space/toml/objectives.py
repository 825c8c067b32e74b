"""Reader of ``objective`` in a space file: one objective, or two whose frontier is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.records.objective_units import OBJECTIVES, PER_COST, PER_CURRENCY, RATES, SOONEST_DONE, counted_rate

if TYPE_CHECKING:
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.space.toml.schema import TomlTable

LEGAL = (*OBJECTIVES, *PER_COST, SOONEST_DONE)
_KEY = "objective"


def read_objectives(root: TomlTable) -> tuple[str, str]:
    """Return the objective and the second one; empty texts where the file states none.

    Raises:
        SpaceError: a name is not legal, or the two are no pair: they must differ and count the same work.
    """
    if not isinstance(root.raw(_KEY), list):
        stated = root.text(_KEY)
        return _checked(root, stated) if stated is not None else "", ""
    names = [_checked(root, str(name)) for name in root.values(_KEY, most=len(LEGAL))]
    if len(names) != 2 or names[0] == names[1]:
        raise root.error(_KEY, "must be one objective, or a list of two that differ")
    if counted_rate(names[0]) != counted_rate(names[1]):
        raise root.error(_KEY, "must be two that count the same work: tokens or samples")
    return names[0], names[1]


def _checked(root: TomlTable, name: str) -> str:
    if name not in LEGAL:
        raise root.unknown(_KEY, _KEY, name, LEGAL)
    return name


def check_objectives(space: SearchSpace, where: str) -> None:
    """Check that the file tells what its objectives need.

    Raises:
        SpaceError: an objective needs prices that are absent, or compares configs whose steps do different work.
    """
    for objective in filter(None, (space.objective, space.second_objective)):
        if objective in PER_CURRENCY and space.prices is None:
            raise SpaceError(f"{where}: objective {objective} needs a table [prices]")
        rate = space.job.rate if space.job is not None else counted_rate(objective)
        if rate not in RATES and (changers := space.changers_of_work()):
            instead = "count the job in samples or tokens" if space.job else f"choose from {', '.join(RATES)}"
            raise SpaceError(
                f"{where}: objective {objective}{f' of {space.job}' if space.job else ''} compares configs whose "
                f"steps do the same work, but {' and '.join(changers)} may change it; {instead}"
            )
