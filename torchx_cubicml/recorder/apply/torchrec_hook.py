"""TorchRec hook: sets the sharding of each embedding table in front of TorchRec's planner."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torchx_cubicml.recorder.apply.hooks import Hook
from torchx_cubicml.records.standard_names import EMBEDDING_SHARDINGS, LEFT_TO_PLANNER

if TYPE_CHECKING:
    from torchx_cubicml.recorder.apply.hooks import Offer, OfferedProgram
    from torchx_cubicml.records.values import Value


class TorchRecHook(Hook):
    """Hook of one kind of value of TorchRec's planner; those with the same peers are one change.

    Its value: one value for all tables, or one for each; the share of memory to reserve.
    """

    name = "torchrec"
    sets = "sharding of each embedding table"
    values: ClassVar[tuple[tuple[str | bool, ...], ...]] = ((LEFT_TO_PLANNER, *EMBEDDING_SHARDINGS),)
    offered: ClassVar[tuple[str | bool, ...]] = values[0][:5]
    per = "table"
    fact = "embedding_sharding"
    calls = ("EmbeddingShardingPlanner", "DistributedModelParallel")
    marks = ("torchrec",)

    def _prepare(self, value: Value) -> None:
        from torchx_cubicml.recorder.apply.torchrec_planner import change_of

        self._change = change_of(self._peers, self._guard)
        self._change.add(self.fact, value, only_checks=self._only_checks)

    @classmethod
    def offer(cls, program: OfferedProgram) -> Offer:
        """Return the usual shardings for a program that imports TorchRec, or has shown embedding tables."""
        counts = [count for trial in program.trials if (count := trial.fact("n_embedding_tables")) is not None]
        imports = any(name.partition(".")[0] == "torchrec" for name in program.names)
        if not cls.offered or not (counts or imports):
            return (), []
        asked = "number of tables" if counts else "write the number of tables here"
        per_table = f"per_table = {[1, *counts][-1]} # {asked}; with groups = 2, one choice for each half of them"
        return cls.offered, [per_table]

    def install(self) -> None:
        """Wrap the methods of TorchRec's planner as soon as the program imports it."""
        self._change.install()

    def release(self) -> None:
        """Restore the planner's methods; a plan that is made stays."""
        self._change.release()

    def refusal(self) -> str:
        """Return the reason why the requested change was not made, in words; empty if it was."""
        return self._change.refusal_of(self.fact)

    def refuses_values(self) -> bool:
        """Return whether the reason lies in the requested values, so that others may be set."""
        return self._change.refuses_values_of(self.fact)

    def illegal_values(self) -> tuple[str, ...]:
        """Return the values that no sharder of the program offers."""
        offered = self._change.words_offered.get(self.fact)
        return tuple(str(word) for group in self.values for word in group if offered and word not in offered)


hook = TorchRecHook
