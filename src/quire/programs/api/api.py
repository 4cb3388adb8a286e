"""The programming interface as one object: every function of every trait under its own name.

Contains only the table; each trait's module documents its functions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, Self, TypeVar, cast, overload

from quire.core.errors import QuireError
from quire.core.ids import ProgramId
from quire.core.interfaces import ProgramPort, ReplySink
from quire.core.traits import Trait
from quire.programs.api.adapter import AdapterFunctions
from quire.programs.api.allocate import AllocateFunctions
from quire.programs.api.core import CoreFunctions, Log, log_to_process
from quire.programs.api.decode import DecodeFunctions
from quire.programs.api.documents import DocumentsFunctions
from quire.programs.api.encode import EncodeFunctions
from quire.programs.api.forward import ForwardFunctions
from quire.programs.api.grammar import GrammarFunctions
from quire.programs.api.input_image import InputImageFunctions
from quire.programs.api.input_text import InputTextFunctions
from quire.programs.api.issuer import Issuer
from quire.programs.api.messaging import MessagingFunctions
from quire.programs.api.net import NetFunctions
from quire.programs.api.output_text import OutputTextFunctions
from quire.programs.api.queued import TraitFunctions
from quire.programs.api.reposition import RepositionFunctions
from quire.programs.api.sample import SampleFunctions
from quire.programs.api.scores import ScoresFunctions
from quire.programs.api.search import SearchFunctions
from quire.programs.api.store import StoreFunctions
from quire.programs.api.tokenize import TokenizeFunctions
from quire.programs.api.vectors import VectorsFunctions
from quire.programs.services.mailbox import ProgramMailbox
from quire.programs.services.network import Network

TRAIT_FUNCTIONS: dict[Trait, type[TraitFunctions]] = {
    functions.trait: functions
    for functions in (
        CoreFunctions, MessagingFunctions, NetFunctions, StoreFunctions, AllocateFunctions,
        ForwardFunctions, InputTextFunctions, InputImageFunctions, TokenizeFunctions,
        OutputTextFunctions, SampleFunctions, DecodeFunctions, GrammarFunctions, AdapterFunctions,
        ScoresFunctions, RepositionFunctions, EncodeFunctions, DocumentsFunctions,
        VectorsFunctions, SearchFunctions,
    )
}  # fmt: skip
"""The class with the functions of each trait."""


F = TypeVar("F", bound=TraitFunctions)
R = TypeVar("R")


class bound(Generic[F, R]):  # noqa: N801 - reads as a function
    """``find(trait)`` as an attribute of ``Api``, created at its first use: a program uses few of
    the functions, and every request creates an ``Api``."""

    def __init__(self, trait: type[F], find: Callable[[F], R]) -> None:
        self._trait = trait
        self._find = find

    def __set_name__(self, owner: type[Api], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, api: None, owner: type[Api]) -> Self: ...

    @overload
    def __get__(self, api: Api, owner: type[Api]) -> R: ...

    def __get__(self, api: Api | None, owner: type[Api]) -> Self | R:
        if api is None:
            return self
        found = api.__dict__[self._name] = self._find(api.functions(self._trait))
        return found


class Api:
    """The first argument of a program's ``main(api, *args)``. Belongs to one program and its event
    loop.

    Nothing blocks. Issuing a command returns at once, with a handle or an awaitable reply. A
    command that fails without being awaited poisons its queue; the next await on that queue raises
    the failure.
    """

    get_arg = bound(CoreFunctions, lambda trait: trait.get_arg)
    available_models = bound(CoreFunctions, lambda trait: trait.available_models)
    available_traits = bound(CoreFunctions, lambda trait: trait.available_traits)
    create_queue = bound(CoreFunctions, lambda trait: trait.create_queue)
    synchronize = bound(CoreFunctions, lambda trait: trait.synchronize)
    set_queue_priority = bound(CoreFunctions, lambda trait: trait.set_queue_priority)
    set_queue_depth = bound(CoreFunctions, lambda trait: trait.set_queue_depth)
    reset_queue = bound(CoreFunctions, lambda trait: trait.reset_queue)
    close_queue = bound(CoreFunctions, lambda trait: trait.close_queue)
    sleep = bound(CoreFunctions, lambda trait: trait.sleep)
    now = bound(CoreFunctions, lambda trait: trait.now)
    monotonic = bound(CoreFunctions, lambda trait: trait.monotonic)
    random = bound(CoreFunctions, lambda trait: trait.random)
    log = bound(CoreFunctions, lambda trait: trait.log)
    launch = bound(CoreFunctions, lambda trait: trait.launch)
    join = bound(CoreFunctions, lambda trait: trait.join)
    cancel = bound(CoreFunctions, lambda trait: trait.cancel)
    send = bound(MessagingFunctions, lambda trait: trait.send)
    receive = bound(MessagingFunctions, lambda trait: trait.receive)
    broadcast = bound(MessagingFunctions, lambda trait: trait.broadcast)
    subscribe = bound(MessagingFunctions, lambda trait: trait.subscribe)
    push = bound(MessagingFunctions, lambda trait: trait.push)
    pull = bound(MessagingFunctions, lambda trait: trait.pull)
    http_get = bound(NetFunctions, lambda trait: trait.http_get)
    http_post = bound(NetFunctions, lambda trait: trait.http_post)
    http_stream = bound(NetFunctions, lambda trait: trait.http_stream)
    mcp_connect = bound(NetFunctions, lambda trait: trait.mcp_connect)
    available_encoders = bound(EncodeFunctions, lambda trait: trait.available_encoders)
    embed = bound(EncodeFunctions, lambda trait: trait.embed)
    rerank = bound(EncodeFunctions, lambda trait: trait.rerank)
    read_document = bound(DocumentsFunctions, lambda trait: trait.read_document)
    vectors_name = bound(VectorsFunctions, lambda trait: trait.vectors_name)
    vectors_put = bound(VectorsFunctions, lambda trait: trait.vectors_put)
    vectors_search = bound(VectorsFunctions, lambda trait: trait.vectors_search)
    vectors_drop = bound(VectorsFunctions, lambda trait: trait.vectors_drop)
    vectors_list = bound(VectorsFunctions, lambda trait: trait.vectors_list)
    available_search = bound(SearchFunctions, lambda trait: trait.available_search)
    search = bound(SearchFunctions, lambda trait: trait.search)
    store_put = bound(StoreFunctions, lambda trait: trait.store_put)
    store_get = bound(StoreFunctions, lambda trait: trait.store_get)
    store_delete = bound(StoreFunctions, lambda trait: trait.store_delete)
    store_list = bound(StoreFunctions, lambda trait: trait.store_list)
    store_compare_and_set = bound(StoreFunctions, lambda trait: trait.store_compare_and_set)
    blob_put = bound(StoreFunctions, lambda trait: trait.blob_put)
    blob_get = bound(StoreFunctions, lambda trait: trait.blob_get)
    blob_delete = bound(StoreFunctions, lambda trait: trait.blob_delete)
    blob_list = bound(StoreFunctions, lambda trait: trait.blob_list)
    alloc_kvpage = bound(AllocateFunctions, lambda trait: trait.alloc_kvpage)
    dealloc_kvpage = bound(AllocateFunctions, lambda trait: trait.dealloc_kvpage)
    alloc_emb = bound(AllocateFunctions, lambda trait: trait.alloc_emb)
    dealloc_emb = bound(AllocateFunctions, lambda trait: trait.dealloc_emb)
    export_kvpage = bound(AllocateFunctions, lambda trait: trait.export_kvpage)
    release_export = bound(AllocateFunctions, lambda trait: trait.release_export)
    list_exports = bound(AllocateFunctions, lambda trait: trait.list_exports)
    import_kvpage = bound(AllocateFunctions, lambda trait: trait.import_kvpage)
    import_text = bound(AllocateFunctions, lambda trait: trait.import_text)
    import_prefix = bound(AllocateFunctions, lambda trait: trait.import_prefix)
    copy_kvpage = bound(AllocateFunctions, lambda trait: trait.copy_kvpage)
    truncate_kvpage = bound(AllocateFunctions, lambda trait: trait.truncate_kvpage)
    forward = bound(ForwardFunctions, lambda trait: trait.forward)
    mask_kvpage = bound(ForwardFunctions, lambda trait: trait.mask_kvpage)
    available_adapters = bound(AdapterFunctions, lambda trait: trait.available_adapters)
    forward_with_adapter = bound(AdapterFunctions, lambda trait: trait.forward_with_adapter)
    forward_with_scores = bound(ScoresFunctions, lambda trait: trait.forward_with_scores)
    reposition_kvpage = bound(RepositionFunctions, lambda trait: trait.reposition_kvpage)
    num_embs_needed = bound(InputImageFunctions, lambda trait: trait.num_embs_needed)
    embed_img = bound(InputImageFunctions, lambda trait: trait.embed_img)
    embed_txt = bound(InputTextFunctions, lambda trait: trait.embed_txt)
    tokenize = bound(TokenizeFunctions, lambda trait: trait.tokenize)
    detokenize = bound(TokenizeFunctions, lambda trait: trait.detokenize)
    get_vocabs = bound(TokenizeFunctions, lambda trait: trait.get_vocabs)
    get_next_dist = bound(OutputTextFunctions, lambda trait: trait.get_next_dist)
    get_next_dists = bound(OutputTextFunctions, lambda trait: trait.get_next_dists)
    sample = bound(SampleFunctions, lambda trait: trait.sample)
    alloc_token_slot = bound(SampleFunctions, lambda trait: trait.alloc_token_slot)
    decode = bound(DecodeFunctions, lambda trait: trait.decode)
    json_schema = bound(GrammarFunctions, lambda trait: trait.json_schema)
    regex = bound(GrammarFunctions, lambda trait: trait.regex)
    lark = bound(GrammarFunctions, lambda trait: trait.lark)
    choice = bound(GrammarFunctions, lambda trait: trait.choice)

    def __init__(
        self,
        issuer: Issuer,
        *,
        args: Sequence[str] = (),
        mailbox: ProgramMailbox | None = None,
        network: Network | None = None,
        log: Log = log_to_process,
    ) -> None:
        self.issuer = issuer
        self._traits: dict[type[TraitFunctions], TraitFunctions] = {
            CoreFunctions: CoreFunctions(issuer, args, log),
            MessagingFunctions: MessagingFunctions(issuer, mailbox),
            NetFunctions: NetFunctions(issuer, network),
        }

    def functions(self, trait: type[F]) -> F:
        """The functions of one trait."""
        made = self._traits.get(trait)
        if made is None:
            made = self._traits[trait] = trait(self.issuer)
        return cast(F, made)

    @property
    def program(self) -> ProgramId:
        return self.issuer.program

    def close(self, reason: str = "finished") -> None:
        """End the program and free what it holds. The runtime does this for its programs."""
        self.issuer.close(reason)


def connect_api(
    connect: Callable[[ReplySink, asyncio.AbstractEventLoop], ProgramPort],
    *,
    args: Sequence[str] = (),
    mailbox: ProgramMailbox | None = None,
    network: Network | None = None,
    on_end: Callable[[QuireError], None] | None = None,
) -> Api:
    """An ``Api`` on the running loop over the port that ``connect`` creates.

    For trusted code that no runtime launches, such as a server's sessions and tests. The caller
    must call ``api.close()``. ``on_end`` is called when the node has ended the program.
    """
    loop = asyncio.get_running_loop()
    issuer = Issuer(loop, on_end)
    issuer.attach(connect(issuer, loop))
    return Api(issuer, args=args, mailbox=mailbox, network=network)
