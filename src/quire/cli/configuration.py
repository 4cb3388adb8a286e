"""Turns command line values into the configuration objects of the node and the server.

Owns the tenants file and the checks that need more than one option. The defaults are in
``quire.core.config``.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from quire.client.wire import key_headers
from quire.core.config import (
    TOKEN_CACHE_BYTES,
    AdapterConfig,
    DTypeName,
    EncoderConfig,
    EngineConfig,
    TenantConfig,
    TenantTotals,
)
from quire.core.errors import ConfigError
from quire.core.ids import ModelId, TenantId
from quire.core.quotas import Quotas
from quire.node.search.addresses import SERVERS
from quire.node.shipped import SHIPPED_MODEL

DEFAULT_TENANT = TenantId("default")


class TenantEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[tenants.NAME]`` table of the tenants file."""

    keys: list[str]
    weight: float = 1.0
    quotas: dict[str, int] = {}
    totals: dict[str, int] = {}
    search: str | None = None


class TenantsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole tenants file."""

    tenants: dict[str, TenantEntry]


def engine_configs(
    models: Sequence[str],
    model_name: str | None,
    shared: EngineConfig | None = None,
    adapters: Sequence[str] = (),
) -> tuple[EngineConfig, ...]:
    """Return one engine per model. ``shared`` gives every setting but source and name; ``adapters``
    are ``NAME=DIRECTORY``, or with several models ``MODEL:NAME=DIRECTORY``.

    Raises:
        ConfigError: ``model_name`` is given for several models, or an adapter names no model.
    """
    models = list(models) or [SHIPPED_MODEL]
    if model_name is not None and not model_name.strip():
        raise ConfigError("--model-name is empty: give the name that clients send as 'model'")
    if model_name is not None and len(models) > 1:
        raise ConfigError(
            f"--model-name {model_name} with {len(models)} models: name each as NAME=SOURCE instead"
        )
    configs = []
    for text in models:
        name, separator, source = text.partition("=")
        source = source if separator else text
        served = ModelId(name) if separator else default_name(source)
        if model_name is not None:
            served = ModelId(model_name)
        base = shared or EngineConfig(source=source, name=served)
        configs.append(dataclasses.replace(base, source=source, name=served))
    return _with_adapters(configs, adapters)


def _with_adapters(
    configs: Sequence[EngineConfig], adapters: Sequence[str]
) -> tuple[EngineConfig, ...]:
    loaded: dict[str, list[AdapterConfig]] = {str(config.name): [] for config in configs}
    for text in adapters:
        name, separator, source = text.partition("=")
        model, colon, short = name.rpartition(":")
        if not colon and len(configs) == 1:
            model = str(configs[0].name)
        if not separator or model not in loaded:
            raise ConfigError(
                f"--adapter {text}: write NAME=DIRECTORY, or with several models "
                f"MODEL:NAME=DIRECTORY; the models are {', '.join(loaded)}"
            )
        loaded[model].append(AdapterConfig(short, source))
    return tuple(
        dataclasses.replace(config, adapters=tuple(loaded[config.name])) for config in configs
    )


def with_replicas(
    configs: Sequence[EngineConfig], replicas: Sequence[str]
) -> tuple[EngineConfig, ...]:
    """Return ``configs`` with their numbers of engines: each of ``replicas`` is ``NAME=N``, or
    ``N`` for all models that no other one names.

    Raises:
        ConfigError: there is no such model, or it is no number of engines.
    """
    counts = _counts("--replicas", "model", replicas, [str(config.name) for config in configs])
    return tuple(
        dataclasses.replace(config, replicas=counts.get(config.name, counts.get("", 1)))
        for config in configs
    )


_LATE = "late-interaction:"


def encoder_configs(
    encoders: Sequence[str],
    instances: Sequence[str] = (),
    dtype: DTypeName = "auto",
    token_cache_bytes: int = TOKEN_CACHE_BYTES,
) -> tuple[EncoderConfig, ...]:
    """Return one encoder per ``SOURCE`` or ``NAME=SOURCE``; ``late-interaction:`` may precede the
    source. Each of ``instances`` is ``NAME=N``, or ``N`` for all encoders that no other one names.

    Raises:
        ConfigError: there is no such encoder, or it is no number of instances.
    """
    configs = []
    for text in encoders:
        name, separator, source = text.partition("=")
        source = source if separator else text
        is_late = source.startswith(_LATE)
        source = source.removeprefix(_LATE)
        served = ModelId(name) if separator else default_name(source)
        if is_late and not separator:
            served = ModelId(f"{served}-late-interaction")  # beside the model that embeds
        configs.append(EncoderConfig(source=source, name=served, late_interaction=is_late))
    names = [str(config.name) for config in configs]
    counts = _counts("--encoder-instances", "encoder", instances, names)
    return tuple(
        dataclasses.replace(
            config,
            instances=counts.get(config.name, counts.get("", 1)),
            dtype=dtype,
            token_cache_bytes=token_cache_bytes,
        )
        for config in configs
    )


def default_name(source: str) -> ModelId:
    """Return the default name of a model: that of its directory, or the hub id as typed."""
    path = Path(source).expanduser()
    return ModelId(path.resolve().name if path.is_dir() else source)


def _counts(option: str, kind: str, texts: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    """Return the number for each of ``names``; under the empty name, that for all others."""
    if texts and not names:
        raise ConfigError(f"{option} {texts[0]}: there is no {kind}; name one, or leave it out")
    counts: dict[str, int] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if name and name not in names:
            raise ConfigError(
                f"{option} {text}: no {kind} is called {name!r}; there are: "
                f"{', '.join(names) or 'none'}"
            )
        if not number.isdecimal():
            raise ConfigError(f"{option} {text}: write N or NAME=N, for example 2")
        counts[name] = int(number)
    return counts


def data_address(host: str) -> str:
    """Return where the engines of a node receive K and V: a free port of ``host`` for each."""
    return f"tcp://[{host}]:0" if ":" in host else f"tcp://{host}:0"


def tenants(api_keys: Sequence[str], api_keys_file: Path | None) -> tuple[TenantConfig, ...]:
    """Return the tenants of a node: those of the file, and ``default`` with the keys of the command
    line.

    Raises:
        ConfigError: the file cannot be read, two tenants share a key, or no client can send one.
    """
    found = [] if api_keys_file is None else _read_tenants(api_keys_file)
    if api_keys or not found:
        found.append(TenantConfig(DEFAULT_TENANT, tuple(api_keys)))
    owners: dict[str, TenantId] = {}
    for tenant in found:
        for key in tenant.api_keys:
            if not key:
                raise ConfigError(f"tenant {tenant.id} has an empty API key: remove it")
            key_headers(key)  # one that no client can send is refused here
            if owners.setdefault(key, tenant.id) != tenant.id:
                raise ConfigError(
                    f"tenants {owners[key]} and {tenant.id} have the same API key: "
                    "a key belongs to exactly one tenant"
                )
    if len({tenant.id for tenant in found}) != len(found):
        raise ConfigError(
            f"the tenants file has a tenant {DEFAULT_TENANT!r} and --api-key adds to it: use one"
        )
    return tuple(found)


def _read_tenants(path: Path) -> list[TenantConfig]:
    try:
        parsed = msgspec.convert(tomllib.loads(path.read_text("utf-8")), TenantsFile)
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"--api-keys-file {path} is not a tenants file ({exc}): it needs "
            "[tenants.NAME] tables with keys = [...]"
        ) from exc
    if not any(entry.keys for entry in parsed.tenants.values()):
        raise ConfigError(
            f"--api-keys-file {path} has no API key: give at least one tenant keys = [...]"
        )
    return [
        TenantConfig(
            TenantId(name),
            tuple(entry.keys),
            entry.weight,
            _quotas(path, name, entry),
            _totals(path, name, entry),
            None if entry.search is None else _search(path, entry.search),
        )
        for name, entry in parsed.tenants.items()
    ]


def _search(path: Path, search: str) -> str:
    """Return the setting with its path; a directory is relative to the tenants file."""
    return search if search.startswith(SERVERS) else str(path.parent / search)


def _quotas(path: Path, name: str, entry: TenantEntry) -> Quotas:
    unknown = sorted(set(entry.quotas) - set(Quotas.__struct_fields__))
    if unknown:
        raise ConfigError(
            f"{path}: tenant {name} has unknown quotas {', '.join(unknown)}; "
            f"there are {', '.join(Quotas.__struct_fields__)}"
        )
    return Quotas(**entry.quotas)


def _totals(path: Path, name: str, entry: TenantEntry) -> TenantTotals:
    known = [total.name for total in dataclasses.fields(TenantTotals)]
    unknown = sorted(set(entry.totals) - set(known))
    if unknown:
        raise ConfigError(
            f"{path}: tenant {name} has unknown totals {', '.join(unknown)}; "
            f"there are {', '.join(known)}"
        )
    return TenantTotals(**entry.totals)


def check_exposure(host: str, tenants: Sequence[TenantConfig], *, no_auth: bool) -> None:
    """Refuse to expose the node without authentication by accident.

    Raises:
        ConfigError: ``host`` is not a loopback address, there is no API key, and ``--no-auth`` is
            not given.
    """
    if no_auth or any(tenant.api_keys for tenant in tenants) or _is_loopback(host):
        return
    raise ConfigError(
        f"others can reach {host} and no API key is set: add --api-key or --api-keys-file, or "
        "--no-auth to serve everyone"
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
