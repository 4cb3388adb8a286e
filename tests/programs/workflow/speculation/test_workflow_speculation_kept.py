"""What suppositions were worth outlives the node, within bounds, and belongs to one template."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.core.errors import InvalidArgument
from quire.programs.workflow import App, Engine, Node, OptPass, workflow
from quire.programs.workflow.speculation import KeptExperience, SpeculationLedger
from quire.programs.workflow.speculation import kept as bounds
from quire.testing import LocalNode


def opened(path: Path) -> KeptExperience:
    kept = KeptExperience(path)
    kept.open()
    return kept


def test_it_is_there_when_the_node_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "speculation.json"
    kept = opened(path)
    kept.keep("app", "t1", {"judge": (3.5, 8)})
    kept.close()
    again = opened(path)
    assert again.recall("app", "t1") == {"judge": (3.5, 8)}
    assert again.recall("app", "t2") == {}, "another template"
    assert again.recall("other", "t1") == {}


def test_a_node_that_is_killed_loses_little(tmp_path: Path) -> None:
    path = tmp_path / "speculation.json"
    kept = opened(path)
    for num in range(1, bounds.TOLD_AT_ONCE + 1):
        kept.keep("app", "t", {"judge": (0.0, num)})
    assert opened(path).recall("app", "t") == {"judge": (0.0, bounds.TOLD_AT_ONCE)}
    assert [one.name for one in tmp_path.iterdir()] == ["speculation.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"version":1,"applications":{"\xff":{"template":"t","seen":{}}}}',
        b'{"version":1}',
        b'{"version":1,"applications":{"a":{"template":"t","seen":{"x":[9,1]}}}}',
    ],
)
def test_a_file_that_is_spoilt_is_told_of(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "speculation.json"
    path.write_bytes(content)
    kept = opened(path)
    assert "speculation.json is not used, speculation learns anew" in caplog.text
    assert kept.recall("a", "t") == {}
    kept.keep("a", "t", {"x": (1.0, 1)})
    kept.close()
    assert opened(path).recall("a", "t") == {"x": (1.0, 1)}


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_COMPONENTS", 3)
    kept = KeptExperience()
    for name in ("a", "b", "a", "c"):
        kept.keep(name, "t", {f"{name}1": (0.0, 1)} | ({"c2": (0.0, 1)} if name == "c" else {}))
    assert kept.recall("b", "t") == {}, "it was not told of for longest"
    assert all(kept.recall(name, "t") for name in "ac")


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ({"x": (2.0, 1)}, "experience of 'x' is 2.0 of 1"),
        ({"x": (0.0, 65)}, "give counts from 0 to 64"),
        ({"x": (float("nan"), 1)}, "is nan of 1"),
        ({"x" * 257: (0.0, 1)}, "names of at most 256 characters"),
        ({str(n): (0.0, 1) for n in range(1025)}, "has 1025 components: give at most 1024"),
    ],
)
def test_what_nobody_can_have_counted_is_refused(
    seen: dict[str, tuple[float, int]], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        KeptExperience().keep("app", "t", seen)


def deciding(word: str = "yes") -> App:
    app = App("deciding", [Engine("tool", config={"functions": {"f": lambda q: "yes"}})])
    decide = Node("tool", {"q": "text"}, {"kind": "text"}, config={"function": "f"}, name="decide")
    needs = Node(
        "condition", {"kind": "text"}, {"wanted": "boolean"}, config={"equals": word}, name="needs"
    )
    more = Node(
        "tool", {"q": "text"}, {"a": "text"}, config={"function": "f"}, name="more", when="wanted"
    )
    decide >> needs >> more
    app.update_template([decide, needs, more])
    return app


async def test_a_query_begins_with_what_those_before_a_restart_have_learnt(tmp_path: Path) -> None:
    async def asked(app: App) -> App:
        kept = opened(tmp_path / "speculation.json")
        async with LocalNode({}, speculation=SpeculationLedger(kept)) as node:
            await node.run(workflow(app, OptPass().speculating()), query={"q": "Why?"})
        kept.close()
        return app

    (first,) = (await asked(deciding())).experience.chances().values()
    (second,) = (await asked(deciding())).experience.chances().values()
    assert first == pytest.approx(2 / 3)
    assert second == pytest.approx(3 / 4)
    (other,) = (await asked(deciding("no"))).experience.chances().values()
    assert other == pytest.approx(1 / 3), "it has learnt nothing of the other template"
