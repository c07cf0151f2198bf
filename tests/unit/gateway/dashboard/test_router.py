"""The pages over HTTP: who sees them, what they say, and how they fail."""

from __future__ import annotations

import html
import json
import re
import sqlite3
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from privalign.accounting.rules import Basic
from privalign.aligner import ServedModel
from privalign.gateway.dashboard import make_router
from privalign.gateway.dashboard.sessions import TRIES
from privalign.gateway.logs import JsonLines
from privalign.ledger import LedgerBehind, LedgerFailed
from privalign.mechanisms.bon import BoN
from privalign.mechanisms.privbon import PrivBoN
from privalign.policies.recorded import RecordedPolicy
from privalign.rewards.recorded import RecordedReward
from privalign.sensitivity import HeadRelease, Relation, RewardRange, Sensitivity

OWN = {"sec-fetch-site": "same-origin"}
PAGES = ("", "/", "/accounts/prefs", "/accounts/prefs?horizon=hour", "/accounts/prefs/journal", "/accounts/prefs/verify", "/keys")
UNIT = RewardRange(0.0, 1.0)


def client_of(town: Any, *, https: bool = False, **options: object) -> TestClient:
    app = FastAPI(redirect_slashes=False)
    app.include_router(make_router(town.ledger, b"s" * 32, clock=town.clock, **options))  # type: ignore[arg-type]
    return TestClient(app, base_url=f"http{'s' * https}://gateway.example", follow_redirects=False, raise_server_exceptions=False)


@pytest.fixture
def visitor(town: Any) -> Iterator[TestClient]:
    with client_of(town) as client:
        yield client


@pytest.fixture
def officer(town: Any, visitor: TestClient) -> TestClient:
    assert visitor.post("/dashboard/login", data={"key": town.officer}, headers=OWN).status_code == 303
    return visitor


def text_of(page: str) -> str:
    """What a reader sees of a page, on one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


@pytest.mark.parametrize("path", PAGES)
def test_every_page_needs_a_login(visitor: TestClient, path: str) -> None:
    answer = visitor.get(f"/dashboard{path}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/login")
    assert answer.content == b""
    live = visitor.get(f"/dashboard{path}", headers={"x-privalign-live": "1"})
    assert live.status_code == 401
    assert "prefs" not in live.text


@pytest.mark.parametrize("path", PAGES)
def test_every_page_stands_alone(officer: TestClient, path: str, town: Any) -> None:
    """No inline script or style, nothing from elsewhere; its head is its page without the body."""
    town.answer(20)
    answer = officer.get(f"/dashboard{path}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?! src=)|https?://", answer.text)
    for address in re.findall(r'(?:src|href)="([^"#]*)"', answer.text):
        assert address.startswith("/dashboard")
        assert officer.get(html.unescape(address)).status_code == 200
    assert officer.head(f"/dashboard{path}").status_code == 200


def landmarks(page: str) -> list[tuple[str, str]]:
    """Role and name of everything that a screen reader lists as a landmark."""
    named = dict(re.findall(r'<h[1-3] id="([^"]+)">([^<]*)</h', page))
    found = [("region", named[heading]) for heading in re.findall(r'<section[^>]* aria-labelledby="([^"]+)"', page)]
    found += [
        ("region", label)
        for label in re.findall(r'<section[^>]* aria-label="([^"]+)"|role="region" aria-label="([^"]+)"', page)
        for label in label
        if label
    ]
    return found + [("navigation", label) for label in re.findall(r'<nav[^>]* aria-label="([^"]+)"', page)]


@pytest.mark.parametrize("path", PAGES)
def test_no_two_landmarks_of_a_page_have_one_name(officer: TestClient, town: Any, path: str) -> None:
    town.answer(20)
    town.ledger.raise_budget("prefs", 9.5, "agreed")
    found = landmarks(officer.get(f"/dashboard{path}").text)
    assert found
    assert len(set(found)) == len(found), found


def test_no_page_reads_the_other_keys_but_their_own(officer: TestClient, town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks is looked up for every page, and every few seconds by those that are open."""
    monkeypatch.setattr(town.ledger, "keys", lambda: pytest.fail("all keys were read"))
    for path in (*PAGES, "/login", "/static/dashboard.css", "/nothing"):
        if path != "/keys":
            assert officer.get(f"/dashboard{path}").status_code < 500


def test_the_price_of_the_first_answer_stands_beside_what_is_spent(officer: TestClient, town: Any) -> None:
    """After a single answer under renyi about half is spent: who sees that must see why."""
    for path in ("", "/accounts/prefs"):
        assert "The first answer will commit ε" in text_of(officer.get(f"/dashboard{path}").text)
    town.ledger.settle(town.ledger.reserve("prefs", [town.event]), [town.event])
    for path in ("", "/accounts/prefs"):
        assert "was committed by the first answer, once" in text_of(officer.get(f"/dashboard{path}").text)
    town.ledger.create_account("plain", Basic(12.0, 1e-6, 1e-10))
    page = text_of(officer.get("/dashboard/accounts/plain").text)
    assert "first answer" not in page
    assert "more than 162,800 times as probable" in page  # e^12 = 162,754.8


