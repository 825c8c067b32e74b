"""Settings of Sphinx for the documentation site; ``make docs`` builds it."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]  # the generators beside this file; the package of this checkout

from generated_blocks import with_blocks  # noqa: E402 - found by the path above
from link_tree import INDEX, with_toctrees  # noqa: E402 - likewise
from outside_links import with_files_outside  # noqa: E402 - likewise

project = "torchx-cubicml"
author = "the torchx-cubicml authors"
project_copyright = author
version = release = installed_version(project)

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = INDEX
exclude_patterns = ["site/*"]
nitpicky = True
# Types of other packages have no page here, and those of ours that are not exported neither.
nitpick_ignore_regex = [("py:.*", r"(?!torchx_cubicml\.\w+$).*")]
myst_heading_anchors = 4  # links to headings are checked, as GitHub makes their anchors
suppress_warnings = ["myst.header"]  # a page of one section may begin deeper
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = project
html_static_path = ["static"]
html_css_files = ["tables.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"top_of_page_buttons": []}


def _filled(_app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = with_files_outside(with_blocks(source[0]), page)
    if page == INDEX:
        source[0] = with_toctrees(source[0])


def setup(app: Sphinx) -> None:
    """Fill the generated blocks of each page as it is read."""
    app.connect("source-read", _filled)
