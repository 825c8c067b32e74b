"""HTML made safely: a plain string is escaped wherever it stands; only ``Html`` is markup."""

from __future__ import annotations

import json
from html import escape


class Html(str):
    """Text that is HTML already; only this module and constants of this package make it."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | None) -> Html:
    """Return an element; its children and attributes are escaped unless they are ``Html``.

    Args:
        tag: name of the element.
        children: texts and elements, one after the other.
        attributes: ``class_`` is ``class``, and each ``_`` inside a name stands for ``-``; ``None`` leaves one out.

    >>> element("p", "a < b ", element("em", "c"), class_="x")
    '<p class="x">a &lt; b <em>c</em></p>'
    """
    given = ((name.removesuffix("_").replace("_", "-"), value) for name, value in attributes.items())
    words = [tag, *(f'{name}="{escape(value)}"' for name, value in given if value is not None)]
    return Html(f"<{' '.join(words)}>{joined(*children)}</{tag}>")


def joined(*children: str) -> Html:
    """Return texts and elements one after the other."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def json_script(data: object, *, name: str) -> Html:
    r"""Return an element that holds JSON for a script; no text in it can end the element or open a comment.

    >>> json_script("</script>", name="x")
    '<script type="application/json" id="x">"\\u003c/script\\u003e"</script>'
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Html(f'<script type="application/json" id="{escape(name)}">{safe}</script>')