def test_what_is_spent_is_said_to_be_no_odometer(officer: TestClient) -> None:
    """Wherever it is shown in large figures."""
    for path in ("", "/accounts/prefs"):
        assert "promised the whole budget, not what was spent by then" in text_of(officer.get(f"/dashboard{path}").text)


def test_pages_are_not_indented_into_the_frame_when_asked_live(officer: TestClient) -> None:
    live = officer.get("/dashboard", headers={"x-privalign-live": "1"}).text
    assert live.startswith("<main>")
    assert "<html" not in live
    assert "<script" not in live


def test_clients_are_refused(town: Any, visitor: TestClient) -> None:
    answer = visitor.post("/dashboard/login", data={"key": town.client}, headers=OWN)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert town.client not in answer.text


@pytest.mark.parametrize("key", ["", "pa_", "pa_0123_0123", "x" * 500, "pa_\x00_\x00", "pa_é_é", "<script>"])
def test_wrong_keys_are_refused(visitor: TestClient, key: str) -> None:
    answer = visitor.post("/dashboard/login", data={"key": key}, headers=OWN)
    assert answer.status_code == 401
    assert "unknown, expired or revoked" in answer.text
    assert "<script>" not in answer.text


def test_guessing_is_slowed_down(town: Any, visitor: TestClient) -> None:
    for _ in range(TRIES):
        assert visitor.post("/dashboard/login", data={"key": "pa_1_1"}, headers=OWN).status_code == 401
    answer = visitor.post("/dashboard/login", data={"key": town.officer}, headers=OWN)
    assert answer.status_code == 429
    town.clock.now += int(answer.headers["retry-after"])
    assert visitor.post("/dashboard/login", data={"key": town.officer}, headers=OWN).status_code == 303


def test_one_guesser_behind_a_trusted_proxy_does_not_lock_the_officers_out(town: Any) -> None:
    with client_of(town, trusted_proxies=[ip_network("127.0.0.1")]) as client:
        proxied = TestClient(client.app, base_url=str(client.base_url), follow_redirects=False, client=("127.0.0.1", 1))

        def log_in(key: str, forwarded: str) -> int:
            return proxied.post("/dashboard/login", data={"key": key}, headers={**OWN, "x-forwarded-for": forwarded}).status_code

        assert [log_in("pa_1_1", f"198.51.100.{number}, 192.0.2.1") for number in range(TRIES + 1)] == [401] * TRIES + [429]
        assert log_in(town.officer, "192.0.2.1") == 429
        assert log_in(town.officer, "192.0.2.2") == 303


