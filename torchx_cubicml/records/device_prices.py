"""Prices of device hours, for the objectives per currency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


PRICE = "price_per_device_hour"
"""Fact of a trial, where the space file has a table of prices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of a device hour, by the value of one parameter or fact.

    Args:
        name: of the parameter or fact, such as ``partition``.
        of_value: text of its value -> price > 0, in any currency.
    """

    name: str
    of_value: Mapping[str, float]

    def price(self, value: object) -> float | None:
        """Return the price for a value; ``None`` where there is none.

        >>> Prices(name="partition", of_value={"fast": 3.2}).price("fast")
        3.2
        """
        return self.of_value.get(text_of_value(value)) if value is not None else None


def text_of_value(value: object) -> str:
    """Return the key of a value in a table of prices.

    >>> text_of_value("fast"), text_of_value(True), text_of_value(2)
    ('fast', 'true', '2')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)
