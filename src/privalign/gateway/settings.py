"""How the gateway serves, apart from what it serves: limits, waits and what clients may see. All of it is public."""

from __future__ import annotations

import math
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from privalign.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The `[gateway]` table of a deployment file.

    Args:
        allow_anonymous: clients without a key may ask every model. Metrics and dashboard need an officer's key all the same.
        show_budget: clients see what remains of an account, and what a refused query asked for.
        max_body: bytes of a request's body.
        max_depth: arrays and objects within each other in a body.
        body_timeout: seconds that a body may take to arrive whole, and likewise the headers of a new connection.
        max_n: choices that one request may ask for; each is a selection of its own, and charged.
        max_concurrency: requests for answers under way at a time; more are refused. `max_concurrency_of_key`: of one key.
        requests_per_minute: of one key without a rate of its own, on average; `burst` of them at once.
        ping_every: seconds between comments that keep a stream open while its answer is selected.
        shutdown_grace: seconds that requests under way may take once the gateway is told to stop.
        session_lifetime: seconds until an officer's dashboard session ends.
        secure_cookies: cookies of the dashboard travel over https only; false where no TLS proxy stands in front.
        trusted_proxies: addresses or networks whose `X-Forwarded-For` names the visitor. Only the dashboard's count of wrong
            keys asks; without it that counts all who come through a proxy together.

    Raises:
        InvalidInput: a limit is out of its range.
    """

    allow_anonymous: bool = False
    show_budget: bool = True
    max_body: int = 4 * 2**20
    max_depth: int = 64
    body_timeout: float = 30.0
    max_n: int = 16
    max_concurrency: int = 256
    max_concurrency_of_key: int = 128
    requests_per_minute: float = 6000.0
    burst: int = 200
    ping_every: float = 10.0
    shutdown_grace: float = 30.0
    session_lifetime: float = 8 * 3600.0
    secure_cookies: bool = False
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()

    def __post_init__(self) -> None:
        for name in ("max_body", "max_depth", "max_n", "max_concurrency", "max_concurrency_of_key", "burst"):
            if getattr(self, name) < 1:
                raise InvalidInput(name, f"{getattr(self, name)} is below 1")
        for name in ("body_timeout", "requests_per_minute", "ping_every", "shutdown_grace", "session_lifetime"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidInput(name, f"{getattr(self, name)} is not a finite number above 0")
