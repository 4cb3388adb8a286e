"""Reads and writes tokens of a following rank's pool for the data plane of rank 0, beside the calls
that the rank computes.

Owns the order between both: a token is read or written when the calls before it have run.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

import numpy as np
import torch

from quire.engine.kv_cache.token_form import U8, TokenPool
from quire.engine.parallel.channel import PeerGone, RankChannel
from quire.engine.parallel.messages import (
    AnyTokenCall,
    PlaceTokens,
    ReadTokens,
    TokensRead,
    WriteTokens,
    token_answer_codec,
    token_call_codec,
)

logger = logging.getLogger(__name__)

_NOTHING = np.empty(0, np.uint8)


class TokenService:
    """Serves ``channel`` on a thread of its own. ``pool()``: the pool of the model that is loaded.

    Received arrays are read-only, which torch does not accept, so they are copied.
    """

    def __init__(self, channel: RankChannel, pool: Callable[[], TokenPool]) -> None:
        self._channel = channel
        self._pool = pool
        self._num_calls = 0
        self._has_run = threading.Condition()

    def start(self) -> None:
        threading.Thread(target=self._serve, name="tokens", daemon=True).start()

    def call_ended(self) -> None:
        """Note that one more of rank 0's calls has run."""
        with self._has_run:
            self._num_calls += 1
            self._has_run.notify_all()

    def answer(self, call: AnyTokenCall) -> TokensRead:
        with self._has_run:
            self._has_run.wait_for(lambda: self._num_calls >= call.num_calls)
        with torch.inference_mode():
            return TokensRead(tokens=self._done(call, self._pool()))

    def _done(self, call: AnyTokenCall, pool: TokenPool) -> U8:
        slots = call.slots.copy()
        if isinstance(call, PlaceTokens):
            pool.place(slots, call.positions)
            return _NOTHING
        layers = range(call.first_layer, call.first_layer + call.num_layers)
        if isinstance(call, WriteTokens):
            pool.write_tokens(slots, layers, call.tokens.copy())
            return _NOTHING
        assert isinstance(call, ReadTokens)
        tokens = np.empty(len(slots) * len(layers) * pool.form.bytes_per_layer, np.uint8)
        read = pool.read_host_tokens if call.on_host else pool.read_tokens
        read(slots, layers, tokens)
        return tokens

    def _serve(self) -> None:
        calls, answers = token_call_codec(), token_answer_codec()
        try:
            while True:
                answer = self.answer(calls.decode(self._channel.receive()))
                self._channel.send(answers.encode(answer))
        except PeerGone:
            return  # and with it the group: the thread of the calls ends the process
        except Exception:
            logger.exception("the rank failed, and with it the group")
            os._exit(1)
