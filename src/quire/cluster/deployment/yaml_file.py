"""Reads a YAML file into plain values.

Owns which parts of YAML are allowed: no tags, no aliases, no merged keys, no key twice (YAML's own
rule, which the library ignores), a bounded size.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from quire.core.errors import ConfigError

MAX_FILE_BYTES = 1 << 20

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # the library has no types
    """Refuses a key that occurs twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key_node.tag == _MERGE:
                line = key_node.start_mark.line + 1
                raise yaml.MarkedYAMLError(problem=f"'<<' is not read (line {line})")
            if isinstance(key, str) and key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} occurs twice (line {line})")
            if isinstance(key, str):
                seen.add(key)
        made: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return made

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            line = self.peek_event().start_mark.line + 1
            raise yaml.MarkedYAMLError(problem=f"aliases are not read (line {line})")
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> Any:
    """Return the content of the file as plain values.

    Raises:
        ConfigError: it cannot be read, or is no YAML of this kind.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as exc:
        raise ConfigError(
            f"there is no file {path}: name the YAML file that describes the cluster "
            "(docs/guide/cluster.md)"
        ) from exc
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} has more than {MAX_FILE_BYTES} bytes: it describes one cluster")
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader: plain values only
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        reason = " ".join(str(exc).replace('in "<byte string>", ', "at ").split())
        reason = reason or type(exc).__name__
        raise ConfigError(f"{path} is not valid YAML: {reason}") from exc
