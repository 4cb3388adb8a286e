"""What queries of a node learn is there for those of the node that comes after it."""

from __future__ import annotations

from pathlib import Path

from fake_node import TENANT, fake_config, fake_model_files, fake_transport

from quire.node import Node
from quire.programs.workflow import App, Engine, OptPass, workflow
from quire.programs.workflow import Node as Component


def deciding() -> App:
    app = App("deciding", [Engine("tool", config={"functions": {"f": lambda q: "yes"}})])
    decide = Component(
        "tool", {"q": "text"}, {"kind": "text"}, config={"function": "f"}, name="decide"
    )
    needs = Component(
        "condition", {"kind": "text"}, {"wanted": "boolean"}, config={"equals": "yes"}, name="needs"
    )
    more = Component(
        "tool", {"q": "text"}, {"a": "text"}, config={"function": "f"}, name="more", when="wanted"
    )
    decide >> needs >> more
    app.update_template([decide, needs, more])
    return app


async def test_experience_is_kept_in_the_data_directory(tmp_path: Path) -> None:
    async def chance(data_dir: Path | None) -> float:
        config = fake_config(data_dir=data_dir)
        node = Node(config, transport_factory=fake_transport, model_files=fake_model_files)
        await node.start()
        app = deciding()
        handle = node.launch(
            workflow(app, OptPass().speculating()), ('{"q": "Why?"}',), tenant=TENANT
        )
        await handle.result()
        await node.stop()
        return app.experience.chance("needs")

    kept = tmp_path / "data"
    assert await chance(kept) < await chance(kept)
    assert (kept / "speculation.json").is_file()
    assert await chance(None) == await chance(None), "a node without one begins anew"
