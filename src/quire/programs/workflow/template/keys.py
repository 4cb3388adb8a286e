"""Keys of models and tools that are called over HTTP.

A template names the environment variable that has a key, never the key. Owns how keys come to an
application's engines: the code that starts the process reads the variables and passes them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from quire.core.errors import ConfigError
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.template.app import App


def use_keys(app: App, variables: Mapping[str, str]) -> App:
    """Give the engines of ``app`` the keys that they name, from ``variables`` (such as
    ``os.environ``), and return ``app``. Queries that need a missing key are refused."""
    for name, engine in app.engines.items():
        named = engine.config.get("api_key_env")
        key = "" if named is None else variables.get(named, "").strip()
        if key:
            app.engines[name] = replace(engine, api_key=key)
    return app


def key_of(engine: Engine, address: str) -> str | None:
    """Return the key that is sent to ``address``, or None if no key is sent.

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
