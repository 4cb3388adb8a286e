"""``/v1/microserving`` over HTTP: two nodes, whose fake engines exchange K and V."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import httpx
import msgspec
import pytest
from scripted_server import MODEL, TOKENIZER, RunningServer, running_server

from quire.client import Microserving
from quire.core.config import ServerConfig, TenantConfig
from quire.core.errors import QuireError
from quire.core.ids import TenantId
from quire.programs.builtin import exchange
from quire.testing import FakeEngine, fake_pool
from quire.testing.fake_engine.network import FakeNetwork

KEY = "0123456789abcdef"
CONFIG = ServerConfig(drain_timeout_s=1.0, sandbox_upload=False, cluster_key=KEY)
TENANTS = tuple(TenantConfig(TenantId(name), (f"{name}-key",)) for name in ("red", "blue"))
SIZE = 16
PROMPT = [(7 * i) % 200 + 20 for i in range(600)]
"""Longer than a message, and than a piece that is sent."""


def engine(network: FakeNetwork, content: str = "fake-1") -> Callable[[], FakeEngine]:
    pool = fake_pool(page_size=SIZE, num_blocks=256, max_batch_tokens=256)
    return lambda: FakeEngine(
        pool,
        tokenizer=TOKENIZER,
        model=MODEL,
        max_model_len=1024,
        network=network,
        content=content,
    )


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[RunningServer, RunningServer]]:
    """A sender and a receiver."""
    network = FakeNetwork()
    with (
        running_server(CONFIG, TENANTS, load=engine(network)) as sender,
        running_server(CONFIG, TENANTS, load=engine(network)) as receiver,
    ):
        yield sender, receiver


Calls = Callable[[Microserving, Microserving], Coroutine[Any, Any, Any]]


@pytest.fixture
def run(nodes: tuple[RunningServer, RunningServer]) -> Callable[[Calls], Any]:
    """Run ``calls(sender, receiver)`` as a router of tenant red would."""

    async def both(calls: Calls) -> Any:
        sender, receiver = (node.url for node in nodes)
        async with (
            Microserving(sender, KEY, "red-key") as first,
            Microserving(receiver, KEY, "red-key") as second,
        ):
            return await calls(first, second)

    return lambda calls: asyncio.run(both(calls))


async def generated(node: Microserving, prompt: list[int], *args: Any, **fields: Any) -> list[int]:
    fields = {"max_tokens": 8, "temperature": 0, "ignore_eos": True} | fields
    tokens = []
    async for chunk in node.start_generate(prompt, *args, return_token_ids=True, **fields):
        for choice in chunk["choices"]:
            tokens += choice.get("token_ids") or []
    return tokens


def new_prompt(number: int, length: int = len(PROMPT)) -> list[int]:
    """Not known to any prefix cache before."""
    return [number % 200 + 20, number // 200 + 20, *PROMPT[2:length]]


async def moved(sender: Microserving, receiver: Microserving, prompt: list[int], end: int) -> str:
    ready = await receiver.prep_recv(prompt, end)
    sent = await sender.remote_send(prompt, ready["kv_addr_info"], 0, end, recv_rank=ready["rank"])
    assert sent["num_tokens"] == ready["num_tokens"]
    assert sent["transport"] == ("in_process" if sent["num_tokens"] else "")
    return str(ready["kv_addr_info"])


@pytest.mark.parametrize(("number", "length", "end"), [(1, 600, -1), (2, 600, 333), (3, 2, -1)])
def test_k_and_v_of_another_node_give_the_same_tokens(
    run: Callable[[Calls], Any], number: int, length: int, end: int
) -> None:
    prompt = new_prompt(number, length)

    async def calls(sender: Microserving, receiver: Microserving) -> None:
        address = await moved(sender, receiver, prompt, end)
        begin = end % len(prompt)
        told = await generated(receiver, prompt, begin, address)
        assert told == await generated(sender, prompt)
        assert len(told) == 8

    run(calls)


def test_a_prompt_of_one_token_needs_nothing_from_elsewhere(run: Callable[[Calls], Any]) -> None:
    async def calls(sender: Microserving, receiver: Microserving) -> None:
        ready = await receiver.prep_recv([99], -1)
        assert (ready["end"], ready["num_tokens"]) == (0, 0)
        sent = await sender.remote_send([99], ready["kv_addr_info"], 0, -1)
        nothing = {"num_tokens": 0, "num_bytes": 0, "elapsed_s": 0.0}
        assert {field: sent[field] for field in nothing} == nothing
        told = await generated(receiver, [99], 0, ready["kv_addr_info"])
        assert told == await generated(sender, [99])

    run(calls)


@pytest.mark.parametrize("case", ["sender knows more", "receiver knows more"])
def test_both_cases_of_the_papers_three_point_five(run: Callable[[Calls], Any], case: str) -> None:
    prompt = new_prompt(10 if case.startswith("sender") else 11)

    async def calls(sender: Microserving, receiver: Microserving) -> None:
        knows, knows_less = (sender, receiver) if case.startswith("sender") else (receiver, sender)
        await generated(knows, prompt[:401], max_tokens=1)
        await generated(knows_less, prompt[:101], max_tokens=1)
        ready = await receiver.prep_recv(prompt, -1)
        assert ready["matched_len"] == (96 if knows is sender else 400)
        for begin, end in ((0, 400), (400, -1)):
            await sender.remote_send(prompt, ready["kv_addr_info"], begin, end)
        told = await generated(receiver, prompt, -1, ready["kv_addr_info"])
        assert told == await generated(sender, prompt)

    run(calls)


def test_several_choices_share_what_was_sent(run: Callable[[Calls], Any]) -> None:
    prompt = new_prompt(20, 100)
    fields = {"n": 3, "temperature": 1.0, "seed": 5}

    async def calls(sender: Microserving, receiver: Microserving) -> None:
        address = await moved(sender, receiver, prompt, -1)
        told = await generated(receiver, prompt, -1, address, **fields)
        assert sorted(told) == sorted(await generated(sender, prompt, **fields))
        assert len(told) == 24

    run(calls)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.0, "seed": 3},
        {"frequency_penalty": 1.5},
        {"temperature": 1.0, "seed": 3, "repetition_penalty": 1.5, "min_tokens": 9},
        {"logprobs": 2},
        {"structured_outputs": {"regex": "[a-z]{12}"}, "ignore_eos": False},
    ],
)
def test_a_decode_goes_on_on_another_node(
    run: Callable[[Calls], Any], fields: dict[str, Any]
) -> None:
    prompt = new_prompt(30 + len(fields), 100)

    async def calls(sender: Microserving, receiver: Microserving) -> None:
        whole = await generated(sender, prompt, max_tokens=12, **fields)
        so_far = [*prompt, *whole[:5]]
        address = await moved(sender, receiver, so_far, -1)
        rest = await generated(
            receiver, so_far, -1, address, num_generated=5, max_tokens=12, **fields
        )
        assert rest == whole[5:]

    run(calls)


def test_a_stop_string_is_found_across_the_move(run: Callable[[Calls], Any]) -> None:
    prompt = new_prompt(40, 100)

    async def text(node: Microserving, tokens: list[int], **fields: Any) -> tuple[str, str | None]:
        told, reason = "", None
        async for chunk in node.start_generate(
            tokens, temperature=0, ignore_eos=True, max_tokens=30, **fields
        ):
            for choice in chunk["choices"]:
                told, reason = told + choice["text"], choice["finish_reason"] or reason
        return told, reason

    async def calls(sender: Microserving, receiver: Microserving) -> None:
        tokens = await generated(sender, prompt, max_tokens=30)
        whole, _ = await text(sender, prompt)
        parts = [TOKENIZER.token_bytes(token) for token in tokens]
        index = next(i for i in range(28) if all(p and p.isascii() for p in parts[i : i + 2]))
        stop = b"".join(parts[index : index + 2]).decode()
        expected, reason = await text(sender, prompt, stop=stop)
        assert reason == "stop"
        so_far = [*prompt, *tokens[: index + 1]]
        rest, reason = await text(receiver, so_far, stop=stop, num_generated=index + 1)
        assert reason == "stop"
        assert expected.endswith(rest)
        assert whole.startswith(expected)

    run(calls)


def status_of(
    node: RunningServer,
    path: str,
    body: dict[str, Any],
    *,
    key: str | None = KEY,
    tenant: str = "red",
) -> tuple[int, str]:
    headers = {"authorization": f"Bearer {tenant}-key"}
    if key is not None:
        headers["x-quire-cluster-key"] = key
    method, path = ("DELETE", path[7:]) if path.startswith("DELETE ") else ("POST", path)
    answer = httpx.request(
        method, f"{node.url}/v1/microserving{path}", json=body, headers=headers, timeout=60
    )
    return answer.status_code, answer.text


def test_who_does_not_know_the_cluster_key_learns_nothing(
    nodes: tuple[RunningServer, RunningServer],
) -> None:
    sender, _ = nodes
    body = {"prompt": [1], "end": 0}
    assert status_of(sender, "/prep_recv", body, key=None)[0] == 401
    assert status_of(sender, "/prep_recv", body, key="another-cluster-key")[0] == 403
    with running_server(tenants=TENANTS) as lonely:
        status, text = status_of(lonely, "/prep_recv", body)
        assert (status, "--cluster-key-file" in text) == (401, True)


BAD: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "begin after end": ("/remote_send", {"begin": 9, "end": 3}, 400, "begin is 9 and end is 3"),
    "end outside the lease": ("/remote_send", {"begin": 0, "end": 60}, 400, "tokens 0 to 50"),
    "end outside the prompt": ("/remote_send", {"begin": 0, "end": 101}, 400, "100 tokens"),
    "far before the prompt": ("/remote_send", {"begin": -101, "end": 3}, 400, "-100 to 100"),
    "another prompt": (
        "/remote_send", {"begin": 0, "end": 50, "prompt": [1] * 100}, 400, "not the one"),
    "another engine": (
        "/remote_send",
        {"begin": 0, "end": 50, "recv_rank": {"engine": "x", "epoch": 0}}, 404, "engine x"),
    "another epoch": (
        "/remote_send",
        {"begin": 0, "end": 50, "recv_rank": {"engine": MODEL, "epoch": 7}}, 404, "epoch 7"),
    "a forged address": ("/remote_send", {"kv_addr_info": "A" * 200}, 403, "was not signed"),
    "no address at all": ("/remote_send", {"kv_addr_info": "?"}, 400, "not what prep_recv"),
    "begin outside the lease": ("/start_generate", {"begin": 60}, 400, "the first 50 tokens"),
    "a prompt that the lease is not for": (
        "/start_generate", {"begin": 50, "prompt": [1] * 100}, 400, "does not begin with"),
    "all was generated": (
        "/start_generate", {"begin": 50, "num_generated": 100}, 400, "num_generated"),
    "nothing left": (
        "/start_generate", {"begin": 50, "num_generated": 9, "max_tokens": 9}, 400, "nothing is"),
    "log probabilities of the prompt": (
        "/start_generate", {"begin": 50, "echo": True, "logprobs": 1}, 400, "from a lease"),
    "an unknown field": ("/start_generate", {"begins": 50}, 400, "begins"),
    "several prompts": ("/start_generate", {"prompt": [[1], [2]]}, 400, "prompt"),
    "too long": ("/leases/renew", {"ttl_s": 1e6}, 400, "ttl_s"),
}  # fmt: skip


@pytest.fixture(scope="module")
def lease(nodes: tuple[RunningServer, RunningServer]) -> dict[str, Any]:
    async def prepared() -> dict[str, Any]:
        async with Microserving(nodes[1].url, KEY, "red-key") as receiver:
            return await receiver.prep_recv(new_prompt(50, 100), 50)

    return asyncio.run(prepared())


@pytest.mark.parametrize("name", BAD)
def test_a_call_that_makes_no_sense_says_why(
    nodes: tuple[RunningServer, RunningServer], lease: dict[str, Any], name: str
) -> None:
    path, fields, status, words = BAD[name]
    node = nodes[0] if path == "/remote_send" else nodes[1]
    body: dict[str, Any] = {"kv_addr_info": lease["kv_addr_info"]}
    if not path.startswith("/leases"):
        body["prompt"] = new_prompt(50, 100)
    if path == "/remote_send":
        body |= {"begin": 0, "end": 50}
    found, text = status_of(node, path, body | fields)
    assert (found, words in text) == (status, True), text


def test_another_tenants_lease_is_forbidden(
    nodes: tuple[RunningServer, RunningServer], lease: dict[str, Any]
) -> None:
    body = {"kv_addr_info": lease["kv_addr_info"], "begin": 0, "end": 50}
    body |= {"prompt": new_prompt(50, 100)}
    assert status_of(nodes[0], "/remote_send", body, tenant="blue")[0] == 403
    assert status_of(nodes[1], "DELETE /leases", {"kv_addr_info": lease["kv_addr_info"]},
                     tenant="blue")[0] == 403  # fmt: skip


def test_leases_renew_are_cancelled_and_taken_once(run: Callable[[Calls], Any]) -> None:
    prompt = new_prompt(60, 100)

    async def calls(sender: Microserving, receiver: Microserving) -> None:
        address = await moved(sender, receiver, prompt, -1)
        address = (await receiver.renew(address, 100.0))["kv_addr_info"]
        await generated(receiver, prompt, -1, address)
        with pytest.raises(QuireError, match="was taken"):
            await generated(receiver, prompt, -1, address)
        ready = await receiver.prep_recv(new_prompt(61, 100))
        await receiver.cancel(ready["kv_addr_info"])
        with pytest.raises(QuireError, match="was cancelled"):
            await receiver.cancel(ready["kv_addr_info"])
        with pytest.raises(QuireError, match="not open"):
            await sender.remote_send(new_prompt(61, 100), ready["kv_addr_info"], 0)

    run(calls)


def test_a_lease_that_ends_when_all_has_arrived_waits_for_it(run: Callable[[Calls], Any]) -> None:
    prompt = new_prompt(62, 6 * SIZE)

    async def calls(sender: Microserving, receiver: Microserving) -> None:
        ready = await receiver.prep_recv(prompt, 6 * SIZE)
        ending = asyncio.create_task(receiver.cancel(ready["kv_addr_info"], when_arrived=True))
        done, _ = await asyncio.wait([ending], timeout=0.05)
        assert not done
        await sender.remote_send(prompt, ready["kv_addr_info"], 0, 6 * SIZE)
        await ending
        again = await receiver.prep_recv(prompt, 6 * SIZE)
        assert again["matched_len"] == 6 * SIZE
        with pytest.raises(QuireError, match="was taken"):
            await receiver.cancel(ready["kv_addr_info"], when_arrived=True)

    run(calls)


def test_a_lease_expires(run: Callable[[Calls], Any]) -> None:
    async def calls(sender: Microserving, receiver: Microserving) -> None:
        prompt = new_prompt(70, 100)
        ready = await receiver.prep_recv(prompt, ttl_s=0.001)
        await asyncio.sleep(0.001)
        with pytest.raises(QuireError, match="has expired"):
            await sender.remote_send(prompt, ready["kv_addr_info"], 0)

    run(calls)


def test_a_request_that_is_sent_again_is_done_once(run: Callable[[Calls], Any]) -> None:
    prompt = new_prompt(80, 100)

    async def calls(sender: Microserving, receiver: Microserving) -> None:
        again = await asyncio.gather(
            *(receiver.prep_recv(prompt, request_id="one") for _ in range(3))
        )
        assert len({ready["kv_addr_info"] for ready in again}) == 1
        address = again[0]["kv_addr_info"]
        sent = await asyncio.gather(
            *(sender.remote_send(prompt, address, 0, request_id="two") for _ in range(3))
        )
        assert [one["num_tokens"] for one in sent] == [99] * 3
        with pytest.raises(QuireError, match="used for another request"):
            await receiver.prep_recv(prompt, 50, request_id="one")

    run(calls)


def test_an_answer_from_a_lease_is_told_again_under_its_id(run: Callable[[Calls], Any]) -> None:
    prompt = new_prompt(81, 100)

    async def calls(sender: Microserving, receiver: Microserving) -> None:
        address = await moved(sender, receiver, prompt, -1)
        told = [await generated(receiver, prompt, -1, address, request_id="r") for _ in range(2)]
        assert told[0] == told[1] == await generated(sender, prompt)

    run(calls)


def test_a_renewed_lease_is_the_same_one_under_an_id(run: Callable[[Calls], Any]) -> None:
    prompt = new_prompt(82, 100)

    async def calls(sender: Microserving, receiver: Microserving) -> None:
        ready = await receiver.prep_recv(prompt, -1)
        first = ready["kv_addr_info"]
        sent = [await sender.remote_send(prompt, first, 0, -1, request_id="renewed send")]
        second = (await receiver.renew(first, 100.0))["kv_addr_info"]
        assert second != first
        sent.append(await sender.remote_send(prompt, second, 0, -1, request_id="renewed send"))
        assert sent[0] == sent[1]
        told = [
            await generated(receiver, prompt, -1, address, request_id="renewed")
            for address in (first, second, first)
        ]
        assert told[0] == told[1] == told[2] == await generated(sender, prompt)
        other = (await receiver.prep_recv(prompt, -1))["kv_addr_info"]
        with pytest.raises(QuireError, match="used for another request"):
            await generated(receiver, prompt, -1, other, request_id="renewed")
        await receiver.cancel(other)

    run(calls)


def test_a_node_without_room_says_so_and_may_be_asked_again(run: Callable[[Calls], Any]) -> None:
    async def calls(sender: Microserving, receiver: Microserving) -> None:
        leases = [
            (await receiver.prep_recv(new_prompt(100 + i, 600)))["kv_addr_info"] for i in range(3)
        ]
        with pytest.raises(QuireError, match="wait for K and V and 128 of 256 may") as refused:
            await receiver.prep_recv(new_prompt(103, 600))
        assert refused.value.retriable
        for address in leases:
            await receiver.cancel(address)

    run(calls)


def test_the_engines_of_a_node(run: Callable[[Calls], Any]) -> None:
    async def calls(sender: Microserving, receiver: Microserving) -> None:
        (row,) = await sender.engines()
        assert (row["engine"], row["model"], row["content"]) == (f"{MODEL}#0", MODEL, "fake-1")
        assert (row["page_size"], row["num_blocks"], row["epoch"]) == (SIZE, 256, 0)

    run(calls)


def test_other_k_and_v_are_refused(nodes: tuple[RunningServer, RunningServer]) -> None:
    prompt = new_prompt(90, 100)

    async def calls(url: str) -> None:
        async with (
            Microserving(nodes[1].url, KEY, "red-key") as receiver,
            Microserving(url, KEY, "red-key") as other,
        ):
            ready = await receiver.prep_recv(prompt)
            with pytest.raises(QuireError, match="'fake-1', and model 'scripted' computes 'x'"):
                await other.remote_send(prompt, ready["kv_addr_info"], 0)
            await receiver.cancel(ready["kv_addr_info"])

    with running_server(CONFIG, TENANTS, load=engine(FakeNetwork(), "x")) as server:
        asyncio.run(calls(server.url))


def test_bodies_and_answers_may_be_msgpack(nodes: tuple[RunningServer, RunningServer]) -> None:
    kind = "application/msgpack"
    headers = {"authorization": "Bearer red-key", "x-quire-cluster-key": KEY}
    headers |= {"content-type": kind, "accept": kind}
    url = f"{nodes[1].url}/v1/microserving/prep_recv"
    body = {"prompt": new_prompt(120, 50), "end": -1}
    answer = httpx.post(url, content=msgspec.msgpack.encode(body), headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
    assert msgspec.msgpack.decode(answer.content)["end"] == 49
    for bad in (b"\xc1", msgspec.msgpack.encode(body)[:-1], msgspec.msgpack.encode({1: 2})):
        refused = httpx.post(url, content=bad, headers=headers)
        assert refused.status_code == 400, refused.text
    people = nodes[1].url + "/v1/completions"
    assert httpx.post(people, content=msgspec.msgpack.encode(body), headers=headers).is_error


async def index_of(http: httpx.AsyncClient, headers: dict[str, str]) -> list[dict[str, Any]]:
    """What the index stream of a node says at its beginning."""
    found = []
    async with http.stream("GET", "/v1/microserving/index", headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                found.append(msgspec.json.decode(line[6:]))
            if found and found[-1]["part"] + 1 == found[-1]["num_parts"]:
                return found
    raise AssertionError("the stream has ended")


@pytest.mark.parametrize("kind", ["ids", "text", "chat"])
def test_the_pages_of_a_prompt_are_those_that_the_index_tells(
    nodes: tuple[RunningServer, RunningServer], kind: str
) -> None:
    text = f"The {kind} of it all, told at some length so that it fills pages. " * 3
    route, asked = {
        "ids": ("completions", {"prompt": new_prompt(300, 100)}),
        "text": ("completions", {"prompt": text}),
        "chat": ("chat/completions", {"messages": [{"role": "user", "content": text}]}),
    }[kind]
    red = {"authorization": "Bearer red-key", "x-quire-cluster-key": KEY}

    async def calls() -> None:
        async with httpx.AsyncClient(base_url=nodes[0].url, headers=red) as http:
            answer = await http.post(f"/v1/{route}", json={**asked, "max_tokens": 1})
            num_tokens = answer.json()["usage"]["prompt_tokens"]
            pages = (await http.post("/v1/microserving/pages", json=asked)).json()
            keys = keys_of(pages["keys"])
            assert (len(pages["tokens"]), len(keys)) == (num_tokens, num_tokens // SIZE)
            (event,) = await index_of(http, {})
            assert (event["since"], event["page_size"]) == (None, SIZE)
            assert keys <= keys_of(event["inserted"])
            blue = {"authorization": "Bearer blue-key"}
            others = await http.post("/v1/microserving/pages", json=asked, headers=blue)
            assert not keys & keys_of(others.json()["keys"]), "a tenant's pages are its own"

    asyncio.run(calls())


def keys_of(text: str) -> set[bytes]:
    packed = b64decode(text)
    return {packed[at : at + 8] for at in range(0, len(packed), 8)}


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("another", 403)])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/microserving/index"), ("POST", "/v1/microserving/pages")]
)
def test_only_the_cluster_hears_of_the_index(
    nodes: tuple[RunningServer, RunningServer], method: str, path: str, key: str | None, status: int
) -> None:
    headers = {"authorization": "Bearer red-key"}
    if key is not None:
        headers["x-quire-cluster-key"] = key
    body = {"prompt": "x"} if method == "POST" else None
    answer = httpx.request(method, nodes[0].url + path, json=body, headers=headers)
    assert answer.status_code == status


def test_a_price_for_what_is_cached(run: Callable[[Calls], Any]) -> None:
    prompt = new_prompt(90, 100)

    async def calls(sender: Microserving, receiver: Microserving) -> None:
        await generated(sender, prompt, max_tokens=1)
        assert await sender.pin(prompt, 2.5, 30.0) == {"num_tokens": 96, "expires_in_s": 30.0}
        assert (await receiver.pin(prompt, 2.5, 30.0))["num_tokens"] == 0
        with pytest.raises(QuireError, match="price"):
            await sender.pin(prompt, -1.0, 30.0)

    run(calls)


def test_a_salted_prompt_neither_comes_from_a_prefix_cache_nor_goes_into_one(
    run: Callable[[Calls], Any],
) -> None:
    prompt = new_prompt(91, 300)
    salt = {"cache_salt": "s"}

    async def calls(sender: Microserving, receiver: Microserving) -> None:
        ready = await receiver.prep_recv(prompt, -1, **salt)
        address = ready["kv_addr_info"]
        await sender.remote_send(prompt, address, 0, -1, **salt)
        told = await generated(receiver, prompt, -1, address, **salt)
        for node in (sender, receiver):
            assert (await node.pin(prompt, 1.0, 30.0))["num_tokens"] == 0, "it is in no cache"
        assert told == await generated(sender, prompt)
        await generated(receiver, prompt)
        ready = await receiver.prep_recv(prompt, -1, **salt)
        assert (ready["matched_len"], ready["num_tokens"]) == (0, 299)
        sent = await sender.remote_send(prompt, ready["kv_addr_info"], 0, -1, **salt)
        assert sent["num_tokens"] == 299
        await receiver.cancel(ready["kv_addr_info"])

    run(calls)


def test_a_request_id_tells_a_salted_prompt_from_another(run: Callable[[Calls], Any]) -> None:
    prompt = new_prompt(92, 40)

    async def calls(_: Microserving, receiver: Microserving) -> None:
        ready = await receiver.prep_recv(prompt, -1, request_id="salted-or-not")
        with pytest.raises(QuireError, match="another request"):
            await receiver.prep_recv(prompt, -1, request_id="salted-or-not", cache_salt="s")
        await receiver.cancel(ready["kv_addr_info"])

    run(calls)


def test_the_calls_have_the_priority_of_their_requests(
    run: Callable[[Calls], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = new_prompt(93, 40)
    priorities = []
    queue = exchange._queue

    def noted(api: Any, model: Any, priority: int) -> Any:
        priorities.append(priority)
        return queue(api, model, priority)

    monkeypatch.setattr(exchange, "_queue", noted)

    async def calls(sender: Microserving, receiver: Microserving) -> None:
        ready = await receiver.prep_recv(prompt, -1, priority=-3)
        await sender.remote_send(prompt, ready["kv_addr_info"], 0, -1, priority=-4)
        await sender.pin(prompt, 1.0, 30.0, priority=-5)
        assert priorities == [3, 4, 4, 4, 5]
        await receiver.cancel(ready["kv_addr_info"])

    run(calls)


CHAT = [{"role": "user", "content": "rain on the roof"}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("pin", {"prompt": "rain", "price": 1.0, "cache_salt": "s"}, "cache_salt"),
        ("leases/renew", {"kv_addr_info": "x", "ttl_s": 1.0, "when_arrived": True}, "when_arrived"),
        ("prep_recv", {"prompt": "rain", "end": 1, "continue_final_message": True}, "continue_"),
        ("prep_recv", {"prompt": "rain", "end": 1, "chat_template_kwargs": {"a": 1}}, "chat_"),
        ("pages", {"prompt": "rain", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
    ],
)
def test_a_field_without_an_effect_is_refused_by_name(
    nodes: tuple[RunningServer, RunningServer], path: str, body: dict[str, Any], param: str
) -> None:
    headers = {"authorization": "Bearer red-key", "x-quire-cluster-key": KEY}
    url = f"{nodes[0].url}/v1/microserving/{path}"
    answer = httpx.post(url, json=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)


def test_a_chat_begins_with_special_tokens_if_asked_to() -> None:
    start = TOKENIZER.special_id("<|eos|>")  # no template begins with it
    headers = {"authorization": "Bearer red-key", "x-quire-cluster-key": KEY}

    def asked(url: str, path: str, **special: bool) -> dict[str, Any]:
        body = {"messages": CHAT, **special}
        answer = httpx.post(f"{url}/v1/microserving/{path}", json=body, headers=headers)
        return dict(answer.json())

    load = engine(FakeNetwork())
    with running_server(CONFIG, TENANTS, load=load, text_start=(start,)) as node:
        plain, started = (
            asked(node.url, "pages", **special)["tokens"]
            for special in ({}, {"add_special_tokens": True})
        )
    assert started == [start, *plain]
