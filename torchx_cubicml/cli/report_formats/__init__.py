"""Formats of the report, one module each: a function from a ``StoreReport`` to the bytes of a file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_cubicml.errors import LaunchError

if TYPE_CHECKING:
    from torchx_cubicml.cli.report_formats.store_report import StoreReport

FORMATS = {
    "html": "html_page",
    "md": "markdown_text",
    "png": "picture",
    "json": "json_text",
    "csv": "flat_table",
    "parquet": "flat_table",
}
"""Format -> module of this package, which has a function ``content``."""
STDOUT = "-"
_TEXTS = ("html", "md", "json", "csv")
_ENDINGS = {"htm": "html", "markdown": "md"}


def format_and_file(kind: str, out: str) -> tuple[str, str]:
    """Return the format and the file of the report: each follows from the other where one alone is given.

    Args:
        kind: of ``--format``; empty where it is not given.
        out: of ``--out``; ``-`` is standard output, and empty where it is not given.

    Raises:
        LaunchError: the two do not fit.

    >>> format_and_file("", ""), format_and_file("md", ""), format_and_file("", "x.csv"), format_and_file("json", "-")
    (('html', 'report.html'), ('md', 'report.md'), ('csv', 'x.csv'), ('json', '-'))
    """
    if out == STDOUT:
        if kind not in _TEXTS:
            raise LaunchError(f"--out - needs --format {', '.join(_TEXTS[:-1])} or {_TEXTS[-1]}, got {kind or 'none'}")
        return kind, out
    if not out:
        kind = kind or "html"
        return kind, f"report.{kind}"
    ending = Path(out).suffix.lower().removeprefix(".")
    told = _ENDINGS.get(ending, ending)
    if told not in FORMATS and not kind:
        legal = ", ".join(f".{each}" for each in FORMATS)
        raise LaunchError(f"--out must name a file that ends in {legal}, or give --format, got {out!r:.200}")
    if kind and told in FORMATS and told != kind:
        raise LaunchError(f"--format {kind} does not fit --out {out!r:.200}: give one of them, or an ending .{kind}")
    return kind or told, out


def content(kind: str, report: StoreReport) -> bytes:
    """Return the file of a report.

    Raises:
        LaunchError: a package that the format needs is not installed.
    """
    made: bytes = import_module(f"{__name__}.{FORMATS[kind]}").content(report, kind=kind)
    return made


def check_packages(kind: str) -> None:
    """Check that the packages of a format are installed, before any work is done.

    Raises:
        LaunchError: one is missing.
    """
    if kind == "png":
        from torchx_cubicml.report.renderer import renderer

        renderer()
    if kind == "parquet":
        from torchx_cubicml.cli.report_formats.flat_table import arrow

        arrow()
