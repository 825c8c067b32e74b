"""Remembers what each PyTorch training launch was and how fast it ran, and hands the next launch a better config.

The public names are loaded when they are first used: importing the package costs next to nothing and brings neither
torch nor scikit-learn.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as typing has it; in a job that module may be looked for among the program's own
if TYPE_CHECKING:
    from torchx_cubicml.advisor import Method, suggest
    from torchx_cubicml.errors import CubicMLError
    from torchx_cubicml.evaluation import ReportCard, evaluate
    from torchx_cubicml.recorder.measure import measure
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.store import TrialStore
    from torchx_cubicml.suggestion import Suggestion
    from torchx_cubicml.trial import Measurement, Origin, State, Trial

__all__ = [
    "CubicMLError",
    "Measurement",
    "Method",
    "Origin",
    "ReportCard",
    "SearchSpace",
    "State",
    "Suggestion",
    "Trial",
    "TrialStore",
    "evaluate",
    "measure",
    "suggest",
]

_HOMES = {
    "CubicMLError": "errors",
    "Measurement": "trial",
    "Method": "advisor",
    "Origin": "trial",
    "ReportCard": "evaluation",
    "SearchSpace": "space",
    "State": "trial",
    "Suggestion": "suggestion",
    "Trial": "trial",
    "TrialStore": "store",
    "evaluate": "evaluation",
    "measure": "recorder.measure",
    "suggest": "advisor",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
