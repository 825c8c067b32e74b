"""Process that starts ranks of its own, as these ranks know it: the launch that they are part of."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from torchx_cubicml.records.contract import decode_contract, encode_contract
from torchx_cubicml.records.trial import SECOND_ATTEMPT_SUFFIX

if TYPE_CHECKING:
    from torchx_cubicml.records.contract import Contract

_EVENTS_PER_S = 100  # more than a rank sends in a second
LAST_SEQUENCE = 1 << 40  # of the event with which the starter ends; no rank reaches it


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStarter:
    """Process that starts ranks of its own.

    Args:
        contract: encoded contract of its launch, which names its trial.
        pid: its process id.
        began: its start, in seconds since 1970.
    """

    contract: str
    pid: int
    began: float

    @classmethod
    def of(cls, contract: Contract, *, trial_id: str, pid: int) -> Self:
        """Return a process that starts now.

        Args:
            contract: contract of its launch.
            trial_id: name of its trial.
            pid: its process id.

        Raises:
            ContractError: the contract with the name of the trial is too large.
        """
        if contract.is_second_attempt:  # a rank adds the suffix again
            trial_id = trial_id.removesuffix(SECOND_ATTEMPT_SUFFIX)
        # Arguments of the ranks name the changed copies of config files, or no file: they are made once.
        own = replace(contract, trial_id=trial_id, files=())
        return cls(contract=encode_contract(own), pid=pid, began=time.time())

    def first_sequence(self) -> int:
        """Return the number of a rank's first event: behind those of the starter, and of ranks that it started before.

        The starter numbers its own first event 0.
        """
        return 1 + int(self.age_s() * _EVENTS_PER_S)

    def age_s(self) -> float:
        """Return the seconds since its start; 0 if the clock was set back."""
        return max(time.time() - self.began, 0.0)

    def encode(self) -> str:
        """Return the starter without its contract, as text for an environment variable."""
        return f"{self.pid} {self.began:.3f} {decode_contract(self.contract).trial_id}"

    @classmethod
    def decode(cls, text: str, contract: str) -> Self | None:
        """Return the starter of a text; ``None`` if it is damaged, or of another launch than the contract's."""
        pid, _, rest = text.partition(" ")
        began, _, trial_id = rest.partition(" ")
        try:
            found = cls(contract=contract, pid=int(pid), began=float(began))
        except ValueError:
            return None
        if not math.isfinite(found.began):
            return None
        return found if trial_id and decode_contract(contract).trial_id == trial_id else None
