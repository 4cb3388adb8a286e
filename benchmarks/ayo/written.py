"""Writes pages of facts as files: HTML, PDF and Markdown, as such files are found.

The PDF is written by hand, because it needs no more than lines of one font on pages.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable, Mapping

from training.corpus.pages import Page, Section

LINE_CHARS, PAGE_LINES = 80, 48


def as_html(page: Page) -> bytes:
    """Return a web page with a menu and a footer around the text."""
    body = [f"<h1>{html.escape(page.title)}</h1>"]
    for section in page.sections:
        body.append(f"<h2>{html.escape(section.heading)}</h2>")
        texts = [html.escape(sentence.text) for sentence in section.sentences]
        if section.is_list:
            body.append("<ul>\n" + "\n".join(f"<li>{text}</li>" for text in texts) + "\n</ul>")
        else:
            body.append(f"<p>{' '.join(texts)}</p>")
    inside = "\n".join(body)
    return (
        "<!DOCTYPE html>\n<html lang='en'>\n<head><meta charset='utf-8'>"
        f"<title>{html.escape(page.title)}</title></head>\n<body>\n"
        "<nav><a href='/'>Home</a> <a href='/all'>All pages</a></nav>\n"
        f"<main><article>\n{inside}\n</article></main>\n"
        "<footer>Printed for the archive.</footer>\n</body>\n</html>\n"
    ).encode()


def as_markdown(page: Page) -> bytes:
    """Return the text as Markdown, with headings, paragraphs and lists."""
    blocks = [f"# {page.title}"]
    for section in page.sections:
        blocks += [f"## {section.heading}", _block(section, "- ")]
    return ("\n\n".join(blocks) + "\n").encode()


def as_pdf(page: Page) -> bytes:
    """Return a PDF with lines of at most ``LINE_CHARS`` characters in Helvetica."""
    lines = [page.title, ""]
    for section in page.sections:
        lines.append(section.heading)
        for line in _block(section, "- ").split("\n"):
            lines += textwrap.wrap(line, LINE_CHARS)
        lines.append("")
    sheets = [lines[start : start + PAGE_LINES] for start in range(0, len(lines), PAGE_LINES)]
    return _pdf(sheets)


def _block(section: Section, item: str) -> str:
    texts = [sentence.text for sentence in section.sentences]
    return "\n".join(f"{item}{text}" for text in texts) if section.is_list else " ".join(texts)


def _pdf(sheets: list[list[str]]) -> bytes:
    """One page for each list of lines (PDF 1.4, ISO 32000-1 section 7.5)."""
    kids = " ".join(f"{4 + 2 * index} 0 R" for index in range(len(sheets)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(sheets)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for index, lines in enumerate(sheets):
        shown = "".join(f"({_escaped(line)}) Tj T*\n" for line in lines)
        stream = f"BT /F1 11 Tf 14 TL 56 780 Td\n{shown}ET".encode("cp1252")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {5 + 2 * index} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>".encode()
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n".encode() + stream + b"\nendstream")
    written, places = bytearray(b"%PDF-1.4\n"), list[int]()
    for number, content in enumerate(objects, 1):
        places.append(len(written))
        written += f"{number} 0 obj\n".encode() + content + b"\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    start = len(written)
    written += (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
        f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n"
    ).encode()
    return bytes(written)


def _escaped(line: str) -> str:
    return line.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")


WRITERS: Mapping[str, Callable[[Page], bytes]] = {
    "html": as_html,
    "pdf": as_pdf,
    "md": as_markdown,
}
"""By the end of a file's name."""
