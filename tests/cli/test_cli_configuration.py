"""Tenants, models and exposure: what needs more than one option."""

from pathlib import Path

import pytest

from quire.cli.configuration import (
    check_exposure,
    encoder_configs,
    engine_configs,
    tenants,
    with_replicas,
)
from quire.core.config import AdapterConfig, EngineConfig, TenantConfig, TenantTotals
from quire.core.errors import ConfigError
from quire.core.ids import ModelId, TenantId
from quire.core.quotas import Quotas
from quire.node import SHIPPED_MODEL

TENANTS = """
[tenants.alice]
keys = ["a-1", "a-2"]
weight = 2.0
quotas = { max_pages = 64 }

[tenants.bob]
keys = ["b-1"]
"""


@pytest.fixture
def tenants_file(tmp_path: Path) -> Path:
    path = tmp_path / "tenants.toml"
    path.write_text(TENANTS, encoding="utf-8")
    return path


def test_without_keys_there_is_one_open_tenant() -> None:
    assert tenants([], None) == (TenantConfig(TenantId("default")),)


def test_keys_of_the_command_line_belong_to_the_default_tenant() -> None:
    assert tenants(["k1", "k2"], None) == (TenantConfig(TenantId("default"), ("k1", "k2")),)


def test_the_tenants_file(tenants_file: Path) -> None:
    alice, bob, default = tenants(["k"], tenants_file)
    assert alice == TenantConfig(TenantId("alice"), ("a-1", "a-2"), 2.0, Quotas(max_pages=64))
    assert bob == TenantConfig(TenantId("bob"), ("b-1",))
    assert default.api_keys == ("k",)


def test_totals_of_the_tenants_file(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text("[tenants.a]\nkeys = ['x']\ntotals = { max_queues = 7 }", encoding="utf-8")
    (tenant,) = tenants([], path)
    assert tenant.totals == TenantTotals(max_queues=7)


@pytest.mark.parametrize(
    ("search", "wanted"),
    [("texts/a", "{folder}/texts/a"), ("/srv/texts", "/srv/texts"), ("http://h:1", "http://h:1")],
)
def test_what_a_tenant_searches_is_relative_to_the_file(
    tmp_path: Path, search: str, wanted: str
) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(f"[tenants.a]\nkeys = ['x']\nsearch = '{search}'", encoding="utf-8")
    (tenant,) = tenants([], path)
    assert tenant.search == wanted.format(folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not toml at all", "not a tenants file"),
        ("[tenants.a]\nkey = ['typo']", "not a tenants file"),
        ("[tenants.a]\nkeys = []", "no API key"),
        ("[tenants.a]\nkeys = ['x']\nquotas = {max_page = 1}", "unknown quotas max_page;"),
        ("[tenants.a]\nkeys = ['x']\nquotas = {max_pages = 'many'}", "not a tenants file"),
        ("[tenants.a]\nkeys = ['x']\ntotals = {max_page = 1}", "unknown totals max_page;"),
        ("[tenants.a]\nkeys = ['x']\ntotals = {max_pages = -1}", "max_pages of a tenant's totals"),
        ("[tenants.a]\nkeys = ['']", "empty API key"),
        ("[tenants.a]\nkeys = ['ä']", "no request can carry"),
        ("[tenants.a]\nkeys = ['x']\n[tenants.b]\nkeys = ['x']", "a and b have the same API key"),
    ],
)
def test_a_bad_tenants_file_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=reason):
        tenants([], path)


def test_a_missing_tenants_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        tenants([], tmp_path / "absent.toml")


def test_a_key_belongs_to_one_tenant(tenants_file: Path) -> None:
    with pytest.raises(ConfigError, match="alice and default") as caught:
        tenants(["a-1"], tenants_file)
    assert "a-1" not in caught.value.message, "a key must not stand in an error message"


