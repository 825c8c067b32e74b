"""Reader of the ``[prices]`` section of a space file: the price of a device hour by the value of one parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.errors import SpaceError
from torchx_cubicml.records.device_prices import Prices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.space.toml.schema import TomlTable

_FORM = "needs one table, such as partition = { fast = 3.2, slow = 1.1 }"


def read_prices(root: TomlTable, standard: Mapping[str, str]) -> Prices | None:
    """Return the prices of ``[prices]``; ``None`` if absent.

    Args:
        root: the file.
        standard: name in the file -> standard name, where they differ.

    Raises:
        SpaceError: the section has not one table of numbers above 0.
    """
    if "prices" not in root:
        return None
    section = root.table("prices", legal=None)
    if len(section) != 1:
        raise SpaceError(f"{section.place}: {_FORM}, got {len(section)}")
    (name,) = section
    if not isinstance(section.raw(name), dict):
        raise section.error(name, f"must be a table: [prices] {_FORM}")
    table = section.table(name, legal=None)
    if not len(table):
        raise section.error(name, f"has no price: [prices] {_FORM}")
    return Prices(name=standard.get(name, name), of_value={value: _price(table, value) for value in table})


def _price(table: TomlTable, value: str) -> float:
    price = table.number(value)
    if price is None or not price > 0:
        raise table.error(value, "must be the price of a device hour, a number above 0")
    return float(price)


def check_prices(space: SearchSpace, where: str) -> None:
    """Check that the prices are those of a parameter or workload fact, and that each choice has one.

    Raises:
        SpaceError: they are not.
    """
    if space.prices is None:
        return
    parameter = next((item for item in space.parameters if item.name == space.prices.name), None)
    legal = [*(item.name for item in space.parameters), *(fact.name for fact in space.workload)]
    if space.prices.name not in legal:
        raise SpaceError(
            f"{where}: prices.{space.prices.name}: must be a parameter or a workload fact (choose from "
            f"{', '.join(legal)})"
        )
    for choice in parameter.choices if parameter is not None else ():
        if space.prices.price(choice) is None:
            raise SpaceError(f"{where}: prices.{space.prices.name}: the choice {choice!r:.60} has no price")
