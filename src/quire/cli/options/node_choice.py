"""Options of commands that start a node of their own or use a running one, as groups
(``options.groups``), and the refusal of the two kinds together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer

from quire.cli.client import NodeClient
from quire.cli.configuration import DEFAULT_TENANT, encoder_configs, engine_configs
from quire.cli.options import programs as po
from quire.cli.options import shared as o
from quire.cli.options.groups import given_options, names_of
from quire.cli.options.mcp_servers import read_mcp_servers
from quire.core.config import NodeConfig
from quire.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNodeOptions:
    """The node that a command starts for itself."""

    model: o.ModelOption = None
    encoder: o.Encoders = None
    encoder_instances: o.EncoderInstances = None
    search: po.Search = None
    mcp_servers: po.McpServers = None

    def config(
        self,
        *,
        default_model: str | None = None,
        needs_model: bool = True,
        default_encoders: Sequence[str] = (),
        encoder_dtype: o.DTypeOption = "auto",
        **others: Any,
    ) -> NodeConfig:
        """Return the configuration of the node. ``default_model`` replaces quire-mini; without
        ``needs_model`` no model is served that is not named. ``default_encoders``: served if no
        encoder is named, in the form of --encoder. ``others``: further fields.

        Raises:
            ConfigError: an option names no model, no encoder or no number, or the file of MCP
                servers cannot be read.
        """
        models = self.model or ([] if default_model is None else [default_model])
        return NodeConfig(
            engine_configs(models, None) if self.model or needs_model else (),
            encoders=encoder_configs(
                self.encoder or default_encoders, self.encoder_instances or (), encoder_dtype
            ),
            search=self.search,
            mcp_servers=read_mcp_servers(self.mcp_servers, [DEFAULT_TENANT]),
            **others,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningNodeOptions:
    """The running node that a command uses, if any."""

    url: o.OptionalUrl = None
    api_key: o.ApiKey = None

    def client(self) -> NodeClient | None:
        """Return a client of the running node; None if the command starts its own node.

        Raises:
            ConfigError: --url is no HTTP address.
        """
        return None if self.url is None else NodeClient(self.url, self.api_key)


def refuse_beside_url(context: typer.Context, own: type, url: str) -> None:
    """Refuse the options of ``own``, a group, together with --url. Environment variables are set
    for all commands, so they are allowed.

    Raises:
        InvalidArgument: one is given on the command line.
    """
    for option in given_options(context, names_of(own)).values():
        raise InvalidArgument(
            f"{option} is for a node that 'quire {context.info_name}' starts, and {url} runs "
            "already: leave it out, or leave out --url (QUIRE_URL)"
        )
