"""Who is logged in: a signed cookie that names an officer's key and an hour, and nothing else.

A session ends when its key is revoked or expires, which is looked up anew for every page, when the officer logs out, or
after its lifetime. The cookie carries no right of its own: it cannot ask for answers, and it cannot be made from a key's id
without the installation's secret. Replicas that share that secret share sessions; a log-out is known to the replica
that took it, and the browser forgets the cookie in any case.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from starlette.requests import Request

from privalign.ledger import Key, KeyRefused, Ledger, Role

Network = IPv4Network | IPv6Network
TRIES, TRIES_WITHIN = 10, 60.0  # wrong keys from one address, and seconds
MOST_REMEMBERED = 10_000  # addresses, and log-outs: the oldest are forgotten


@dataclass(frozen=True, slots=True)
class Session:
    """An officer who is logged in until `ends` (seconds since 1970)."""

    id: str
    key: str
    ends: int


class Sessions:
    """Makes and reads session cookies.

    Args:
        ledger: knows the keys.
        secret: of the installation; at least 32 bytes.
        lifetime: seconds that a session lasts at most.
        clock: seconds since 1970.
    """

    def __init__(self, ledger: Ledger, secret: bytes, lifetime: float, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._signing_key = hmac.digest(secret, b"privalign dashboard session", "sha256")
        self._lifetime = lifetime
        self._clock = clock
        self._latest = -math.inf
        self._ended: OrderedDict[str, int] = OrderedDict()

    def begin(self, key: Key) -> str:
        """The cookie of a new session of this officer."""
        ends = int(self._now() + self._lifetime)
        if key.expires is not None:
            ends = min(ends, int(key.expires.timestamp()))
        said = f"{secrets.token_hex(16)}.{key.id}.{ends}"
        return f"{said}.{self._sign(said)}"

    def of(self, cookie: str | None) -> Session | None:
        """The session of a cookie, or None where it is none, has ended, or its key is no officer's any more.

        Raises:
            LedgerFailed: the ledger cannot be read.
        """
        said, _, signature = (cookie or "").rpartition(".")
        if not hmac.compare_digest(self._sign(said).encode(), signature.encode("utf-8", "replace")):
            return None
        identity, key, ends = said.split(".")
        session, now = Session(identity, key, int(ends)), self._now()
        if session.ends <= now or session.id in self._ended or not self._still_officer(session.key):
            return None
        return session

    def end(self, session: Session) -> None:
        """Ends a session before its time."""
        self._ended[session.id] = session.ends
        while len(self._ended) > MOST_REMEMBERED:
            self._ended.popitem(last=False)

    def _still_officer(self, identity: str) -> bool:
        """Read from the ledger for every page: revoking a key ends its sessions at once."""
        try:
            return self._ledger.valid_key(identity).role is Role.OFFICER
        except KeyRefused:
            return False

    def _now(self) -> float:
        """The latest time that was seen: a clock that is set back revives neither a session nor an expired key."""
        self._latest = max(self._latest, self._clock())
        return self._latest

    def _sign(self, said: str) -> str:
        return hmac.new(self._signing_key, said.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


class Tries:
    """Counts wrong keys by address: ten a minute. Keys cannot be guessed anyway; this keeps guessers from costing anything."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()  # how many, since when

    def wait(self, address: str) -> int:
        """Seconds until this address may try again; 0: now."""
        with self._lock:
            count, since = self._failed.get(_network(address), (0, 0.0))
            left = since + TRIES_WITHIN - self._clock()
            return max(1, round(left)) if count >= TRIES and 0 < left <= TRIES_WITHIN else 0

    def failed(self, address: str) -> None:
        """Counts a wrong key."""
        network, now = _network(address), self._clock()
        with self._lock:
            count, since = self._failed.pop(network, (0, now))
            self._failed[network] = (count + 1, since) if 0 <= now - since < TRIES_WITHIN else (1, now)
            while len(self._failed) > MOST_REMEMBERED:
                self._failed.popitem(last=False)


def same_origin(request: Request) -> bool:
    """Whether a form was sent from this site: by the browser's own word, which pages cannot forge; without any, no."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc == request.headers.get("host")


def visitor(request: Request, proxies: Sequence[Network]) -> str:
    """The address that a request came from: as long as that is a trusted proxy's, the one that this proxy put last into
    `X-Forwarded-For`. What anybody else wrote there is never reached.
    """
    address = request.client.host if request.client else ""
    for hop in reversed(",".join(request.headers.getlist("x-forwarded-for")).split(",")):
        parsed = _parsed(address)
        if parsed is None or not any(parsed in network for network in proxies) or _parsed(hop.strip()) is None:
            break
        address = hop.strip()
    return address


def _network(address: str) -> str:
    """An IPv6 host owns a /64; anything else is itself."""
    parsed = _parsed(address)
    return address if parsed is None else str(int(parsed) >> 64) if isinstance(parsed, IPv6Address) else str(parsed)


def _parsed(address: str) -> IPv4Address | IPv6Address | None:
    """Of an IPv4 address in an IPv6 one, as sockets for both show it, the former."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return None
    return (isinstance(parsed, IPv6Address) and parsed.ipv4_mapped) or parsed
