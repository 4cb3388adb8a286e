"""A request whose choices exceed its program's quota by themselves is not to be repeated."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest
from scripted_server import MODEL, running_server

from quire.core.config import TenantConfig
from quire.core.errors import NeverWithinQuota
from quire.core.ids import TenantId
from quire.core.quotas import Quotas
from quire.programs.builtin import CompletionRequest
from quire.server.requests.own_quota import check_own_quota


def request(num_prompt: int, max_tokens: int, num_choices: int = 1) -> CompletionRequest:
    return CompletionRequest((7,) * num_prompt, max_tokens, num_choices=num_choices)


@pytest.mark.parametrize(
    ("requests", "num_pages"),
    [
        ([request(16, 1, 3)], 3),  # no page is shared: its last token is each choice's own
        ([request(17, 1, 3)], 1 + 3),
        ([request(17, 17, 3)], 1 + 3 * 2),
        ([request(33, 0, 2)], 2 + 2),
        ([request(16, 1), request(16, 2)], 1 + 2),
        ([request(16, 2, 2), request(1, 1)], 2 * 2 + 1),
    ],
)
def test_the_pages_of_all_choices_are_counted(
    requests: list[CompletionRequest], num_pages: int
) -> None:
    check_own_quota(Quotas(max_pages=num_pages), requests, 16)
    with pytest.raises(NeverWithinQuota, match=f"need {num_pages} pages") as caught:
        check_own_quota(Quotas(max_pages=num_pages - 1), requests, 16)
    assert caught.value.details == {"max_pages": num_pages - 1}


def test_so_are_their_queues() -> None:
    check_own_quota(Quotas(max_queues=3), [request(1, 1, 3)], 16)
    with pytest.raises(NeverWithinQuota, match="need 3 queues and the quota is 2"):
        check_own_quota(Quotas(max_queues=2), [request(1, 1, 2), request(1, 1)], 16)


def test_a_single_choice_is_left_to_control() -> None:
    check_own_quota(Quotas(max_pages=1, max_queues=0), [request(100, 100)], 16)


@pytest.mark.parametrize("body", [{"prompt": "say x", "n": 5}, {"prompt": ["say x"] * 5}])
def test_official_clients_do_not_ask_again(body: dict[str, Any]) -> None:
    tenant = TenantConfig(TenantId("small"), quotas=Quotas(max_pages=4))
    asked: list[httpx2.Request] = []
    with (
        running_server(tenants=(tenant,)) as server,
        httpx2.Client(event_hooks={"request": [asked.append]}) as http,
        openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="x", max_retries=2, http_client=http
        ) as client,
    ):
        with pytest.raises(openai.BadRequestError, match="5 choices of this request") as caught:
            client.completions.create(model=MODEL, max_tokens=2, **body)
        assert caught.value.code == "never_within_quota"
    assert len(asked) == 1
