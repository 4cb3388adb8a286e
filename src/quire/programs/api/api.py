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
from quire.programs.api.adapter import Adapter
from quire.programs.api.allocate import Allocate
from quire.programs.api.core import Core, Log, log_to_process
from quire.programs.api.decode import Decode
from quire.programs.api.documents import Documents
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
from quire.programs.api.reposition import Reposition
from quire.programs.api.sample import Sample
from quire.programs.api.scores import Scores
from quire.programs.api.search import Search
from quire.programs.api.store import Store
from quire.programs.api.tokenize import Tokenize
from quire.programs.api.vectors import Vectors
from quire.programs.services.mailbox import Mailbox
from quire.programs.services.network import Network

TRAIT_FUNCTIONS: dict[Trait, type[TraitFunctions]] = {
    functions.trait: functions
    for functions in (
        Core, Messaging, Net, Store, Allocate, Forward, InputText, InputImage, Tokenize, OutputText,
        Sample, Decode, Grammar, Adapter, Scores, Reposition, Encode,
        Documents, Vectors, Search,
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

    get_arg = bound(Core, lambda trait: trait.get_arg)
    available_models = bound(Core, lambda trait: trait.available_models)
    available_traits = bound(Core, lambda trait: trait.available_traits)
    create_queue = bound(Core, lambda trait: trait.create_queue)
    synchronize = bound(Core, lambda trait: trait.synchronize)
    set_queue_priority = bound(Core, lambda trait: trait.set_queue_priority)
    set_queue_depth = bound(Core, lambda trait: trait.set_queue_depth)
    reset_queue = bound(Core, lambda trait: trait.reset_queue)
    close_queue = bound(Core, lambda trait: trait.close_queue)
    sleep = bound(Core, lambda trait: trait.sleep)
    now = bound(Core, lambda trait: trait.now)
    monotonic = bound(Core, lambda trait: trait.monotonic)
    random = bound(Core, lambda trait: trait.random)
    log = bound(Core, lambda trait: trait.log)
    launch = bound(Core, lambda trait: trait.launch)
    join = bound(Core, lambda trait: trait.join)
    cancel = bound(Core, lambda trait: trait.cancel)
    send = bound(Messaging, lambda trait: trait.send)
    receive = bound(Messaging, lambda trait: trait.receive)
    broadcast = bound(Messaging, lambda trait: trait.broadcast)
    subscribe = bound(Messaging, lambda trait: trait.subscribe)
    push = bound(Messaging, lambda trait: trait.push)
    pull = bound(Messaging, lambda trait: trait.pull)
    http_get = bound(Net, lambda trait: trait.http_get)
    http_post = bound(Net, lambda trait: trait.http_post)
    http_stream = bound(Net, lambda trait: trait.http_stream)
    mcp_connect = bound(Net, lambda trait: trait.mcp_connect)
    available_encoders = bound(Encode, lambda trait: trait.available_encoders)
    embed = bound(Encode, lambda trait: trait.embed)
    rerank = bound(Encode, lambda trait: trait.rerank)
    read_document = bound(Documents, lambda trait: trait.read_document)
    vectors_name = bound(Vectors, lambda trait: trait.vectors_name)
    vectors_put = bound(Vectors, lambda trait: trait.vectors_put)
    vectors_search = bound(Vectors, lambda trait: trait.vectors_search)
    vectors_drop = bound(Vectors, lambda trait: trait.vectors_drop)
    vectors_list = bound(Vectors, lambda trait: trait.vectors_list)
    available_search = bound(Search, lambda trait: trait.available_search)
    search = bound(Search, lambda trait: trait.search)
    store_put = bound(Store, lambda trait: trait.store_put)
    store_get = bound(Store, lambda trait: trait.store_get)
    store_delete = bound(Store, lambda trait: trait.store_delete)
    store_list = bound(Store, lambda trait: trait.store_list)
    store_compare_and_set = bound(Store, lambda trait: trait.store_compare_and_set)
    blob_put = bound(Store, lambda trait: trait.blob_put)
    blob_get = bound(Store, lambda trait: trait.blob_get)
    blob_delete = bound(Store, lambda trait: trait.blob_delete)
    blob_list = bound(Store, lambda trait: trait.blob_list)
    alloc_kvpage = bound(Allocate, lambda trait: trait.alloc_kvpage)
    dealloc_kvpage = bound(Allocate, lambda trait: trait.dealloc_kvpage)
    alloc_emb = bound(Allocate, lambda trait: trait.alloc_emb)
    dealloc_emb = bound(Allocate, lambda trait: trait.dealloc_emb)
    export_kvpage = bound(Allocate, lambda trait: trait.export_kvpage)
    release_export = bound(Allocate, lambda trait: trait.release_export)
    list_exports = bound(Allocate, lambda trait: trait.list_exports)
    import_kvpage = bound(Allocate, lambda trait: trait.import_kvpage)
    import_text = bound(Allocate, lambda trait: trait.import_text)
    import_prefix = bound(Allocate, lambda trait: trait.import_prefix)
    copy_kvpage = bound(Allocate, lambda trait: trait.copy_kvpage)
    truncate_kvpage = bound(Allocate, lambda trait: trait.truncate_kvpage)
    forward = bound(Forward, lambda trait: trait.forward)
    mask_kvpage = bound(Forward, lambda trait: trait.mask_kvpage)
    available_adapters = bound(Adapter, lambda trait: trait.available_adapters)
    forward_with_adapter = bound(Adapter, lambda trait: trait.forward_with_adapter)
    forward_with_scores = bound(Scores, lambda trait: trait.forward_with_scores)
    reposition_kvpage = bound(Reposition, lambda trait: trait.reposition_kvpage)
    num_embs_needed = bound(InputImage, lambda trait: trait.num_embs_needed)
    embed_img = bound(InputImage, lambda trait: trait.embed_img)
    embed_txt = bound(InputText, lambda trait: trait.embed_txt)
    tokenize = bound(Tokenize, lambda trait: trait.tokenize)
    detokenize = bound(Tokenize, lambda trait: trait.detokenize)
    get_vocabs = bound(Tokenize, lambda trait: trait.get_vocabs)
    get_next_dist = bound(OutputText, lambda trait: trait.get_next_dist)
    get_next_dists = bound(OutputText, lambda trait: trait.get_next_dists)
    sample = bound(Sample, lambda trait: trait.sample)
    alloc_token_slot = bound(Sample, lambda trait: trait.alloc_token_slot)
    decode = bound(Decode, lambda trait: trait.decode)
    json_schema = bound(Grammar, lambda trait: trait.json_schema)
    regex = bound(Grammar, lambda trait: trait.regex)
    lark = bound(Grammar, lambda trait: trait.lark)
    choice = bound(Grammar, lambda trait: trait.choice)

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
        self._traits: dict[type[TraitFunctions], TraitFunctions] = {
            Core: Core(issuer, args, log),
            Messaging: Messaging(issuer, mailbox),
            Net: Net(issuer, network),
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
    mailbox: Mailbox | None = None,
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
