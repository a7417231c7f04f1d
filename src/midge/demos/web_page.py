"""A web page in one file: nothing outside of it is needed, and it follows light and dark."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midge.drawing.canvas import require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DARK = {
    "#ffffff": "#1b1f24",
    "#000000": "#e8e8e8",
    "#222222": "#e8e8e8",
    "#5a5a5a": "#b4b4b4",
    "#8a8a8a": "#9a9a9a",
    "#a8a8a8": "#7c7c7c",
    "#c4c4c4": "#5c6066",
    "#cccccc": "#5c6066",
    "#dddddd": "#3a4048",
    "#fff4d6": "#443c22",
    "#0b6e99": "#4fb3dd",
    "#0b5cad": "#5aa7f0",
    "#c2571a": "#ef8f55",
}
"""What the colours of a picture are on a dark page."""

_PIXELS_PER_POINT = 4 / 3
_LEAST_SCALE = 0.65
_STYLE = """\
:root { color-scheme: light dark; --paper: #ffffff; --ink: #222222; --quiet: #5a5a5a;
  --edge: #dddddd; --shade: #f4f5f7; --link: #0b5cad; --wrong: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --paper: #1b1f24; --ink: #e8e8e8; --quiet: #b4b4b4;
  --edge: #3a4048; --shade: #262b31; --link: #5aa7f0; --wrong: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 58rem; padding: 1.5rem 1rem 4rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.25; } h2 { font-size: 1.25rem; margin-top: 2.6rem; }
a { color: var(--link); } nav a { margin-right: 0.9rem; white-space: nowrap; }
.scroll { overflow-x: auto; } figure { margin: 1.2rem 0; }
figure img { display: block; width: 100%; height: auto; }
figcaption, .quiet { color: var(--quiet); font-size: 0.92rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.95rem; }
th, td { padding: 0.3rem 0.8rem 0.3rem 0; border-bottom: 1px solid var(--edge); text-align: left;
  vertical-align: top; } .numbers td:not(:first-child), .numbers th:not(:first-child)
  { text-align: right; white-space: nowrap; }
pre { background: var(--shade); padding: 0.8rem; border-radius: 0.4rem; font-size: 0.85rem;
  white-space: pre-wrap; overflow-wrap: anywhere; } code { font-size: 0.92em; }
.wrong { color: var(--wrong); } audio { width: 100%; max-width: 26rem; }"""


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    id: str
    """Its anchor."""
    title: str
    """Its heading, plain text."""
    body: str
    """HTML."""


def page(title: str, summary: str, sections: Sequence[Section]) -> str:
    """A whole page.

    Args:
        title: plain text.
        summary: HTML that comes first.
        sections: the rest; a list of links leads to them.
    """
    links = "\n".join(
        f'<a href="#{section.id}">{html.escape(section.title)}</a>' for section in sections
    )
    bodies = "\n".join(
        f'<section id="{section.id}">\n<h2>{html.escape(section.title)}</h2>\n{section.body}\n'
        "</section>"
        for section in sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>
{_STYLE}
</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
{summary}
<nav>
{links}
</nav>
{bodies}
</body>
</html>
"""


def paragraphs(*texts: str) -> str:
    """Paragraphs of HTML."""
    return "\n".join(f"<p>{text}</p>" for text in texts)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, is_numeric: bool) -> str:
    """A table; one that is wider than the page scrolls.

    Args:
        headings: plain text of each column.
        rows: HTML of each cell.
        is_numeric: whether all columns but the first hold numbers.
    """
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    kind = ' class="numbers"' if is_numeric else ""
    return (
        f'<div class="scroll"><table{kind}>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def commands(lines: Iterable[str]) -> str:
    """Commands to copy."""
    return f"<pre><code>{html.escape(chr(10).join(lines))}</code></pre>"


def sound(data: bytes, kind: str) -> str:
    """A recording to listen to.

    Args:
        data: the file.
        kind: its media type, such as "audio/flac".
    """
    return f'<audio controls preload="metadata" src="{data_uri(data, kind)}"></audio>'


def picture(svg: str, alternative: str, caption: str) -> str:
    """A picture that follows light and dark; on a narrow page it scrolls.

    Args:
        svg: a file by matplotlib.
        alternative: what it shows, for whoever cannot see it; plain text.
        caption: HTML.
    """
    source = data_uri(with_dark_colours(svg).encode("utf-8"), "image/svg+xml")
    return (
        f'<figure><div class="scroll"><img style="min-width: {_least_width(svg)}px" '
        f'src="{source}" alt="{html.escape(alternative)}"></div>\n'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def svg_of(figure: Figure) -> str:
    """A matplotlib figure as SVG; the same figure gives the same text."""
    file = io.StringIO()
    with require_matplotlib().rc_context({"svg.hashsalt": "midge"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def with_dark_colours(svg: str) -> str:
    """An SVG by matplotlib whose colours are those of `DARK` where a dark page is preferred.

    Inside an image a style of the page has no effect, so the picture brings its own.

    Example:
        >>> with_dark_colours('<svg a="b"><path style="fill: #222222"/></svg>')[-51:]
        '<path style="fill: var(--c222222, #222222)"/></svg>'
    """
    names = "|".join(DARK)
    coloured = re.sub(rf"(?<=: )({names})\b", lambda found: _variable(found[1]), svg)
    values = " ".join(f"--c{light[1:]}: {dark};" for light, dark in DARK.items())
    # Black text has no colour of its own in matplotlib's files, and inherits this one.
    style = (
        f"<style>svg {{ fill: {_variable('#000000')}; }} "
        f"@media (prefers-color-scheme: dark) {{ svg {{ {values} }} }}</style>"
    )
    return re.sub(r"(<svg\b[^>]*>)", lambda found: found[1] + style, coloured, count=1)


def data_uri(data: bytes, kind: str) -> str:
    """Data as an address that needs no file."""
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _least_width(svg: str) -> int:
    """How wide, in pixels of the page, a picture must be for its text to be read."""
    found = re.search(r'<svg\b[^>]*\bwidth="([0-9.]+)pt"', svg)
    return 0 if found is None else round(_LEAST_SCALE * _PIXELS_PER_POINT * float(found[1]))


def _variable(colour: str) -> str:
    return f"var(--c{colour[1:]}, {colour})"
