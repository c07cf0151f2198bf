"""The routes of the dashboard: read-only, for officers, every one an HTML page, errors included."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from privalign import retry_after
from privalign.aligner import ServedModel
from privalign.errors import CheckFailed
from privalign.gateway import causes
from privalign.gateway.dashboard import chart, figures, guarantee
from privalign.gateway.dashboard.followers import Followed, Followers
from privalign.gateway.dashboard.history import HORIZONS, Horizon
from privalign.gateway.dashboard.pages import HEADERS, LIVE_HEADER, PREFIX, STATIC, render
from privalign.gateway.dashboard.sessions import Network, Session, Sessions, Tries, same_origin, visitor
from privalign.gateway.facts import facts_of
from privalign.ledger import Entry, KeyRefused, Ledger, LedgerBehind, LedgerFailed, Role, UnknownAccount
from privalign.statements import SPENT, assumptions, promise

_READ = ["GET", "HEAD"]
_EVERY = [*_READ, "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
KINDS = ("create", "reserve", "settle", "void", "expire", "raise", "move")
ROWS_ON_A_PAGE = 50
LATEST = 8  # rows of the journal on an account's own page
MOST_FORM_BYTES = 2048


def make_router(
    ledger: Ledger,
    secret: bytes,
    models: Sequence[ServedModel] = (),
    *,
    session_lifetime: float = 8 * 3600.0,
    secure_cookies: bool = False,
    trusted_proxies: Sequence[Network] = (),
    clock: Callable[[], float] = time.time,
) -> APIRouter:
    """The dashboard under `/dashboard`.

    Args:
        ledger: what it shows; it is only read.
        secret: of the installation, the same on all replicas; signs session cookies.
        models: what this gateway serves: on an account's page stands what their sensitivity rests on.
        session_lifetime: seconds until an officer must log in again.
        secure_cookies: cookies travel over https only, even where this process is asked over http by a proxy.
        trusted_proxies: whose `X-Forwarded-For` names the visitor whose wrong keys are counted.
        clock: seconds since 1970.

    Formal guarantee: what the pages show is a function of the ledger and of public settings; it is covered by the
    guarantee of the accounts. Nothing else that is computed from rewards reaches them.
    """
    sessions = Sessions(ledger, secret, session_lifetime, clock)
    dashboard = _Dashboard(ledger, sessions, models, secure_cookies, tuple(trusted_proxies), clock)
    router = APIRouter(prefix=PREFIX, route_class=_Page, include_in_schema=False)
    for path, page, methods in (
        ("", dashboard.overview, _READ),
        ("/", dashboard.overview, _READ),
        ("/login", dashboard.login_form, _READ),
        ("/login", dashboard.login, ["POST"]),
        ("/logout", dashboard.logout, ["POST"]),
        ("/accounts/{name}", dashboard.account, _READ),
        ("/accounts/{name}/journal", dashboard.journal, _READ),
        ("/accounts/{name}/verify", dashboard.verify, _READ),
        ("/keys", dashboard.keys, _READ),
        ("/static/{name}", dashboard.static, _READ),
        ("/{rest:path}", dashboard.nothing, _EVERY),
    ):
        router.add_api_route(path, page, methods=methods, response_model=None)
    return router


class _LoginNeeded(Exception):
    pass


class _Page(APIRoute):
    """Turns whatever goes wrong into a page without a trace of where."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def page(request: Request) -> Response:
            try:
                return await handle(request)
            except _LoginNeeded:
                return _to_login(request)
            except ClientDisconnect:
                raise
            except HTTPException as error:
                return _error(request, error.status_code, str(error.detail))
            except UnknownAccount:
                return _error(request, 404, "There is no account of that name.")
            except LedgerBehind as error:
                causes.tell(facts_of(request.scope), error)
                return _error(request, 503, f"Nothing is answered. {error}.")
            except LedgerFailed as error:
                causes.tell(facts_of(request.scope), error)
                return _error(request, 503, "The ledger cannot be read at the moment. The gateway's log says why.")
            except Exception as error:
                causes.tell(facts_of(request.scope), error)
                return _error(request, 500, "This page could not be made. Nothing was changed.")

        return page


