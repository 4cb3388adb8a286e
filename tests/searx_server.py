"""A real searx server over a few facts, where Debian's package ``searx`` is installed."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

SEARX = Path("/usr/bin/searx-run")
RESOURCES = "/usr/share/python3-searx"
PAGE = 10
"""Results of one page."""

JOBS = {
    "Kabo": "baker", "Lin": "doctor", "Tom": "pilot", "Nina": "farmer", "Anna": "teacher",
    "Frank": "nurse", "Zoe": "painter", "Ben": "driver",
}  # fmt: skip
PASSAGES = [f"The job of {name} is {job}." for name, job in JOBS.items()]
PASSAGES += [f"The age of {name} is {30 + place}." for place, name in enumerate(JOBS)]
QUERY = (
    "SELECT title, url, content FROM texts WHERE texts MATCH "
    "'\"' || replace(replace(:query, '\"', ''), ' ', '\" OR \"') || '\"' ORDER BY rank"
)


class Searx:
    """The server, over a table of FTS5 alone: it asks nothing beyond this machine."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        database = folder / "texts.sqlite"
        with sqlite3.connect(database) as texts:
            texts.execute("CREATE VIRTUAL TABLE texts USING fts5 (title, url, content)")
            rows = [(f"Fact {n}", f"http://facts.example/{n}", t) for n, t in enumerate(PASSAGES)]
            texts.executemany("INSERT INTO texts VALUES (?, ?, ?)", rows)
        texts.close()
        settings = folder / "settings.yml"
        settings.write_text(yaml.safe_dump(self._settings(database)), encoding="utf-8")
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(SEARX)], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder,
                env={"PATH": os.defpath, "SEARX_SETTINGS_PATH": str(settings)},
                start_new_session=True,
            )  # fmt: skip
        self._wait()

    def _settings(self, database: Path) -> dict[str, Any]:
        engine = {
            "name": "texts", "engine": "sqlite", "shortcut": "tx", "categories": "general",
            "database": str(database), "query_str": QUERY, "limit": PAGE, "timeout": 30.0,
        }  # fmt: skip
        return {
            "general": {"debug": False, "instance_name": "test"},
            "brand": {},
            "search": {
                "safe_search": 0, "autocomplete": "", "default_lang": "en",
                "ban_time_on_fail": 0, "max_ban_time_on_fail": 0,
            },
            "server": {
                "port": self.port, "bind_address": "127.0.0.1", "secret_key": "of a test",
                "base_url": False, "image_proxy": False, "http_protocol_version": "1.1",
                "method": "GET", "default_http_headers": {},
            },
            "ui": {
                "static_path": f"{RESOURCES}/static", "templates_path": f"{RESOURCES}/templates",
                "default_theme": "oscar", "default_locale": "",
                "theme_args": {"oscar_style": "logicodev"},
            },
            "outgoing": {"request_timeout": 30.0, "useragent_suffix": ""},
            "enabled_plugins": [],
            "engines": [engine],
            "locales": {"en": "English"},
            "doi_resolvers": {"oadoi.org": "https://oadoi.org/"},
            "default_doi_resolver": "oadoi.org",
        }  # fmt: skip

    def _wait(self) -> None:
        for _ in range(1200):
            asking = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            try:
                asking.request("GET", "/healthz")
                asking.getresponse().read()
                return
            except OSError:
                if self._process.poll() is not None:
                    break
                time.sleep(0.1)
            finally:
                asking.close()
        text = self._log.read_text("utf-8", "replace")
        self.close()
        raise AssertionError(f"searx does not answer: {text[-2000:]}")

    def close(self) -> None:
        """Idempotent."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
