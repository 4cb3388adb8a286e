"""Keys of models and tools that are asked over HTTP.

A template names the environment variable that has a key, never the key. Owns how keys come to an
application's engines: whoever starts the process reads the variables and gives them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from quire.core.errors import ConfigError
from quire.programs.workflow.engines import Engine
from quire.programs.workflow.template import App


def use_keys(app: App, variables: Mapping[str, str]) -> App:
    """``app``, whose engines have the keys that ``variables`` (such as ``os.environ``) hold under
    the names that the engines give. Queries that need a key that is not there are refused."""
    for name, engine in app.engines.items():
        named = engine.config.get("api_key_env")
        key = "" if named is None else variables.get(named, "").strip()
        if key:
            app.engines[name] = replace(engine, api_key=key)
    return app


def key_of(engine: Engine, address: str) -> str | None:
    """The key that is sent to ``address``; None: none is.

    Raises:
        ConfigError: the engine names a variable, and nothing was found there.
    """
    named = engine.config.get("api_key_env")
    if named is not None and engine.api_key is None:
        raise ConfigError(
            f"the key of {address} should stand in the environment variable {named}, which is not "
            "set: set it where the node is started; a program of your own calls "
            "use_keys(app, os.environ)"
        )
    return engine.api_key
