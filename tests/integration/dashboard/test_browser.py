"""A real browser before a gateway under load: the figures move, agree with `account show`, and anyone can read them.

axe-core finds no violation of WCAG 2.2, levels A and AA, on any page, at 360 and 1280 px, in both colour schemes; the
console stays empty; nothing is asked for from anywhere else.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from privalign import cli
from privalign.accounting.rules import Fsrc, Renyi
from privalign.aligner import Aligner, Performance, ServedModel
from privalign.gateway import server
from privalign.gateway.app import create_app
from privalign.gateway.settings import GatewaySettings
from privalign.ledger import Ledger, Role
from privalign.mechanisms.privbon import PrivBoN
from privalign.policies.callables import CallablePolicy
from privalign.rewards.function import FunctionReward
from privalign.sensitivity import Relation, RewardRange, Sensitivity

SENSITIVITY = Sensitivity(0.01, RewardRange(0.0, 1.0), "certificate", Relation.REPLACE, 1)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
STANDARD = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], "resultTypes": ["violations"]}
LOOKS = [(width, scheme) for width in (360, 1280) for scheme in ("light", "dark")]
SOON = 60_000  # milliseconds


@dataclass
class Served:
    """A gateway that answers one client after the other while `busy` is set."""

    url: str
    ledger: Ledger
    ledger_url: str
    officer: str
    busy: threading.Event = field(default_factory=threading.Event)
    idle: threading.Event = field(default_factory=threading.Event)  # between two requests

    def rest(self) -> None:
        """Asks nothing more; returns once nothing is under way."""
        self.busy.clear()
        self.idle.wait()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium to look at the dashboard with: install one with `apt-get install chromium`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def served(sqlite_url: str) -> Iterator[Served]:
    ledger = Ledger(sqlite_url)
    ledger.create_account("prefs", Renyi.default(8.0, 1e-6))
    ledger.create_account("support-tickets", Fsrc(2.0, 1e-5, 1e-9), relation=Relation.FLIP, records_per_person=3)
    ledger.raise_budget("support-tickets", 3.0, "a second team, agreed before its first answer")
    client = ledger.create_key(Role.CLIENT, models=["aligned"]).secret
    limits: dict[str, Any] = {"account": "support-tickets", "share": 0.125, "queries": 1_000_000, "rate": 6000.0}
    everything = ledger.create_key(Role.CLIENT, models=["aligned", "aligned-large"], expires=datetime(2031, 1, 31, tzinfo=UTC), **limits)
    ledger.revoke_key(everything.key.id)
    policy = CallablePolicy(lambda request, count: ["an answer"] * count, "texts")
    reward = FunctionReward(lambda request, candidates: np.full(len(candidates), 0.5), name="even", sensitivity=SENSITIVITY)
    model = ServedModel("aligned", policy, reward, PrivBoN(4, 0.2), "prefs", performance=Performance(padding=0.001))
    app = create_app([Aligner(ledger, model)], ledger, b"s" * 32, GatewaySettings())
    listening = server.listen("127.0.0.1", 0)
    running = uvicorn.Server(uvicorn.Config(app, log_config=None))
    served = Served(server.address_of(listening), ledger, sqlite_url, ledger.create_key(Role.OFFICER).secret)
    ended = threading.Event()

    def load() -> None:
        with httpx.Client(base_url=served.url, headers={"authorization": f"Bearer {client}"}) as asking:
            body = {"model": "aligned", "messages": [{"role": "user", "content": "hello"}]}
            while not ended.wait(0.15):
                served.idle.clear()
                if served.busy.is_set():
                    assert asking.post("/v1/chat/completions", json=body).status_code == 200
                served.idle.set()

    threads = [threading.Thread(target=running.run, args=([listening],)), threading.Thread(target=load)]
    threads[0].start()
    while not running.started:
        ended.wait(0.01)
    served.busy.set()
    threads[1].start()
    yield served
    ended.set()
    threads[1].join()
    running.should_exit = True
    threads[0].join()
    listening.close()
    ledger.close()


@pytest.fixture
def open_page(browser: Browser, served: Served) -> Iterator[Callable[[int, str], Page]]:
    """Opens a browser of that width and colour scheme; at the end its console must have stayed empty."""
    complaints: list[str] = []
    contexts = []

    def open_page(width: int, scheme: Any) -> Page:
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.set_default_timeout(SOON)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(served.url) else complaints.append(request.url))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def log_in(page: Page, served: Served) -> None:
    """By keyboard alone: the field has the focus."""
    page.goto(f"{served.url}/dashboard")
    assert page.url == f"{served.url}/dashboard/login"
    page.locator("input:focus").wait_for()  # what is typed earlier is lost
    page.keyboard.type(served.officer)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{served.url}/dashboard")


def inspect(page: Page, where: str) -> None:
    """No violation, and nothing to scroll sideways for but tables in their own frames."""
    violations = Axe().run(page, options=STANDARD).response["violations"]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in violations] == [], where
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{where} is wider than the window"


def figure(page: Page, name: str, account: str = "prefs") -> float:
    """A figure as the page holds it, in full."""
    value = page.locator(f'[data-account="{account}"] [data-figure="{name}"] data').get_attribute("value")
    assert value is not None
    return float(value)


def wait_for_another(page: Page, than: float) -> None:
    """Until the spent figure is another one, without loading the page anew."""
    page.locator(f'[data-account="prefs"] [data-figure="spent"] data:not([value="{than!r}"])').wait_for()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_an_officer_sees_the_budget_move(
    width: int,
    scheme: str,
    served: Served,
    open_page: Callable[[int, str], Page],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = open_page(width, scheme)
    page.goto(f"{served.url}/dashboard/login")
    inspect(page, "login")
    log_in(page, served)
    before = figure(page, "spent")
    wait_for_another(page, before)
    assert figure(page, "spent") > before
    inspect(page, "accounts")
    for path in ("accounts/support-tickets?horizon=month", "accounts/prefs/journal", "accounts/prefs/verify", "keys"):
        page.goto(f"{served.url}/dashboard/{path}")
        inspect(page, path)
    if width >= 1280:  # nothing of the keys is cut off
        assert page.evaluate("(keys => keys.scrollWidth <= keys.clientWidth)(document.querySelector('.keys'))")
    page.goto(f"{served.url}/dashboard/accounts/prefs")
    page.locator("summary").click()
    before = figure(page, "spent")
    wait_for_another(page, before)
    assert page.locator("details").get_attribute("open") is not None  # what the reader opened stays open
    inspect(page, "account")

    served.rest()
    monkeypatch.setattr(sys, "argv", ["privalign", "account", "show", "prefs", "--json", "--ledger", served.ledger_url])
    with pytest.raises(SystemExit):
        cli.main()
    shown = json.loads(capsys.readouterr().out)
    page.get_by_text(f"{shown['length']:,} rows checked").wait_for()
    assert figure(page, "spent") == shown["spent"]["epsilon"]
    assert figure(page, "remaining") == shown["remaining"]["epsilon"]
    assert page.locator('[data-figure="settled-queries"]').inner_text().replace(",", "") == str(shown["queries"]["settled"])
    for exact in (repr(shown["spent"]["epsilon"]), repr(shown["remaining"]["epsilon"]), shown["head"], shown["guarantee"]):
        assert page.get_by_text(exact, exact=True).count() >= 1
    paces = page.locator('[aria-label="Pace"] tbody tr').first.inner_text().split()
    assert paces[:3] == ["60", "minutes", f"{shown['queries']['settled']:,}"]


def test_reading_on_keeps_the_focus_rests_on_demand_and_grows_nothing(served: Served, open_page: Callable[[int, str], Page]) -> None:
    page = open_page(1280, "light")
    log_in(page, served)
    link = page.get_by_role("link", name="support-tickets")
    link.focus()
    elements, before = page.evaluate("document.querySelectorAll('*').length"), figure(page, "spent")
    for _ in range(2):
        wait_for_another(page, before)
        before = figure(page, "spent")
    assert link.evaluate("element => element === document.activeElement")
    assert page.evaluate("document.querySelectorAll('*').length") == elements
    button = page.get_by_role("button", name="Pause updates")
    button.click()
    page.wait_for_timeout(300)  # what was under way has arrived
    before = figure(page, "spent")
    page.wait_for_timeout(2500)
    assert figure(page, "spent") == before
    page.get_by_role("button", name="Resume updates").click()
    wait_for_another(page, before)


def test_a_revoked_key_ends_the_open_page(served: Served, browser: Browser) -> None:
    context = browser.new_context()  # its console tells of the 401, as it should
    page = context.new_page()
    log_in(page, served)
    served.ledger.revoke_key(served.officer.split("_")[1])
    page.get_by_role("alert").get_by_text("The session has ended").wait_for(timeout=SOON)
    page.reload()
    assert page.url == f"{served.url}/dashboard/login"
    context.close()
