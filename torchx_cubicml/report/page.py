"""Self-contained HTML page of figures: scripts and data are in it, and it may load nothing."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

from torchx_cubicml.report.style import FONT, page_colours, theme

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Vega compiles its own expressions, so it needs `unsafe-eval`; nothing may be loaded from anywhere, or sent.
_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"
_MOST_SVG = 2_000_000  # characters of figures; more are drawn on a canvas, which is quicker
_DRAW = """
const dark = matchMedia("(prefers-color-scheme: dark)");
const data = JSON.parse(document.getElementById("data").textContent);
function draw() {
  const options = data.options, config = dark.matches ? options.dark : options.light;
  data.figures.forEach((figure, number) => vegaEmbed("#figure-" + number, figure, {
    mode: "vega-lite", config: config, renderer: options.renderer, tooltip: {theme: dark.matches ? "dark" : "light"},
    actions: {export: true, source: false, compiled: false, editor: false},
  }).catch(console.error));
}
draw();
dark.addEventListener("change", draw);
"""


def page(sections: Sequence[tuple[str, str, Sequence[Mapping[str, Any]]]], *, title: str, script: str) -> str:
    """Return the page.

    Args:
        sections: heading and note as plain text, and figures as Vega-Lite specifications.
        title: plain text.
        script: JavaScript that defines ``vegaEmbed``; trusted, and without ``</script``.
    """
    figures = [figure for _, _, each in sections for figure in each]
    numbers = iter(range(len(figures)))
    body = []
    for heading, note, each in sections:
        body.append(f"<section>\n<h2>{escape(heading)}</h2>")
        body += [f"<p>{escape(note)}</p>"] if note else []
        body += [f'<div class="figure" id="figure-{next(numbers)}"></div>' for _ in each]
        body.append("</section>")
    text = _json(figures)
    options = {"light": theme(), "dark": theme(dark=True), "renderer": "svg" if len(text) < _MOST_SVG else "canvas"}
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{escape(title)}</title>",
            f"<style>{_style()}</style>",
            f"<script>{script}</script>",
            "</head>",
            "<body>",
            f"<h1>{escape(title)}</h1>",
            *body,
            f'<script type="application/json" id="data">{{"figures": {text}, "options": {_json(options)}}}</script>',
            f"<script>{_DRAW}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _json(data: object) -> str:
    r"""Return JSON in ASCII that ends no script and opens no comment, whatever its texts are.

    >>> _json("</script>")
    '"\\u003c/script\\u003e"'
    """
    text = json.dumps(data, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _style() -> str:
    light, dark = page_colours(), page_colours(dark=True)
    variables = ["".join(f"--{name}:{colour};" for name, colour in each.items()) for each in (light, dark)]
    return (
        f":root{{color-scheme:light dark;{variables[0]}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{variables[1]}}}}}"
        f"body{{margin:2rem auto;max-width:60rem;padding:0 1rem;background:var(--page);color:var(--ink);"
        f"font:15px/1.5 {FONT};}}"
        "h1{font-size:1.5rem;margin:0 0 1.5rem;overflow-wrap:anywhere}"
        "h2{font-size:1.1rem;margin:2rem 0 .25rem;padding-top:1rem;border-top:1px solid var(--line);"
        "overflow-wrap:anywhere}"
        "p{margin:.25rem 0 .75rem;color:var(--soft)}"
        ".figure{display:block;overflow-x:auto;margin:1rem 0 2rem}"
        ".vega-embed summary{opacity:.4 !important}"
    )
