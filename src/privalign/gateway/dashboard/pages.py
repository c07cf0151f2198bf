"""Templates, static files and the headers that every response of the dashboard carries."""

from __future__ import annotations

import hashlib
import mimetypes
from datetime import datetime
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from privalign.intervals import shown

PREFIX = "/dashboard"
LIVE_HEADER = "x-privalign-live"  # asks for what changes on a page, without its frame

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # no-referrer would take the Origin from forms, which proves where they come from
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Vary": f"Cookie, {LIVE_HEADER}",
}

_TEMPLATES = Environment(
    loader=PackageLoader("privalign.gateway.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def _when(moment: datetime) -> str:
    """A time as it is printed everywhere: UTC, to the second."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


_TEMPLATES.filters.update(when=_when, bound=shown)


class Static:
    """The style sheet, the script and the icon, read once. Their addresses change with their text, so they cache for good."""

    def __init__(self) -> None:
        folder = files("privalign.gateway.dashboard") / "static"
        self._texts = {file.name: file.read_bytes() for file in folder.iterdir() if file.name.endswith((".css", ".js", ".svg"))}
        self.versions = {name: hashlib.sha256(text).hexdigest()[:12] for name, text in self._texts.items()}

    def response(self, name: str) -> Response | None:
        """One of them, or None."""
        text = self._texts.get(name)
        if text is None:
            return None
        kind = mimetypes.guess_type(name)[0]
        return Response(text, media_type=kind, headers={**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"})


STATIC = Static()


def render(request: Request, template: str, *, status: int = 200, headers: dict[str, str] | None = None, **values: object) -> Response:
    """A page, or its changing part alone where the script asks for that."""
    root = request.scope.get("root_path", "") + PREFIX
    text = _TEMPLATES.get_template(template).render(
        root=root,
        static={name: f"{root}/static/{name}?v={version}" for name, version in STATIC.versions.items()},
        frame="fragment.html" if LIVE_HEADER in request.headers else "base.html",
        **values,
    )
    return HTMLResponse(text, status, {**HEADERS, **(headers or {})})