class _Dashboard:
    """The pages. Those that are no coroutines run in threads, where the ledger may block."""

    def __init__(
        self,
        ledger: Ledger,
        sessions: Sessions,
        models: Sequence[ServedModel],
        secure: bool,
        proxies: tuple[Network, ...],
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._models = tuple(models)
        self._secure = secure
        self._proxies = proxies
        self._clock = clock
        self._tries = Tries(clock)
        self._followers = Followers(ledger)

    def overview(self, request: Request) -> Response:
        session, now = self._session(request), self._now()
        horizon = _horizon("day")
        cards = [
            self._followers.look(account.name, lambda followed: _summary(followed, horizon, now)) for account in self._ledger.accounts()
        ]
        return render(request, "overview.html", session=session, now=now, cards=cards, live=True, spent_is=SPENT)

    def account(self, request: Request, name: str, horizon: str = "day") -> Response:
        session, now, chosen = self._session(request), self._now(), _horizon(horizon)
        values = self._followers.look(_checked(name), lambda followed: _details(followed, chosen, now))
        return render(
            request,
            "account.html",
            session=session,
            now=now,
            live=True,
            horizons=HORIZONS,
            served=guarantee.served(values["account"], self._models),
            latest=self._rows(name, most=LATEST),
            **values,
        )

    def journal(self, request: Request, name: str, kind: str = "", key: str = "", model: str = "", before: str = "") -> Response:
        session, now = self._session(request), self._now()
        if kind not in ("", *KINDS):
            raise HTTPException(400, f"There are no rows of that kind; it is one of {', '.join(KINDS)}.")
        if before and not (before.isascii() and before.isdigit() and len(before) < 19):
            raise HTTPException(400, "The row to begin before must be a whole number.")
        summary = self._followers.look(_checked(name), lambda followed: _summary(followed, _horizon("day"), now))
        rows = self._rows(
            name,
            before=int(before) if before else 2**62,
            most=ROWS_ON_A_PAGE + 1,
            kind=kind or None,
            api_key=key or None,
            model=model or None,
        )
        more = len(rows) > ROWS_ON_A_PAGE
        return render(
            request,
            "journal.html",
            session=session,
            now=now,
            live=False,
            card=summary,
            rows=rows[:ROWS_ON_A_PAGE],
            kinds=KINDS,
            sought={"kind": kind, "key": key, "model": model},
            before=before,
            older=rows[ROWS_ON_A_PAGE - 1].seq if more else None,
        )

    def _rows(self, name: str, **sought: Any) -> list[Entry]:
        """Rows of the journal; none where one of them is no record any more: then the page says that it is broken."""
        try:
            return self._ledger.latest(name, **sought)
        except CheckFailed:
            return []

    def verify(self, request: Request, name: str, expect_head: str = "") -> Response:
        session, now = self._session(request), self._now()
        sought = expect_head.strip().lower()
        account = self._ledger.account(_checked(name))
        checked, fault = None, None
        try:
            checked = self._ledger.verify(name, expect_head=sought or None)
        except CheckFailed as error:
            fault = str(error)
        return render(
            request,
            "verify.html",
            session=session,
            now=now,
            live=False,
            account=account,
            checked=checked,
            fault=fault,
            sought=sought,
        )

    def keys(self, request: Request) -> Response:
        session, now = self._session(request), self._now()
        return render(request, "keys.html", session=session, now=now, live=True, keys=self._ledger.keys(), clients=Role.CLIENT)

    def login_form(self, request: Request) -> Response:
        if self._sessions.of(self._cookie(request)) is not None:
            return RedirectResponse(_root(request), 303, HEADERS)
        return _login_page(request)

    async def login(self, request: Request) -> Response:
        if not same_origin(request):
            return _error(request, 403, "This form must be sent from the dashboard's own page.")
        address = visitor(request, self._proxies)
        wait = self._tries.wait(address)
        if wait:
            return _login_page(request, 429, f"Too many wrong keys. Try again in {wait} seconds.", retry_after.header(wait))
        presented = (await _form(request)).get("key", "").strip()
        try:
            key = await run_in_threadpool(self._ledger.authenticate, presented)
        except KeyRefused:
            self._tries.failed(address)
            return _login_page(request, 401, "This key is unknown, expired or revoked.", {"WWW-Authenticate": 'Form realm="privalign"'})
        if key.role is not Role.OFFICER:
            self._tries.failed(address)
            return _login_page(request, 403, "This key may ask for answers, but not see the budget: an officer's key may.")
        response = RedirectResponse(_root(request), 303, HEADERS)
        response.set_cookie(self._cookie_name(request), self._sessions.begin(key), **self._cookie_rules(request))
        return response

    def logout(self, request: Request) -> Response:
        if not same_origin(request):
            return _error(request, 403, "This form must be sent from the dashboard's own page.")
        session = self._sessions.of(self._cookie(request))
        if session is not None:
            self._sessions.end(session)
        response = _to_login(request)
        response.delete_cookie(self._cookie_name(request), **self._cookie_rules(request))
        return response

    def static(self, request: Request, name: str) -> Response:
        return STATIC.response(name) or self.nothing(request)

    def nothing(self, request: Request) -> Response:
        return _error(request, 404, "There is no such page.")

    def _session(self, request: Request) -> Session:
        session = self._sessions.of(self._cookie(request))
        if session is None:
            raise _LoginNeeded
        return session

    def _over_https(self, request: Request) -> bool:
        return self._secure or request.url.scheme == "https"

    def _cookie_name(self, request: Request) -> str:
        """Over https with a prefix that browsers accept from this host alone, and over https alone."""
        return "__Host-privalign" if self._over_https(request) else "privalign"

    def _cookie_rules(self, request: Request) -> dict[str, Any]:
        """Without an age: the browser forgets it when it closes; the session's own end is signed within."""
        return {"path": "/", "httponly": True, "samesite": "strict", "secure": self._over_https(request)}

    def _cookie(self, request: Request) -> str | None:
        return request.cookies.get(self._cookie_name(request))

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)


