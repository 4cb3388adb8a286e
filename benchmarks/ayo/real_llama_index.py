"""Runs the same application in LlamaIndex and as a workflow of Quire, on the same engines over
HTTP.

    make .venv-clients/installed.stamp
    python benchmarks/ayo/real_llama_index.py --encoder ~/models/minilm

Two contenders ask one node, one query at a time, in turns. *LlamaIndex* is a process of its own
(``benchmarks/peers/llama_index_rag.py``) that asks for embeddings, rankings and answers; *Quire* is
one request to ``/v1/workflows``. LlamaIndex runs on the cores of all else. Each query is of a
tenant of its own and finds nothing that another one has computed. Answers must be equal. Queries,
models and their cores are those of ``real.py``; processor time is that of the node and of the
contender's process.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.ayo.real import CONFIG, CORE, add_node_options, query
from benchmarks.ayo.real_server import key_of
from benchmarks.http.servers import Server, free_port
from benchmarks.measurement import Figure, figure, ratio
from benchmarks.options import plain_parser, rounds_of
from benchmarks.process_time import cpu_s
from benchmarks.report import ROOT, emit, print_table

APPLICATIONS = ("naive-rag", "advanced-rag")
LLAMA_INDEX, QUIRE = "LlamaIndex", "Quire"
TOP_N = 3
TOP_K = {"naive-rag": 3, "advanced-rag": 16}
_READ_TOGETHER: dict[str, Any] = {
    "answer": {"synthesis": "one_shot", "separator": "\n\n", "last_first": False}
}
"""As LlamaIndex joins chunks that fit into one prompt; its tree would join them, too."""


class Asked(NamedTuple):
    answer: str
    wall_s: float


class Contender(Protocol):
    def ask(self, name: str, asked: Mapping[str, Any], key: str) -> Asked: ...


class LlamaIndex:
    """Asks LlamaIndex in a process of its own. ``python``: the interpreter of the environment that
    has it."""

    def __init__(self, url: str, python: Path, cores: list[int]) -> None:
        self._url = url
        self._process = subprocess.Popen(
            [str(python), str(ROOT / "benchmarks" / "peers" / "llama_index_rag.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        os.sched_setaffinity(self._process.pid, cores)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, name: str, asked: Mapping[str, Any], key: str) -> Asked:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        config = config_of(name)
        told = {
            "max_tokens": config["answer"]["max_tokens"],
            "top_k": TOP_K[name],
            "top_n": TOP_N,
            "queries": config.get("expand", {}).get("schema"),
        }
        job = {"url": self._url, "key": key, "core": CORE, "app": name, "config": told}
        stdin.write(json.dumps(job | dict(asked)) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise SystemExit("the process of LlamaIndex has ended; its error is above")
        found = json.loads(line)
        return Asked(found["answer"], found["seconds"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Workflow:
    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=600.0)

    def ask(self, name: str, asked: Mapping[str, Any], key: str) -> Asked:
        body = {"query": asked, "config": config_of(name)}
        began_s = time.perf_counter()
        response = self._client.post(
            f"/v1/workflows/{name}/query", json=body, headers={"Authorization": f"Bearer {key}"}
        )
        if response.is_error:
            raise SystemExit(response.text)
        answer: str = response.json()["results"]["answer"]
        return Asked(answer, time.perf_counter() - began_s)

    def close(self) -> None:
        self._client.close()


def config_of(name: str) -> dict[str, Any]:
    config = dict(CONFIG[name])
    if name == "naive-rag":
        config["answer"] = {**config["answer"], **_READ_TOGETHER["answer"]}
    return config


@contextmanager
def server_of(arguments: Namespace, num_tenants: int) -> Iterator[Server]:
    port = free_port()
    options = {
        "--encoder": [arguments.encoder],
        "--core": [arguments.core],
        "--cache": [str(arguments.cache)],
        "--llm-cores": map(str, arguments.llm_cores),
        "--other-cores": map(str, arguments.other_cores),
        "--port": [str(port)],
        "--tenants": [str(num_tenants)],
    }
    flat = [word for option, values in options.items() for word in (option, *values)]
    server = Server(
        [sys.executable, "-m", "benchmarks.ayo.real_server", *flat],
        port,
        "/ready",
        {"PYTHONPATH": str(ROOT)},
        timeout_s=600.0,
    )
    try:
        yield server
    finally:
        server.close()


def run(arguments: Namespace) -> dict[str, object]:
    num_rounds = rounds_of(arguments)
    num_queries = (num_rounds + 1) * 2 * len(arguments.workflow)
    keys = map(key_of, itertools.count())
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with server_of(arguments, num_queries) as server:
        llama_index = LlamaIndex(server.url, arguments.python, arguments.other_cores)
        contenders: dict[str, Contender] = {
            LLAMA_INDEX: llama_index, QUIRE: Workflow(server.url)
        }  # fmt: skip
        for name in arguments.workflow:
            took = found[name] = {one: [] for one in contenders}
            for number in range(num_rounds + 1):
                asked = query(name, arguments, number)
                order = list(contenders)[:: 1 if number % 2 else -1]
                answers = {}
                for one in order:
                    before_s = server.cpu_s() + cpu_s(llama_index.pid)
                    answer = contenders[one].ask(name, asked, next(keys))
                    spent_s = server.cpu_s() + cpu_s(llama_index.pid) - before_s
                    answers[one] = answer.answer.strip()
                    if number:  # the first round warms up
                        took[one].append((answer.wall_s, spent_s))
                if len(set(answers.values())) > 1:
                    raise SystemExit(f"{name}: answers differ: {answers}")
                print(f"{name}: round {number} of {num_rounds}", file=sys.stderr, flush=True)
        llama_index.close()
    rows = [_row(name, took) for name, took in found.items()]
    print_table("One query over HTTP", [{k: str(v) for k, v in row.items()} for row in rows])
    fields = ("core", "llm_cores", "other_cores", "pages")
    return {
        **{field: getattr(arguments, field) for field in fields},
        "rows": [
            {k: v.rounded() if isinstance(v, Figure) else v for k, v in row.items()} for row in rows
        ],
    }


def _row(name: str, took: Mapping[str, list[tuple[float, float]]]) -> dict[str, Any]:
    wall_s = {one: [wall for wall, _ in spent] for one, spent in took.items()}
    spent_s = {one: [cpu for _, cpu in spent] for one, spent in took.items()}
    row: dict[str, Any] = {"application": name}
    row |= {f"{one} s": figure(values) for one, values in wall_s.items()}
    row["faster"] = ratio(wall_s[LLAMA_INDEX], wall_s[QUIRE])
    row |= {f"{one}, processor s": figure(values) for one, values in spent_s.items()}
    row["less processor time"] = ratio(spent_s[LLAMA_INDEX], spent_s[QUIRE])
    return row


def main() -> None:
    made = plain_parser(__doc__)
    add_node_options(made)
    made.add_argument("--workflow", nargs="+", choices=APPLICATIONS, default=list(APPLICATIONS))
    made.add_argument(
        "--python",
        type=Path,
        default=ROOT / ".venv-clients" / "bin" / "python",
        help="of the environment that has LlamaIndex",
    )
    made.add_argument("--pages", type=int, default=2, help="of about 500 words (default: 2)")
    made.add_argument("--seed", type=int, default=0)
    arguments = made.parse_args()
    emit("ayo/real-llama-index", arguments.out, **run(arguments))


if __name__ == "__main__":
    main()
