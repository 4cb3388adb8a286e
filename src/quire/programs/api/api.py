"""The programming interface as one object: every function of every trait under its own name.

A table and nothing else; each trait's module says what its functions do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from quire.core.errors import QuireError
from quire.core.ids import ProgramId
from quire.core.interfaces import ProgramPort, ReplySink
from quire.core.traits import Trait
from quire.programs.api.adapter import Adapter
from quire.programs.api.allocate import Allocate
from quire.programs.api.core import Core, Log, log_to_process
from quire.programs.api.decode import Decode
from quire.programs.api.encode import Encode
from quire.programs.api.forward import Forward
from quire.programs.api.grammar import Grammar
from quire.programs.api.input_image import InputImage
from quire.programs.api.input_text import InputText
from quire.programs.api.issuer import Issuer
from quire.programs.api.messaging import Messaging
from quire.programs.api.net import Net
from quire.programs.api.output_text import OutputText
from quire.programs.api.queued import TraitFunctions
from quire.programs.api.sample import Sample
from quire.programs.api.scores import Scores
from quire.programs.api.store import Store
from quire.programs.api.tokenize import Tokenize
from quire.programs.services.mailbox import Mailbox
from quire.programs.services.network import Network

TRAIT_FUNCTIONS: dict[Trait, type[TraitFunctions]] = {
    functions.trait: functions
    for functions in (
        Core, Messaging, Net, Store, Allocate, Forward, InputText, InputImage, Tokenize, OutputText,
        Sample, Decode, Grammar, Adapter, Scores, Encode,
    )
}  # fmt: skip
"""The class that holds each trait's functions."""


class Api:
    """What a program's ``main(api, *args)`` is given. Belongs to one program and its loop.

    Nothing here blocks. Issuing a command returns at once, with a handle or an awaitable reply; a
    command that fails without being awaited poisons its queue and surfaces at the next await there.
    """

    def __init__(
        self,
        issuer: Issuer,
        *,
        args: Sequence[str] = (),
        mailbox: Mailbox | None = None,
        network: Network | None = None,
        log: Log = log_to_process,
    ) -> None:
        self.issuer = issuer
        core, messaging = Core(issuer, args, log), Messaging(issuer, mailbox)
        net = Net(issuer, network)
        self.get_arg = core.get_arg
        self.available_models = core.available_models
        self.available_traits = core.available_traits
        self.create_queue = core.create_queue
        self.synchronize = core.synchronize
        self.set_queue_priority = core.set_queue_priority
        self.reset_queue = core.reset_queue
        self.close_queue = core.close_queue
        self.sleep = core.sleep
        self.now = core.now
        self.monotonic = core.monotonic
        self.random = core.random
        self.log = core.log
        self.launch = core.launch
        self.join = core.join
        self.cancel = core.cancel
        self.send = messaging.send
        self.receive = messaging.receive
        self.broadcast = messaging.broadcast
        self.subscribe = messaging.subscribe
        self.push = messaging.push
        self.pull = messaging.pull
        self.http_get = net.http_get
        self.http_post = net.http_post
        self.http_stream = net.http_stream
        self.mcp_connect = net.mcp_connect
        encode = Encode(issuer)
        self.available_encoders = encode.available_encoders
        self.embed = encode.embed
        self.rerank = encode.rerank
        self._bind_store(Store(issuer))
        self._bind_memory(Allocate(issuer))
        self._bind_model(issuer)

    def _bind_store(self, store: Store) -> None:
        self.store_put = store.store_put
        self.store_get = store.store_get
        self.store_delete = store.store_delete
        self.store_list = store.store_list
        self.store_compare_and_set = store.store_compare_and_set
        self.blob_put = store.blob_put
        self.blob_get = store.blob_get
        self.blob_delete = store.blob_delete
        self.blob_list = store.blob_list

    def _bind_memory(self, allocate: Allocate) -> None:
        self.alloc_kvpage = allocate.alloc_kvpage
        self.dealloc_kvpage = allocate.dealloc_kvpage
        self.alloc_emb = allocate.alloc_emb
        self.dealloc_emb = allocate.dealloc_emb
        self.export_kvpage = allocate.export_kvpage
        self.release_export = allocate.release_export
        self.list_exports = allocate.list_exports
        self.import_kvpage = allocate.import_kvpage
        self.import_prefix = allocate.import_prefix
        self.copy_kvpage = allocate.copy_kvpage
        self.truncate_kvpage = allocate.truncate_kvpage

    def _bind_model(self, issuer: Issuer) -> None:
        forward, tokenize, output_text = Forward(issuer), Tokenize(issuer), OutputText(issuer)
        sample, grammar, adapter = Sample(issuer), Grammar(issuer), Adapter(issuer)
        self.forward = forward.forward
        self.mask_kvpage = forward.mask_kvpage
        self.available_adapters = adapter.available_adapters
        self.forward_with_adapter = adapter.forward_with_adapter
        self.forward_with_scores = Scores(issuer).forward_with_scores
        images = InputImage(issuer)
        self.num_embs_needed = images.num_embs_needed
        self.embed_img = images.embed_img
        self.embed_txt = InputText(issuer).embed_txt
        self.tokenize = tokenize.tokenize
        self.detokenize = tokenize.detokenize
        self.get_vocabs = tokenize.get_vocabs
        self.get_next_dist = output_text.get_next_dist
        self.get_next_dists = output_text.get_next_dists
        self.sample = sample.sample
        self.alloc_token_slot = sample.alloc_token_slot
        self.decode = Decode(issuer).decode
        self.json_schema = grammar.json_schema
        self.regex = grammar.regex
        self.lark = grammar.lark
        self.choice = grammar.choice

    @property
    def program(self) -> ProgramId:
        return self.issuer.program

    def close(self, reason: str = "finished") -> None:
        """End the program: what it holds is freed. The runtime does this for its programs."""
        self.issuer.close(reason)


def connect_api(
    connect: Callable[[ReplySink, asyncio.AbstractEventLoop], ProgramPort],
    *,
    args: Sequence[str] = (),
    mailbox: Mailbox | None = None,
    network: Network | None = None,
    on_end: Callable[[QuireError], None] | None = None,
) -> Api:
    """An ``Api`` on the running loop over a port that ``connect`` makes.

    For trusted code that is not launched by a runtime, such as a server's sessions and tests; it
    calls ``api.close()`` itself. ``on_end``: the node has ended the program.
    """
    loop = asyncio.get_running_loop()
    issuer = Issuer(loop, on_end)
    issuer.attach(connect(issuer, loop))
    return Api(issuer, args=args, mailbox=mailbox, network=network)


__all__ = ["TRAIT_FUNCTIONS", "Api", "connect_api"]
