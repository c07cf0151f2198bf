"""The `[gateway]` table."""

from __future__ import annotations

from ipaddress import ip_network

from privalign.deployment.tables import Table
from privalign.gateway.settings import GatewaySettings

_DEFAULTS = GatewaySettings()


def read_gateway(table: Table) -> GatewaySettings:
    """The settings of the gateway; an empty table, or none, is all defaults.

    Raises:
        InvalidInput: names the key, its value and the remedy. Serving without keys is no setting of the file: it is asked
            for where the gateway is started, by `--allow-anonymous`.
    """
    counts = ("max_body", "max_depth", "max_n", "max_concurrency", "max_concurrency_of_key", "burst")
    durations = ("body_timeout", "ping_every", "shutdown_grace", "session_lifetime")
    flags = ("show_budget", "secure_cookies")
    per_minute = table.number("requests_per_minute", _DEFAULTS.requests_per_minute)
    if per_minute <= 0:
        raise table.wrong("requests_per_minute", f"{per_minute:g} is not above 0")
    try:
        proxies = tuple(map(ip_network, table.names("trusted_proxies", ())))
    except ValueError as error:
        raise table.wrong("trusted_proxies", f"{error}; give addresses or networks, as in ['127.0.0.1', '10.0.0.0/8']") from None
    settings = GatewaySettings(
        **{name: table.whole(name, getattr(_DEFAULTS, name)) for name in counts},
        **{name: table.duration(name, getattr(_DEFAULTS, name)) for name in durations},
        **{name: table.flag(name, getattr(_DEFAULTS, name)) for name in flags},
        requests_per_minute=per_minute,
        trusted_proxies=proxies,
    )
    table.close()
    return settings
