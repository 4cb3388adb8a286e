"""Small documents of every kind, for tests."""

from __future__ import annotations

import io
from collections.abc import Sequence

from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject


def page_of(*paragraphs: str) -> bytes:
    """A web page with these paragraphs between a navigation and a footer."""
    body = "".join(f"<p>{one}</p>" for one in paragraphs)
    return (
        "<!doctype html><html><head><title>People</title><script>let x = 1</script></head><body>"
        f"<nav><a href='/'>Home</a></nav><article><h1>People</h1>{body}</article>"
        "<footer>Imprint</footer></body></html>"
    ).encode()


def pdf_of(pages: Sequence[str], password: str | None = None) -> bytes:
    """A PDF with a line of text on each page; an empty one has none."""
    writer = PdfWriter()
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    fonts = DictionaryObject({NameObject("/F1"): font})
    for text in pages:
        page = writer.add_blank_page(400, 400)
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        stream = DecodedStreamObject()
        stream.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode() if text else b"")
        page[NameObject("/Contents")] = writer._add_object(stream)
    if password is not None:
        writer.encrypt(password, algorithm="RC4-128")
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()
