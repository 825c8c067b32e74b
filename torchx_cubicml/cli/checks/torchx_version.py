"""Check of the installed TorchX: its version, and a second installation that hides it."""

from __future__ import annotations

import sys
from importlib.metadata import distributions
from typing import TYPE_CHECKING

from torchx_cubicml.cli.checks.finding import Finding, ok, warning, wrong
from torchx_cubicml.cli.checks.python_version import is_older

if TYPE_CHECKING:
    from torchx_cubicml.cli.checks.context import CheckContext

NAME, PLACE = "TorchX", 20
_DISTRIBUTIONS = ("torchx", "torchx-nightly")
_LEAST, _NOT_TESTED = (0, 7), (0, 8)  # releases; the nightly build, whose version is a date, is tested


def check(context: CheckContext) -> Finding:
    """Check the distributions that provide the module ``torchx``, and the version of the one that is loaded."""
    del context
    from torchx.version import __version__ as loaded

    installed = sorted(
        {f"{name} {each.version}" for each in distributions() if (name := _name(each.name)) in _DISTRIBUTIONS}
    )
    pip = f"{sys.executable} -m pip"
    found = f"TorchX {loaded} ({', '.join(installed) or 'not installed by pip'})"
    if len(installed) > 1:
        cure = f"{pip} uninstall {' '.join(_DISTRIBUTIONS)}, repeat until none is left; then install one of them"
        return wrong(f"{found}: they overwrite or hide each other's files", cure)
    versions = [loaded, *(text.rpartition(" ")[2] for text in installed)]
    if any(is_older(text, _LEAST) for text in versions):
        return wrong(f"{found} is older than 0.7", f"{pip} install 'torchx>=0.7'")
    if not is_older(loaded, _NOT_TESTED) and not any(text.startswith("torchx-nightly") for text in installed):
        return warning(f"{found}: tested are 0.7 and the nightly build", "none needed; report what does not work")
    return ok(found)


def _name(text: str | None) -> str:
    return (text or "").lower().replace("_", "-")
