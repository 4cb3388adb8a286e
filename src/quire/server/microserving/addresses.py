"""``kv_addr_info``: the text that a client carries from the receiver of K and V to the sender, and
back.

Owns its form and its signature, and who may ask for one: senders of the cluster key. It does not
contain the lease's own key: both nodes derive that from the cluster key and a number. Must not know
routes or programs.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable

import msgspec
from starlette.datastructures import Headers

from quire.core.errors import Forbidden, InvalidArgument, Unauthorized, UnknownHandle
from quire.core.exchange import CLUSTER_KEY_HEADER, KEY_BYTES, SendTarget
from quire.core.ids import EngineId, ModelId, TenantId
from quire.core.lease_commands import LeaseName

_SIGNATURE_BYTES = 32
_NONCE_BYTES = 16


class KvAddress(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The data of one lease that a sender needs. The lease waits for tokens ``begin`` to before
    ``end`` of the prompt whose first ``end`` tokens have the digest ``tokens``; the lease's key is
    derived from ``nonce``."""

    tenant: TenantId
    model: ModelId
    engine: EngineId
    epoch: int
    lease: int
    nonce: bytes
    data_address: str
    content: str
    adapter: str | None
    begin: int
    end: int
    tokens: bytes
    expires_unix_s: float


class KvAddresses:
    """Signs addresses with ``cluster_key`` and reads them. ``unix_s`` returns the time.

    Raises (every method):
        Unauthorized: the node has no cluster key.
    """

    def __init__(self, cluster_key: str | None, unix_s: Callable[[], float]) -> None:
        self._cluster_key = None if cluster_key is None else cluster_key.encode()
        self.unix_s = unix_s

    def require_key(self) -> bytes:
        if self._cluster_key is None:
            raise Unauthorized(
                "this node has no cluster key, so it exchanges no K and V with others: start it "
                "with --cluster-key-file, with the same key as the other nodes"
            )
        return self._cluster_key

    def check_sender(self, headers: Headers) -> None:
        """Check that the sender of ``headers`` knows the cluster key.

        Raises:
            Unauthorized: no key was sent.
            Forbidden: another key was sent.
        """
        key, sent = self.require_key(), headers.get(CLUSTER_KEY_HEADER)
        if sent is None:
            raise Unauthorized(
                "no cluster key was sent: nodes and routers of the cluster send it as "
                f"{CLUSTER_KEY_HEADER}"
            )
        if not hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), key):
            raise Forbidden(
                f"{CLUSTER_KEY_HEADER} is not this node's cluster key: give all nodes and routers "
                "of the cluster the same --cluster-key-file"
            )

    def new_nonce(self) -> bytes:
        return secrets.token_bytes(_NONCE_BYTES)

    def lease_key(self, nonce: bytes) -> bytes:
        """Return the key of the lease that is opened with ``nonce``."""
        return self._digest(b"lease", nonce)[:KEY_BYTES]

    def seal(self, address: KvAddress) -> str:
        packed = msgspec.msgpack.encode(address)
        signed = packed + self._digest(b"address", packed)
        return base64.urlsafe_b64encode(signed).decode().rstrip("=")

    def open(self, kv_addr_info: str, tenant: TenantId) -> KvAddress:
        """Return the address that ``kv_addr_info`` encodes.

        Raises:
            InvalidArgument: it is no address.
            Forbidden: another key has signed it, or it is another tenant's.
            UnknownHandle: its lease has expired.
        """
        address = self._read(kv_addr_info)
        if address.tenant != tenant:
            raise Forbidden(
                f"lease {address.lease} of engine {address.engine} belongs to another tenant: "
                "call prep_recv yourself",
                param="kv_addr_info",
            )
        if self.unix_s() >= address.expires_unix_s:
            raise UnknownHandle(
                f"lease {address.lease} of engine {address.engine} has expired: call prep_recv "
                "again",
                param="kv_addr_info",
            )
        return address

    def identity(self, kv_addr_info: str) -> bytes:
        """Return what identifies the lease, and stays when it is renewed or has expired; of what is
        no address, the text itself."""
        try:
            address = self._read(kv_addr_info)
        except (InvalidArgument, Forbidden):
            return kv_addr_info.encode()
        return msgspec.msgpack.encode(msgspec.structs.replace(address, expires_unix_s=0.0))

    def _read(self, kv_addr_info: str) -> KvAddress:
        signed = _decoded(kv_addr_info)
        packed, signature = signed[:-_SIGNATURE_BYTES], signed[-_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._digest(b"address", packed)):
            raise Forbidden(
                "kv_addr_info was not signed with this node's cluster key: pass on what prep_recv "
                "of a node of the same cluster has answered, unchanged",
                param="kv_addr_info",
            )
        try:
            return msgspec.msgpack.decode(packed, type=KvAddress)
        except msgspec.DecodeError as exc:
            raise InvalidArgument(
                f"kv_addr_info was made by another release of quire: {exc}", param="kv_addr_info"
            ) from exc

    def target(self, address: KvAddress) -> SendTarget:
        """Return where to send the first of the tokens that the lease waits for."""
        return SendTarget(
            address=address.data_address,
            lease=address.lease,
            key=self.lease_key(address.nonce),
            first=0,
        )

    def lease(self, address: KvAddress) -> LeaseName:
        """Return the name of the lease on its own node."""
        return LeaseName(
            address.engine, address.epoch, address.lease, self.lease_key(address.nonce)
        )

    def _digest(self, purpose: bytes, message: bytes) -> bytes:
        return hmac.new(self.require_key(), purpose + b"\0" + message, hashlib.sha256).digest()


def _decoded(kv_addr_info: str) -> bytes:
    try:
        signed = base64.b64decode(
            kv_addr_info + "=" * (-len(kv_addr_info) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, ValueError) as exc:
        raise _not_one() from exc
    if len(signed) <= _SIGNATURE_BYTES:
        raise _not_one()
    return signed


def _not_one() -> InvalidArgument:
    return InvalidArgument(
        "kv_addr_info is not what prep_recv answers: pass its answer on, unchanged",
        param="kv_addr_info",
    )
