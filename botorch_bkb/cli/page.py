"""Self-contained HTML: pages, pictures and tables as trees of elements.

A page needs nothing but itself: pictures are data URIs, and there is no script. It is a
tree, so that whatever a table holds is escaped where the page is written.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, tostring


if TYPE_CHECKING:
    from matplotlib.figure import Figure


Piece = str | Element

STYLE = """
:root { color-scheme: light dark; --ink: #1f1f1f; --paper: #ffffff; --line: #c4c4c4;
  --soft: #f2f2f2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e0e0e0; --paper: #1f1f1f; --line: #5a5a5a; --soft: #2b2b2b; }
  /* White becomes the paper, black the ink, and hues stay. */
  img { filter: invert(0.88) hue-rotate(180deg); }
}
body { background: var(--paper); color: var(--ink); line-height: 1.5; margin: 0;
  font-family: system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2rem 0 0.5rem; }
p, ul, figcaption { max-width: 46rem; overflow-wrap: anywhere; }
.verdict { border: 2px solid var(--ink); padding: 0.2rem 1rem; max-width: 46rem; }
.pictures { display: grid; gap: 0 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.pictures > section { min-width: 0; }
figure { margin: 0; }
img { max-width: 100%; height: auto; }
figure img { width: 34rem; }
figcaption, .note { font-size: 0.9rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); margin: 0.5rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: 0.4rem 0.6rem; font-size: 0.9rem;
  position: sticky; left: 0; max-width: 80vw; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 0.6rem;
  border-top: 1px solid var(--line); }
thead th { background: var(--soft); white-space: nowrap; }
tbody th { overflow-wrap: anywhere; min-width: 7.5rem; }
td { overflow-wrap: anywhere; min-width: 10.5rem; }
.number { text-align: right; white-space: nowrap; min-width: 0; }
summary { cursor: pointer; padding: 0.3rem 0; }
@media print { .scroll { overflow: visible; } }
"""
# Whatever an id or a name holds: no script, and nothing from elsewhere.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(title: str, pieces: Sequence[Piece]) -> str:
    """Return a document with a title, in which the pieces follow each other."""
    document = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width"),
            tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
            tag("title", title),
            tag("style", STYLE),
        ),
        tag("body", tag("main", tag("h1", title), *pieces)),
        lang="en",
    )
    text = tostring(document, encoding="unicode", method="html")
    return f"<!DOCTYPE html>\n{text}\n"


def svg_of(figure: Figure) -> str:
    """Return a figure of matplotlib as SVG, without a background."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return file.getvalue()


def picture(svg: str, alt: str, caption: str) -> Element:
    """Return an SVG picture with what is said of it, to those who do not see it too."""
    return tag("figure", image(svg, alt), tag("figcaption", caption))


def image(svg: str, alt: str) -> Element:
    """Return an SVG picture. As an image of its own, nothing in it can run."""
    # Right in whatever encoding the picture's first line names.
    data = base64.b64encode(svg.encode("ascii", "xmlcharrefreplace")).decode()
    return tag("img", src=f"data:image/svg+xml;base64,{data}", alt=alt)


def table(
    caption: str,
    names: Sequence[str],
    rows: Sequence[Sequence[Piece]],
    numbers: Collection[int] = (),
) -> Element:
    """Return a table in a box of its own, which scrolls where it is too wide.

    Args:
        caption: What it shows.
        names: The names of its columns.
        rows: Its rows; the first cell of each is the row's name.
        numbers: The places of columns of numbers.
    """

    def row_of(pieces: Sequence[Piece], is_head: bool = False) -> Element:
        cells: list[Element] = []
        for place, piece in enumerate(pieces):
            is_name = is_head or place == 0
            attributes = {"scope": "col" if is_head else "row"} if is_name else {}
            if place in numbers:
                attributes["class_"] = "number"
            cells.append(tag("th" if is_name else "td", piece, **attributes))
        return tag("tr", *cells)

    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag("thead", row_of(names, is_head=True)),
            tag("tbody", *map(row_of, rows)),
        ),
        class_="scroll",
        role="region",
        aria_label=caption,
        tabindex="0",
    )


def tag(name: str, /, *pieces: Piece, **attributes: str) -> Element:
    """Return an element of texts and elements; ``class_`` is class, ``_`` a dash."""
    names = {key: key.rstrip("_").replace("_", "-") for key in attributes}
    element = Element(name, {names[key]: value for key, value in attributes.items()})
    for piece in pieces:
        if isinstance(piece, Element):
            element.append(piece)
        elif len(element):
            element[-1].tail = (element[-1].tail or "") + piece
        else:
            element.text = (element.text or "") + piece
    return element