@pytest.mark.parametrize("headers", [{}, {"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}])
def test_other_sites_can_neither_log_in_nor_out(town: Any, officer: TestClient, headers: dict[str, str]) -> None:
    for path in ("login", "logout"):
        answer = officer.post(f"/dashboard/{path}", data={"key": town.officer}, headers=headers)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
    assert officer.get("/dashboard").status_code == 200


def test_long_forms_are_refused(visitor: TestClient) -> None:
    assert visitor.post("/dashboard/login", data={"key": "x" * 5000}, headers=OWN).status_code == 413
    assert visitor.post("/dashboard/login", content=b"key=a&" * 50, headers=OWN).status_code == 400


@pytest.mark.parametrize(("https", "secure"), [(False, False), (True, False), (False, True)])
def test_cookies_are_kept_from_scripts_sites_and_wires(town: Any, https: bool, secure: bool) -> None:
    with client_of(town, https=https, secure_cookies=secure) as client:
        cookie = client.post("/dashboard/login", data={"key": town.officer}, headers=OWN).headers["set-cookie"]
    name, *attributes = (part.strip().lower() for part in cookie.split(";"))
    assert {"httponly", "samesite=strict", "path=/"} <= set(attributes)
    assert ("secure" in attributes) == name.startswith("__host-") == (https or secure)
    assert town.officer not in cookie


def test_logging_out(officer: TestClient) -> None:
    cookie = officer.cookies["privalign"]
    answer = officer.post("/dashboard/logout", headers=OWN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/login")
    assert officer.get("/dashboard").status_code == 303
    assert officer.get("/dashboard", headers={"cookie": f"privalign={cookie}"}).status_code == 303


def test_revoking_the_officers_key_shuts_the_page(town: Any, officer: TestClient) -> None:
    town.ledger.revoke_key(town.officer.split("_")[1])
    assert officer.get("/dashboard").status_code == 303


def test_an_account_page_tells_the_whole_story(town: Any, officer: TestClient) -> None:
    town.answer(40)
    town.refuse()
    town.ledger.raise_budget("prefs", 9.5, "a <b>second</b> team")
    page = officer.get("/dashboard/accounts/prefs").text
    account, text = town.ledger.account("prefs"), text_of(page)
    for expected in (
        account.guarantee,
        repr(account.spent[0]),
        repr(account.remaining[0]),
        account.head,
        town.client.split("_")[1],
        "Exchanging one person's record for another of the same person makes nothing that anyone could see",
        "exchanging a record for one of another person changes the records of two",
        "a <b>second</b> team",
        "1 query was refused",
        f"{account.length} rows checked from the first on",
    ):
        assert expected in text
    assert "<b>second" not in page
    assert f'<data value="{account.spent[0]}">' in page


def bought(account: str) -> Sensitivity:
    """Of a head that this account paid for."""
    return Sensitivity(1.0, UNIT, "released", release=HeadRelease(0.5, 1e-7, 1e6, 0.4, Relation.REPLACE, 1, account))


def test_it_says_what_the_models_rest_on(town: Any) -> None:
    def model(name: str, sensitivity: Sensitivity, account: str = "prefs", mechanism: object = None) -> ServedModel:
        rule = mechanism or PrivBoN(16, 0.2)
        return ServedModel(name, RecordedPolicy("p", ["a"] * 16), RecordedReward("r", [0.0] * 16, sensitivity), rule, account)  # type: ignore[arg-type]

    models = [
        model("ranged", Sensitivity.of_range(UNIT)),
        model("proved", Sensitivity(0.01, UNIT, "certificate", Relation.REPLACE, 1)),
        model("claimed", Sensitivity(0.01, UNIT, reason="a <i>guess</i>")),
        model("bought", bought("prefs")),
        model("foreign", bought("another")),
        model("open", Sensitivity.of_range(UNIT), mechanism=BoN(16)),
        model("elsewhere", Sensitivity.of_range(UNIT), "other"),
    ]
    town.answer(1)
    with client_of(town, models=models) as client:
        client.post("/dashboard/login", data={"key": town.officer}, headers=OWN)
        page = client.get("/dashboard/accounts/prefs").text
    text = text_of(page)
    account = town.ledger.account("prefs")
    room = (account.limit - account.debited).rdp // account.rule.charge(models[1].mechanism.event(models[1].reward.sensitivity)).rdp
    for expected in (
        "ranged privbon assumption-free: Δ = 1 is the whole range",
        f"the public range [0, 1] {room:,} more at the worst case",
        "claimed privbon declared by the operator, not proved because “a <i>guess</i>”",
        "bought privbon free: the head itself was released with (0.5, 1e-07)-differential privacy against exchanging one person's "
        "record for another of the same person, paid once by account prefs; scores are clipped to the public range [0, 1] any number:",
        "account another; scores are clipped to the public range [0, 1] cannot be charged: account: the head was released with",
        "proved privbon certified: Δ = 0.01 for replace, 1 record per person, data set not stated",
        "open bon assumption-free: Δ = 1 is the whole range; scores are clipped to the public range [0, 1] cannot be charged",
    ):
        assert expected in text
    assert "elsewhere" not in text
    assert "<i>" not in page


def test_the_journal_filters_and_turns_its_pages(town: Any, officer: TestClient) -> None:
    town.answer(70)
    rows = [entry for entry in town.ledger.journal("prefs") if entry.kind == "reserve"]
    found: list[int] = []
    path: str | None = "/dashboard/accounts/prefs/journal?kind=reserve"
    while path is not None:
        page = officer.get(path).text
        found += [int(number.replace(",", "")) for number in re.findall(r'<th scope="row" class="n">([\d,]+)</th>', page)]
        older = re.search(r'href="([^"]*before=\d+)">Older', page)
        path = html.unescape(older.group(1)) if older else None
    assert found == [entry.seq for entry in reversed(rows)]
    key = town.client.split("_")[1]
    page = officer.get(f"/dashboard/accounts/prefs/journal?key={key}").text
    assert page.count(f"<td>{key}</td>") == min(50, sum(entry.note.get("api_key") == key for entry in rows))
    assert "No such rows" in officer.get('/dashboard/accounts/prefs/journal?model="><script>').text
    assert "<script>" not in officer.get('/dashboard/accounts/prefs/journal?model="><script>').text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/accounts/nobody", 404),
        ("/accounts/nobody/journal", 404),
        ("/accounts/nobody/verify", 404),
        ("/accounts/%00", 404),
        ("/accounts/..%2f..%2fetc%2fpasswd", 404),
        ("/accounts/prefs?horizon=eternity", 400),
        ("/accounts/prefs/journal?kind=theft", 400),
        ("/accounts/prefs/journal?before=-1", 400),
        ("/accounts/prefs/journal?before=99999999999999999999", 400),
        ("/accounts/prefs/journal?before=%D9%A3", 400),
        ("/static/router.py", 404),
        ("/static/..%2Frouter.py", 404),
        ("/nothing/here", 404),
    ],
)
def test_errors_are_pages(officer: TestClient, path: str, status: int) -> None:
    for method in ("GET", "HEAD"):
        answer = officer.request(method, f"/dashboard{path}")
        assert answer.status_code == status
        assert answer.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "Traceback" not in officer.get(f"/dashboard{path}").text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(officer: TestClient, method: str) -> None:
    assert officer.request(method, "/dashboard/accounts/prefs", headers=OWN).status_code == 404


def test_verifying_tells_right_from_wrong(town: Any, officer: TestClient) -> None:
    town.answer(10)
    head = town.ledger.account("prefs").head
    town.answer(10)
    right = officer.get(f"/dashboard/accounts/prefs/verify?expect_head={head}")
    assert "the hash that you gave is among them" in text_of(right.text)
    assert town.ledger.account("prefs").head in right.text
    strange = officer.get("/dashboard/accounts/prefs/verify?expect_head=%3Cb%3E0000").text
    assert "an older copy of the ledger was put back" in strange
    assert "<b>" not in strange
    town.ledger.close()
    connection = sqlite3.connect(town.url.removeprefix("sqlite:///"))
    connection.execute("UPDATE ledger_accounts SET queries = queries + 1")
    connection.commit()
    connection.close()
    assert "its queries is" in text_of(officer.get("/dashboard/accounts/prefs/verify").text)


def test_a_broken_journal_is_an_alarm_and_the_figures_stay(town: Any, officer: TestClient) -> None:
    town.answer(10)
    town.ledger.close()
    connection = sqlite3.connect(town.url.removeprefix("sqlite:///"))
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute("UPDATE ledger_journal SET record = 'nonsense' WHERE seq = (SELECT length FROM ledger_accounts)")
    connection.commit()
    connection.close()
    for path in ("", "/accounts/prefs", "/accounts/prefs/journal"):
        page = officer.get(f"/dashboard{path}")
        assert page.status_code == 200
        assert "Journal broken" in page.text
        assert repr(town.ledger.account("prefs").spent[0]) in page.text or path.endswith("journal")


def test_a_ledger_that_is_away_is_a_page_without_details(
    town,
    officer: TestClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away() -> None:
        raise LedgerFailed("ledger postgresql://secret-host/ledger: the server is away")

    monkeypatch.setattr(town.ledger, "accounts", away)
    answer = officer.get("/dashboard")
    assert answer.status_code == 503
    assert "secret-host" not in answer.text


def test_a_ledger_that_went_back_is_said_to_the_officer(town: Any, officer: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def behind() -> None:
        raise LedgerBehind("prefs", "ab" * 32, 3)

    monkeypatch.setattr(town.ledger, "accounts", behind)
    answer = officer.get("/dashboard")
    assert answer.status_code == 503
    assert "an older copy of the ledger was put back" in text_of(answer.text)


def test_a_fault_of_ours_is_a_page_without_details(
    town,
    officer: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> None:
        raise RuntimeError("planted 0.123456")

    monkeypatch.setattr(town.ledger, "accounts", broken)
    answer = officer.get("/dashboard")
    assert answer.status_code == 500
    (logged,) = [JsonLines().format(record) for record in caplog.records]
    assert "planted" not in answer.text + caplog.text + logged
    assert json.loads(logged)["exception"] == "RuntimeError"


def test_an_empty_ledger_says_how_to_make_an_account(town: Any, tmp_path) -> None:
    from privalign.ledger import Ledger, Role

    ledger = Ledger(f"sqlite:///{tmp_path}/empty.db", clock=town.clock)
    secret = ledger.create_key(Role.OFFICER).secret
    town.ledger.close()
    town.ledger = ledger
    with client_of(town) as client:
        client.post("/dashboard/login", data={"key": secret}, headers=OWN)
        assert "privalign account create" in client.get("/dashboard").text


def test_every_account_has_its_card(town: Any, officer: TestClient) -> None:
    town.ledger.create_account("Z.9_-", Basic(0.3, 1e-6, 1e-10), relation=Relation.FLIP, records_per_person=3)
    page = officer.get("/dashboard").text
    assert re.findall(r'data-account="([^"]*)"', page) == [account.name for account in town.ledger.accounts()]
    assert "labels of up to 3 records of one person" in officer.get("/dashboard/accounts/Z.9_-").text
