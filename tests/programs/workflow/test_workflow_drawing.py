"""What a drawing of graphs must show to be read: boxes apart, everything on the page."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from workflow_apps import QUERY, advanced

from quire.programs.workflow import Graph

SVG = "{http://www.w3.org/2000/svg}"
NAME_WIDTH = 0.6
"""Width of a letter as a share of the size of the type: a cautious mean."""


@pytest.fixture
def graph() -> Graph:
    return Graph.optimize(advanced(), QUERY, {"expand": {"max_tokens": 30}})


@pytest.fixture
def page(graph: Graph) -> ElementTree.Element:
    return ElementTree.fromstring(graph.explain())


def number(element: ElementTree.Element, name: str) -> int:
    return int(element.attrib[name])


def boxes(page: ElementTree.Element) -> list[tuple[int, int, int, int]]:
    """Left, top, right and bottom."""
    found = []
    for box in page.iter(f"{SVG}rect"):
        if box.get("rx"):
            x, y = number(box, "x"), number(box, "y")
            found.append((x, y, x + number(box, "width"), y + number(box, "height")))
    return found


def test_each_node_and_primitive_has_a_box_that_covers_no_other(
    graph: Graph, page: ElementTree.Element
) -> None:
    found = boxes(page)
    wanted = [graph.app.nodes, graph.p_graph.primitives, graph.e_graph.primitives]
    assert len(found) == sum(map(len, wanted))
    for place, (left, top, right, bottom) in enumerate(found):
        for other in found[place + 1 :]:
            beside = right <= other[0] or other[2] <= left
            above = bottom <= other[1] or other[3] <= top
            assert beside or above, (found[place], other)


def test_everything_is_on_the_page_with_a_margin(page: ElementTree.Element) -> None:
    width, height = number(page, "width"), number(page, "height")
    for left, top, right, bottom in boxes(page):
        assert 0 < left < right < width
        assert 0 < top < bottom < height
    for text in page.iter(f"{SVG}text"):
        end = number(text, "x") + len(text.text or "") * number(text, "font-size") * NAME_WIDTH
        assert end + 24 <= width
        assert number(text, "y") < height


def test_a_page_is_as_wide_as_its_longest_text() -> None:
    app = advanced()
    app.name = "a-long-name-" * 50
    page = ElementTree.fromstring(Graph.optimize(app, QUERY, {}).explain())
    assert number(page, "width") > len(app.name) * 14 * NAME_WIDTH
    test_everything_is_on_the_page_with_a_margin(page)


def test_titles_are_over_their_boxes_and_names_are_bold(
    graph: Graph, page: ElementTree.Element
) -> None:
    bold = [text for text in page.iter(f"{SVG}text") if text.get("font-weight") == "bold"]
    tops = {top for _, top, _, _ in boxes(page)}
    titles = [text for text in bold if ": " in (text.text or "")]
    assert [(text.text or "").split(":")[0] for text in titles] == [
        graph.app.name, "p-graph", "e-graph"
    ]  # fmt: skip
    for text in titles:
        below = [top for top in tops if top > number(text, "y")]
        assert 0 < min(below) - number(text, "y") < 24
    assert {*graph.e_graph.primitives} <= {text.text for text in bold}


def test_a_line_leads_from_the_box_that_is_waited_for_to_the_one_that_waits(
    graph: Graph, page: ElementTree.Element
) -> None:
    rights = {(right, (top + bottom) // 2) for _, top, right, bottom in boxes(page)}
    lefts = {(left, (top + bottom) // 2) for left, top, _, bottom in boxes(page)}
    lines = [re.findall(r"[\d.]+", path.attrib["d"]) for path in page.iter(f"{SVG}path")]
    assert len(lines) >= graph.p_graph.num_edges + graph.e_graph.num_edges
    for line in lines:
        points = [float(one) for one in line]
        assert (points[0], points[1]) in rights
        assert (points[-2], points[-1]) in lefts
        assert points[0] < points[-2]


def test_no_box_hides_a_line(page: ElementTree.Element) -> None:
    """Between its columns, where a line may lie at the height of a box, there are no boxes."""
    found, num_past = boxes(page), 0
    for line in page.iter(f"{SVG}path"):
        points = [int(one) for one in re.findall(r"-?\d+", line.attrib["d"])]
        start, end = points[0], points[-2]
        passed = [box for box in found if start <= box[0] and box[2] <= end]
        flat = re.search(r"(\d+) H(\d+)", line.attrib["d"])
        if flat is None:
            assert not passed, line.attrib["d"]
            continue
        num_past += 1
        height = int(flat[1])
        assert all(not box[1] <= height <= box[3] for box in passed), line.attrib["d"]
        assert passed
        assert points[6] <= min(box[0] for box in passed), "it has bent before the first column"
        assert int(flat[2]) >= max(box[2] for box in passed)
    assert num_past > 3
