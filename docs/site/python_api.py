"""Reference of the Python API: directives for every exported name."""

from __future__ import annotations

import inspect

import torchx_cubicml


def python_api() -> str:
    """Return directives of autodoc for the exported names, functions first."""
    names = sorted(torchx_cubicml.__all__, key=lambda name: (inspect.isclass(_exported(name)), name))
    directives = [_directive(name) for name in names]
    return "\n".join(["```{eval-rst}", ".. currentmodule:: torchx_cubicml", "", *directives, "```"])


def _exported(name: str) -> object:
    return getattr(torchx_cubicml, name)


def _directive(name: str) -> str:
    found = _exported(name)
    if inspect.isfunction(found):
        return f".. autofunction:: {name}\n"
    if not inspect.isclass(found):
        cls = type(found)
        methods = [f".. automethod:: {cls.__module__}::{cls.__qualname__}.step\n"] if hasattr(cls, "step") else []
        return "\n".join([f".. autodata:: {name}\n   :no-value:\n", *methods])
    kind = "autoexception" if issubclass(found, Exception) else "autoclass"
    return f".. {kind}:: {name}\n   :members:\n"
