"""Who asks: API keys, looked up in the ledger for every request, so that revoking one works at once."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.datastructures import Headers

from privalign.gateway.errors import ApiError
from privalign.gateway.reads import LedgerReads
from privalign.ledger import Key, KeyRefused, Role

_KEY = re.compile(r"pa_[0-9a-f]{1,64}_[0-9a-f]{1,128}")  # of this shape are all keys: nothing else troubles the ledger


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request; without a key nobody in particular."""

    key: Key | None

    @property
    def id(self) -> str:
        """The id of the key, which is no secret; "anonymous" without one."""
        return "anonymous" if self.key is None else self.key.id

    def allows(self, model: str) -> bool:
        """Whether it may ask this model."""
        return self.key is None or self.key.allows(model)


class Gate:
    """Lets requests in by their `Authorization` header.

    Args:
        allow_anonymous: clients need no key. What is sent in the place of one, as every OpenAI client does, is ignored
            unless it looks like a key of ours: a revoked key must not turn into nobody's, who may ask every model.
    """

    def __init__(self, reads: LedgerReads, *, allow_anonymous: bool) -> None:
        self._reads = reads
        self._anonymous = allow_anonymous

    async def client(self, headers: Headers) -> Caller:
        """Who may ask models.

        Raises:
            ApiError: 401 without a valid key, 403 for an officer's, and where a web page asks without one: any page that a
                browser of this network opens could spend the budget, whose script sees this gateway under its own name.
        """
        presented = _bearer(headers)
        if self._anonymous and not presented.startswith("pa_"):
            if "origin" in headers:
                raise ApiError(403, "a web page needs a key to ask; send one as `Authorization: Bearer …`", code="permission_denied")
            return Caller(None)
        return Caller(await self._role(presented, Role.CLIENT))

    async def officer(self, headers: Headers) -> Caller:
        """Who may read the ledger.

        Raises:
            ApiError: 401 without a valid key, 403 for a client's.
        """
        return Caller(await self._role(_bearer(headers), Role.OFFICER))

    async def _role(self, presented: str, role: Role) -> Key:
        refused = ApiError(
            401,
            "the API key is missing, unknown, expired or revoked; send a valid one as `Authorization: Bearer …`",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
        if not _KEY.fullmatch(presented):
            raise refused
        try:
            key = await self._reads.authenticate(presented)
        except KeyRefused:
            raise refused from None
        if key.role is not role:
            raise ApiError(403, f"this is not a key of the role {role.value}", code="permission_denied")
        return key


def _bearer(headers: Headers) -> str:
    """What was sent as a bearer token; empty where nothing was, or several things were."""
    sent = headers.getlist("authorization")
    scheme, _, token = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" else ""
