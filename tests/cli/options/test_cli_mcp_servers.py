"""The file of MCP servers that a node runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_invoke import invoke

from quire.cli.options.mcp_servers import read_mcp_servers
from quire.core.errors import ConfigError
from quire.core.ids import TenantId
from quire.core.mcp_config import McpServerConfig

TENANTS = [TenantId("alice"), TenantId("bob")]


def write(folder: Path, text: str) -> Path:
    path = folder / "servers.toml"
    path.write_text(text, "utf-8")
    return path


def test_without_a_file_there_are_none() -> None:
    assert read_mcp_servers(None, TENANTS) == ()


def test_each_table_is_a_server(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        [servers.search]
        command = "bin/search"
        directory = "work"
        tenants = ["alice"]
        timeout_s = 5

        [servers.files]
        command = "mcp-files"
        args = ["--root", "/srv"]
        env = { LANG = "C.UTF-8" }
        """,
    )
    assert read_mcp_servers(path, TENANTS) == (
        McpServerConfig("files", "mcp-files", ("--root", "/srv"), {"LANG": "C.UTF-8"}),
        McpServerConfig(
            "search",
            str(tmp_path / "bin/search"),
            directory=tmp_path / "work",
            tenants=(TenantId("alice"),),
            timeout_s=5.0,
        ),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[servers.a", "is not a file of MCP servers"),
        ("[server.a]\ncommand = 'x'", "is not a file of MCP servers"),
        ("[servers.a]\nargs = []", "missing required field `command`"),
        ("[servers.a]\ncommand = 'x'\nshell = true", "unknown field `shell`"),
        ("[servers.'a b']\ncommand = 'x'", "a name has letters"),
        ("[servers.a]\ncommand = 'x'\ntenants = ['eve']", "for the tenants eve, which this node"),
        ("[servers.a]\ncommand = 'x'\nidle_s = 0", "must be positive"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_mcp_servers(write(tmp_path, text), TENANTS)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a file of MCP servers"):
        read_mcp_servers(tmp_path / "absent.toml", TENANTS)


@pytest.mark.parametrize("command", [("serve",), ("run", "text_completion")])
def test_commands_take_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = write(tmp_path, "[servers.a]\ncommand = 'x'\ntenants = ['eve']")
    ran = invoke(capsys, *command, "--mcp-servers", str(path))
    assert ran.code != 0
    assert "for the tenants eve" in " ".join(ran.err.split())