def _summary(followed: Followed, horizon: Horizon, now: datetime) -> dict[str, Any]:
    """What a card shows: no more of the history than numbers."""
    account, history = followed.account, followed.history
    return {
        "account": account,
        "budget": figures.budget(account),
        "pace": figures.pace(followed, horizon, now) if followed.complete else None,
        "chain": figures.chain(followed),
        "kinds": dict(history.kinds),
    }


def _details(followed: Followed, horizon: Horizon, now: datetime) -> dict[str, Any]:
    """What an account's own page shows beside that."""
    account, history = followed.account, followed.history
    summary = _summary(followed, horizon, now)
    drawn = None
    if followed.complete:
        drawn = chart.draw(figures.curve(followed, horizon, now), account.rule.epsilon, horizon, summary["pace"].ends)
    return {
        **summary,
        "promise": promise(account.rule, account.relation, account.records_per_person),
        "assumptions": assumptions(account.relation, account.records_per_person),
        "spent_is": SPENT,
        "horizon": horizon,
        "chart": drawn,
        "paces": figures.paces(followed, now) if followed.complete else (),
        "by_key": figures.sharers(history.by_key, account),
        "by_model": figures.sharers(history.by_model, account),
        "exact": figures.exact(account),
    }


def _horizon(name: str) -> Horizon:
    for horizon in HORIZONS:
        if horizon.name == name:
            return horizon
    raise HTTPException(400, f"The horizon is one of {', '.join(horizon.name for horizon in HORIZONS)}.")


def _checked(name: str) -> str:
    """A name that an account could have; the databases are not asked about others."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        raise UnknownAccount(name)
    return name


async def _form(request: Request) -> dict[str, str]:
    """The fields of a small form."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_FORM_BYTES:
            raise HTTPException(413, "The form is too long.")
    try:
        return {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace"), max_num_fields=8).items()}
    except ValueError:
        raise HTTPException(400, "The form has too many fields.") from None


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")) + PREFIX


def _to_login(request: Request) -> Response:
    """To the login page; the script that reads a page anew is told so instead of led there."""
    if LIVE_HEADER in request.headers:
        return render(request, "ended.html", status=401)
    return RedirectResponse(f"{_root(request)}/login", 303, HEADERS)


def _login_page(request: Request, status: int = 200, fault: str = "", headers: dict[str, str] | None = None) -> Response:
    return render(request, "login.html", status=status, headers=headers, session=None, live=False, fault=fault)


def _error(request: Request, status: int, message: str) -> Response:
    return render(request, "error.html", status=status, session=None, live=False, code=status, message=message)
