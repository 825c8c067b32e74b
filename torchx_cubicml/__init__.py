"""Remembers what each PyTorch training launch was and how fast it ran, and hands the next launch a better config.

The public names are loaded when they are first used: importing the package costs next to nothing and brings neither
torch nor scikit-learn.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as typing has it; in a job that module may be looked for among the program's own
if TYPE_CHECKING:
    from torchx_cubicml.advisor import ProposalMethod, suggest
    from torchx_cubicml.errors import CubicMLError
    from torchx_cubicml.predictors.evaluation import ReportCard, evaluate
    from torchx_cubicml.recorder.steps.measure_api import measure
    from torchx_cubicml.records.suggestion import Suggestion
    from torchx_cubicml.records.trial import Measurement, Origin, State, Trial
    from torchx_cubicml.space import SearchSpace
    from torchx_cubicml.space.toml import load_space
    from torchx_cubicml.store import TrialStore

__all__ = [
    "CubicMLError",
    "Measurement",
    "Origin",
    "ProposalMethod",
    "ReportCard",
    "SearchSpace",
    "State",
    "Suggestion",
    "Trial",
    "TrialStore",
    "evaluate",
    "load_space",
    "measure",
    "suggest",
]

_HOMES = {
    "CubicMLError": "errors",
    "Measurement": "records.trial",
    "ProposalMethod": "advisor",
    "Origin": "records.trial",
    "ReportCard": "predictors.evaluation",
    "SearchSpace": "space",
    "State": "records.trial",
    "Suggestion": "records.suggestion",
    "Trial": "records.trial",
    "TrialStore": "store",
    "evaluate": "predictors.evaluation",
    "load_space": "space.toml",
    "measure": "recorder.steps.measure_api",
    "suggest": "advisor",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
