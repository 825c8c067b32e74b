"""What one rank is told: with which arguments its program runs, and what is recorded of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Self

from torchx_cubicml.launch.messages import told
from torchx_cubicml.settings import seconds_option

if TYPE_CHECKING:
    from collections.abc import Mapping

DEADLINE_S = 20.0  # for rank 0 to read the store (5 s), to decide, and for all ranks to come


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a rank is to do.

    Args:
        args: arguments of the program; ``None`` for those that were typed.
        env: environment variables that are set besides.
        contract: encoded contract of the launch; empty where there is none.
        lines: what this rank tells on stderr.
    """

    args: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    contract: str = ""
    lines: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, payload: Mapping[str, object]) -> Self:
        """Return the answer that ``to_json`` wrote.

        Raises:
            ValueError: it did not.
        """
        args, env, contract, lines = (payload.get(name) for name in ("args", "env", "contract", "lines"))
        if not (isinstance(env, dict) and isinstance(contract, str) and isinstance(lines, list)):
            raise ValueError("the answer is damaged")
        return cls(
            args=tuple(map(str, args)) if isinstance(args, list) else None,
            env={str(name): str(value) for name, value in env.items()},
            contract=contract,
            lines=tuple(map(str, lines)),
        )

    def to_json(self) -> str:
        """Return JSON on one line."""
        return json.dumps(asdict(self))

    def because(self, reason: str) -> Self:
        """Return the same, telling why the arguments stay as typed."""
        return replace(self, lines=(*self.lines, told(f"arguments stay as typed: {reason}")))


def deadline_s() -> float:
    """Return the seconds within which a decision counts."""
    return seconds_option("decision_deadline_s", DEADLINE_S)
