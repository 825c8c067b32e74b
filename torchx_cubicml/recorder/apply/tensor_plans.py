"""Base of the hooks that change the tensor-parallel plans which a script hands to ``parallelize_module``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.recorder.apply.hooks import Hook

if TYPE_CHECKING:
    import inspect

    from torchx_cubicml.recorder.apply.wrapped_function import Call


COLWISE, ROWWISE, REPLICATED = "colwise", "rowwise", "replicated"
STYLES = {"ColwiseParallel": COLWISE, "RowwiseParallel": ROWWISE}
"""Torch's styles that place the parameters of a module -> value of a space file."""


class PlanHook(Hook):
    """Hook around ``parallelize_module``, until the first step; modules that are already parallelised stay so."""

    _n_changed = 0  # plans

    def install(self) -> None:
        """Wrap ``parallelize_module``."""
        try:
            from torch.distributed.tensor.parallel import parallelize_module
        except ImportError as error:  # a torch built without it
            self._refusal = f"this torch has no parallelize_module: {error}"
        else:
            self._wrapped.wrap(parallelize_module, self.replaced)

    def replaced(self, make: Call, call: inspect.BoundArguments) -> Call | None:
        """Return the call that replaces the program's own; ``None`` to leave it. See ``WrappedFunctions.wrap``."""
        raise NotImplementedError

    def _agree_once(self, word: str) -> bool:
        """Return whether a plan is changed on all ranks; they vote at their first plan."""
        return not self._refusal if self._n_votes else self._agree(word, "the ranks do not make the same plan")

    def _done(self) -> str:
        """Return in words, to go on with after a refusal, how many plans were changed; empty without one."""
        return f"; {self._n_changed} plans were changed before that was known" if self._n_changed else ""