def test_the_default_tenant_is_defined_once(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text("[tenants.default]\nkeys = ['x']", encoding="utf-8")
    with pytest.raises(ConfigError, match="use one"):
        tenants(["y"], path)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    check_exposure(host, tenants([], None), no_auth=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org", ""])
def test_other_addresses_need_a_key_or_a_decision(host: str) -> None:
    with pytest.raises(ConfigError, match="--no-auth"):
        check_exposure(host, tenants([], None), no_auth=False)
    check_exposure(host, tenants([], None), no_auth=True)
    check_exposure(host, tenants(["k"], None), no_auth=False)


def test_no_model_means_the_shipped_one() -> None:
    (engine,) = engine_configs([], None)
    assert (engine.name, engine.source) == (SHIPPED_MODEL, SHIPPED_MODEL)


def test_models_are_named_after_their_directory_unless_told(tmp_path: Path) -> None:
    directory = tmp_path / "some-model"
    directory.mkdir()
    engines = engine_configs([str(directory), "big=org/model", "org/other"], None)
    assert [(e.name, e.source) for e in engines] == [
        ("some-model", str(directory)),
        ("big", "org/model"),
        ("org/other", "org/other"),
    ]


def test_the_shared_settings_reach_every_engine() -> None:
    shared = EngineConfig(source="", name=ModelId(""), page_size=4, dtype="float32")
    for engine in engine_configs(["a=org/a", "b=org/b"], None, shared):
        assert (engine.page_size, engine.dtype) == (4, "float32")


def test_a_name_for_several_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="NAME=SOURCE"):
        engine_configs(["org/a", "org/b"], "name")
    assert engine_configs(["org/a"], "name")[0].name == "name"


def test_adapters_go_to_their_models() -> None:
    (one,) = engine_configs(["m=dir"], None, adapters=["a=x", "m:b=y"])
    assert one.adapters == (AdapterConfig("a", "x"), AdapterConfig("b", "y"))
    first, second = engine_configs(["m=dir", "n=dir"], None, adapters=["n:a=x=1"])
    assert (first.adapters, second.adapters) == ((), (AdapterConfig("a", "x=1"),))


@pytest.mark.parametrize("text", ["a", "a=x", "o:a=x", ":a=x"])
def test_an_adapter_without_its_model_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="the models are m, n"):
        engine_configs(["m=dir", "n=dir"], None, adapters=[text])


@pytest.mark.parametrize("text", ["=x", "a=", "m:=x"])
def test_an_adapter_needs_a_name_and_a_directory(text: str) -> None:
    with pytest.raises(ConfigError, match="a name and a directory"):
        engine_configs(["m=dir"], None, adapters=[text])


@pytest.mark.parametrize(
    ("instances", "counts"),
    [([], [1, 1]), (["3"], [3, 3]), (["b=2"], [1, 2]), (["4", "b=2"], [4, 2])],
)
def test_encoders_have_the_instances_that_are_named(
    instances: list[str], counts: list[int]
) -> None:
    configs = encoder_configs(["a=/x", "b=/y"], instances)
    assert [config.instances for config in configs] == counts


def test_all_encoders_have_the_type_and_the_cache_that_are_named() -> None:
    configs = encoder_configs(["a=/x", "b=late-interaction:/x"], (), "bfloat16", 77)
    assert [(one.dtype, one.token_cache_bytes) for one in configs] == [("bfloat16", 77)] * 2
    with pytest.raises(ConfigError, match="token_cache_bytes is -1: choose 0 or more"):
        encoder_configs(["a=/x"], (), "auto", -1)


def test_an_embedding_model_may_stand_twice(tmp_path: Path) -> None:
    """Once for vectors, once for pairs."""
    source = str(tmp_path / "mini")
    (tmp_path / "mini").mkdir()
    configs = encoder_configs([source, f"late-interaction:{source}", "r=late-interaction:/x"])
    assert [(one.name, one.source, one.late_interaction) for one in configs] == [
        ("mini", source, False),
        ("mini-late-interaction", source, True),
        ("r", "/x", True),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("c=2", "no encoder is called 'c'; there are: a"),
        ("a=two", "write N or NAME=N"),
        ("-1", "write N or NAME=N"),
        ("0", "choose 1 to 64"),
    ],
)
def test_instances_that_mean_nothing_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encoder_configs(["a=/x"], [text])


def test_replicas_of_all_models_or_of_one() -> None:
    configs = engine_configs(["a=x", "b=y"], None, EngineConfig(source="", name=ModelId("")), ())
    assert [one.replicas for one in with_replicas(configs, [])] == [1, 1]
    assert [one.replicas for one in with_replicas(configs, ["2", "b=3"])] == [2, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("c=2", "--replicas c=2: no model is called 'c'; there are: a, b"),
        ("a=", "--replicas a=: write N or NAME=N"),
        ("two", "--replicas two: write N or NAME=N"),
        ("0", "replicas is 0; 1 to 64"),
        ("65", "replicas is 65; 1 to 64"),
    ],
)
def test_replicas_that_make_no_sense_are_refused(text: str, message: str) -> None:
    configs = engine_configs(["a=x", "b=y"], None, EngineConfig(source="", name=ModelId("")), ())
    with pytest.raises(ConfigError, match=message):
        with_replicas(configs, [text])
