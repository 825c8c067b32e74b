"""TorchRec hook: sets the sharding of each embedding table in front of TorchRec's planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.recorder.apply.hooks import Hook
from torchx_cubicml.records.standard_names import EMBEDDING_SHARDINGS, LEFT_TO_PLANNER

if TYPE_CHECKING:
    from torchx_cubicml.recorder.apply.hooks import Guard
    from torchx_cubicml.recorder.ranks.peers import Peers
    from torchx_cubicml.records.values import Value


class TorchRecHook(Hook):
    """Hook of one kind of value of TorchRec's planner; those with the same peers are one change.

    Args:
        value: one value for all tables, or one for each; the share of memory to reserve.
        peers: the other ranks.
        guard: wraps code that runs within the program's calls.
        only_checks: whether nothing is changed: the hook finds out whether it could.
    """

    name = "torchrec"
    sets = "sharding of each embedding table"
    values: tuple[tuple[str, ...], ...] = ((LEFT_TO_PLANNER, *EMBEDDING_SHARDINGS),)
    per = "table"
    fact = "embedding_sharding"
    calls = ("EmbeddingShardingPlanner", "DistributedModelParallel")
    marks = ("torchrec",)

    def __init__(self, value: Value, *, peers: Peers, guard: Guard, only_checks: bool = False) -> None:
        from torchx_cubicml.recorder.apply.torchrec_planner import change_of

        super().__init__(value, peers=peers, guard=guard, only_checks=only_checks)
        self._change = change_of(peers, guard)
        self._change.add(self.fact, value, only_checks=only_checks)

    def install(self) -> None:
        """Wrap the methods of TorchRec's planner as soon as the program imports it."""
        self._change.install()

    def release(self) -> None:
        """Restore the planner's methods; a plan that is made stays."""
        self._change.release()

    def refusal(self) -> str:
        """Return the reason why the requested change was not made, in words; empty if it was."""
        return self._change.refusal(self.fact)

    def refuses_values(self) -> bool:
        """Return whether the reason lies in the requested values, so that others may be set."""
        return self._change.refuses_values(self.fact)

    def illegal_values(self) -> tuple[str, ...]:
        """Return the values that no sharder of the program offers."""
        offered = self._change.offered.get(self.fact)
        return tuple(word for group in self.values for word in group if offered and word not in offered)


hook = TorchRecHook
