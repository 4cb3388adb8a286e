"""The files of ``/ui``: who gets them, and what a browser is told about them."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from scripted_server import running_server

import quire
from quire.control import WaitsFor
from quire.core.config import ServerConfig, TenantConfig
from quire.core.ids import TenantId

FOLDER = Path(quire.__file__).parent / "assets" / "ui"
NAMES = sorted(one.name for one in FOLDER.iterdir())
IMPORT = re.compile(r'(?:from|import) "\./([a-z_]+\.js)"')


def test_the_page_and_its_files_need_no_key_and_its_data_does() -> None:
    tenants = [TenantConfig(TenantId("a"), api_keys=("key-of-a-0123456789",))]
    with (
        running_server(ServerConfig(drain_timeout_s=1.0), tenants) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        for path in ("/ui", "/ui/main.js"):
            assert http.get(path).status_code == 200
        for path in ("/v1/programs/changes", "/uix", "/ui/../v1/models"):
            assert http.get(path).status_code == 401, path


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_served_as_what_it_is(http: httpx.Client, name: str) -> None:
    kinds = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg"}
    answer = http.get(f"/ui/{name}")
    assert answer.content == (FOLDER / name).read_bytes()
    assert answer.headers["content-type"].startswith(kinds[name.rpartition(".")[2]])
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_policy_takes_nothing_from_elsewhere_and_no_text_as_markup(http: httpx.Client) -> None:
    policy = http.get("/ui").headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert rules["frame-ancestors"] == "'none'"
    for rule, sources in rules.items():
        if rule.endswith("-src"):
            assert sources in ("'self'", "'none'")


def test_the_files_name_nothing_that_is_elsewhere_or_not_there() -> None:
    for name in NAMES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        namespaces = text.replace("http://www.w3.org/2000/svg", "")
        assert "://" not in namespaces, f"{name} names an address"
        for imported in IMPORT.findall(text):
            assert imported in NAMES, f"{name} imports {imported}"
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'(?:src|href)="ui/([^"]+)"', page)) <= set(NAMES)
    assert "style=" not in page
    assert " on" not in re.sub(r">[^<]*<", "><", page), "a handler in the markup"


def test_the_page_has_words_for_whatever_a_program_may_wait_for() -> None:
    words = (FOLDER / "words.js").read_text(encoding="utf-8")
    tables = re.findall(r"const (?:STATES|LABELS|REASONS) = [\[{](.*?)[\]}];", words, re.DOTALL)
    assert len(tables) == 3
    for reason in set(WaitsFor) - {WaitsFor.PROGRAM}:
        for table in tables:
            assert re.search(rf'(^|[\s"]){re.escape(reason)}[":]', table), (reason, table)


def test_a_file_that_a_browser_has_is_not_sent_again(http: httpx.Client) -> None:
    first = http.get("/ui/main.js")
    assert first.headers["cache-control"] == "no-cache"
    again = http.get("/ui/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = http.get("/ui/page.js", headers={"if-none-match": first.headers["etag"]})
    assert other.status_code == 200


@pytest.mark.parametrize("path", ["/ui/missing.js", "/ui/..%2fquire-mini%2fconfig.json"])
def test_no_other_file_is_served(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 404
