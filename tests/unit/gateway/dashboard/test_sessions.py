"""A session is an officer's, for a time, while the key is valid; no other cookie is one."""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from privalign.gateway.dashboard.sessions import TRIES, TRIES_WITHIN, Sessions, Tries, same_origin, visitor
from privalign.ledger import Role

LIFETIME = 3600.0


def sessions_of(town: Any, secret: bytes = b"s" * 32) -> Sessions:
    return Sessions(town.ledger, secret, LIFETIME, town.clock)


def test_a_session_lasts_its_time(town: Any) -> None:
    sessions, key = sessions_of(town), town.ledger.authenticate(town.officer)
    cookie = sessions.begin(key)
    session = sessions.of(cookie)
    assert session is not None
    assert session.key == key.id
    town.clock.now += LIFETIME - 1
    assert sessions.of(cookie) == session
    town.clock.now += 1
    assert sessions.of(cookie) is None


def test_revoking_the_key_ends_it_at_once(town: Any) -> None:
    sessions, key = sessions_of(town), town.ledger.authenticate(town.officer)
    cookie = sessions.begin(key)
    town.ledger.revoke_key(key.id)
    assert sessions.of(cookie) is None


def test_it_ends_with_its_key(town: Any) -> None:
    made = town.ledger.create_key(Role.OFFICER, expires=datetime.fromtimestamp(town.clock.now + 60, UTC))
    sessions = sessions_of(town)
    cookie = sessions.begin(made.key)
    assert sessions.of(cookie) is not None
    town.clock.now += 60
    assert sessions.of(cookie) is None


def test_a_client_has_no_session_even_with_a_signature(town: Any) -> None:
    sessions = sessions_of(town)
    assert sessions.of(sessions.begin(town.ledger.authenticate(town.client))) is None


def test_logging_out_ends_this_one_alone(town: Any) -> None:
    sessions, key = sessions_of(town), town.ledger.authenticate(town.officer)
    first, second = sessions.begin(key), sessions.begin(key)
    session = sessions.of(first)
    assert session is not None
    sessions.end(session)
    assert sessions.of(first) is None
    assert sessions.of(second) is not None


def test_replicas_share_sessions_and_strangers_do_not(town: Any) -> None:
    cookie = sessions_of(town).begin(town.ledger.authenticate(town.officer))
    assert sessions_of(town).of(cookie) is not None
    assert sessions_of(town, b"t" * 32).of(cookie) is None


def test_no_changed_cookie_is_one(town: Any) -> None:
    sessions = sessions_of(town)
    cookie = sessions.begin(town.ledger.authenticate(town.officer))

    @given(position=st.integers(0, len(cookie) - 1), character=st.characters(min_codepoint=33, max_codepoint=255))
    def changed(position: int, character: str) -> None:
        other = cookie[:position] + character + cookie[position + 1 :]
        assert (sessions.of(other) is not None) == (other == cookie)

    changed()
    later = cookie.split(".")
    later[2] = str(int(later[2]) + 1)
    for nonsense in (None, "", ".", "...", cookie[:-1], cookie + "0", ".".join(later), "é" * 200):
        assert sessions.of(nonsense) is None


def test_wrong_keys_are_counted_by_address_and_forgotten(town: Any) -> None:
    tries = Tries(town.clock)
    for _ in range(TRIES):
        assert tries.wait("2001:db8::1") == 0
        tries.failed("2001:db8::1")
    assert 0 < tries.wait("2001:db8::2") <= TRIES_WITHIN  # the same host, by any address of its network
    assert tries.wait("2001:db8:0:1::1") == tries.wait("192.0.2.1") == tries.wait("") == 0
    town.clock.now += TRIES_WITHIN
    assert tries.wait("2001:db8::1") == 0


def test_every_ipv4_host_counts_alone_on_a_socket_for_both(town: Any) -> None:
    tries = Tries(town.clock)
    for _ in range(TRIES):
        tries.failed("::ffff:192.0.2.1")
    assert tries.wait("192.0.2.1") > 0
    assert tries.wait("::ffff:192.0.2.2") == 0


def test_a_clock_that_is_set_back_locks_nobody_out_and_revives_no_session(town: Any) -> None:
    made = town.ledger.create_key(Role.OFFICER, expires=datetime.fromtimestamp(town.clock.now + 60, UTC))
    sessions, tries = sessions_of(town), Tries(town.clock)
    cookie = sessions.begin(made.key)
    town.clock.now += 60
    assert sessions.of(cookie) is None
    for _ in range(TRIES):
        tries.failed("192.0.2.1")
    town.clock.now -= 3 * LIFETIME
    assert sessions.of(cookie) is None
    assert sessions.of(sessions.begin(town.ledger.authenticate(town.officer))) is not None
    assert tries.wait("192.0.2.1") == 0
    tries.failed("192.0.2.1")
    assert tries.wait("192.0.2.1") == 0


@pytest.mark.parametrize(
    ("client", "forwarded", "address"),
    [
        ("127.0.0.1", ["192.0.2.1"], "192.0.2.1"),
        ("127.0.0.1", ["203.0.113.9, 192.0.2.1"], "192.0.2.1"),  # what the visitor wrote itself stands further left
        ("127.0.0.1", ["203.0.113.9", "192.0.2.1"], "192.0.2.1"),
        ("127.0.0.1", ["203.0.113.9, 192.0.2.1, 10.1.2.3"], "192.0.2.1"),  # through two trusted ones
        ("::ffff:127.0.0.1", ["2001:db8::1"], "2001:db8::1"),
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", [""], "127.0.0.1"),
        ("127.0.0.1", ["192.0.2.1, unknown"], "127.0.0.1"),
        ("127.0.0.1", ["10.0.0.1, 10.0.0.2"], "10.0.0.1"),
        ("192.0.2.7", ["203.0.113.9"], "192.0.2.7"),  # who is no proxy of ours says what it likes
    ],
)
def test_the_visitor_behind_a_proxy_that_is_trusted(client: str, forwarded: list[str], address: str) -> None:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    request = Request({"type": "http", "method": "POST", "path": "/", "headers": headers, "client": (client, 1)})
    assert visitor(request, [ip_network("127.0.0.1"), ip_network("10.0.0.0/8")]) == address
    assert visitor(request, []) == client


def test_addresses_do_not_fill_the_memory(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privalign.gateway.dashboard.sessions.MOST_REMEMBERED", 50)
    tries = Tries(town.clock)
    for number in range(500):
        tries.failed(f"192.0.{number // 250}.{number % 250}")
    assert len(tries._failed) == 50


@pytest.mark.parametrize(
    ("headers", "own"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-site", "origin": "https://gateway.example"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "http://gateway.example"}, True),
        ({"origin": "http://gateway.example.evil.example"}, False),
        ({"origin": "null"}, False),
        ({}, False),
    ],
)
def test_forms_come_from_the_own_site(headers: dict[str, str], own: bool) -> None:
    raw = [(name.encode(), value.encode()) for name, value in {"host": "gateway.example", **headers}.items()]
    assert same_origin(Request({"type": "http", "method": "POST", "path": "/", "headers": raw})) is own
