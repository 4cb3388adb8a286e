"""A workflow whose tools are a sandboxed program and a tool of an MCP server.

The server is ``time`` of ``servers.toml``, the program ``count_words.py``:

    quire serve --workflow examples/workflow_tools/report.py:app \
        --mcp-servers examples/workflow_tools/servers.toml
    quire push examples/workflow_tools/count_words.py
    quire workflow run report --url http://127.0.0.1:8000 \
        --input "text=A quire is a gathering of pages." --input timezone=Europe/Paris
"""

from quire.programs.workflow import App, Engine, Node


def join(words: list[str], time: str) -> str:
    return f"{time}\nmost often: {', '.join(words)}"


app = App(
    "report",
    [
        Engine("tool", name="counter", config={"program": "count-words", "timeout_s": 10}),
        Engine("tool", name="time", config={"mcp": "time", "timeout_s": 10}),
        Engine("tool", name="text", config={"functions": {"join": join}}),
    ],
    "What words stand most often in a text, and what time it is.",
)
count = Node("counter", {"text": "text"}, {"words": "texts"}, name="count")
tell = Node(
    "time",
    {"timezone": "text"},
    {"time": "text"},
    config={"function": "get_current_time"},
    name="tell",
)
report = Node(
    "text",
    {"words": "texts", "time": "text"},
    {"answer": "text"},
    config={"function": "join", "pure": True},
    name="report",
)
app.update_template([count, tell, report])
