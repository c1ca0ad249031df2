"""Who may ask, and how: reading only, the right host, the token where there is one. And what a browser may do."""

from __future__ import annotations

import hmac
import ipaddress
import re
from typing import Final
from urllib.parse import parse_qs

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS: Final = {
    "content-security-policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_HOST: Final = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::[0-9]*)?")
_ENCODED: Final = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]


def is_loopback(host: str) -> bool:
    """Whether an address reaches this machine only.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Access:
    """Stands before the application. `token=None` lets everyone in that reaches the address."""

    def __init__(self, app: ASGIApp, *, host: str, token: str | None) -> None:
        self._app = app
        self._token = token
        # A page elsewhere can point its own name at 127.0.0.1; the browser then sends that name as the host.
        self._only_loopback = is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or say why not."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: the answer is 403
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in _ENCODED}
                kept = [(name, value) for name, value in message.get("headers", []) if name.lower() not in own]
                message = {**message, "headers": [*kept, *_ENCODED]}
            await send(message)

        refusal = self._refusal(scope)
        answer: ASGIApp = self._app if refusal is None else refusal
        await answer(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if headers.get(b"upgrade", "").lower() == "websocket":
            return _refused(400, "This server has no websockets: it answers GET and HEAD.")
        if scope["method"] not in ("GET", "HEAD"):
            return _refused(405, "This server only shows runs: it answers GET and HEAD.", {"Allow": "GET, HEAD"})
        if self._only_loopback and not is_loopback(_host_name(headers.get(b"host", ""))):
            return _refused(403, "This server answers under localhost and 127.0.0.1 only. For another name use --host.")
        if self._token is not None and not self._has_token(scope, headers):
            return _refused(
                401,
                "A token is needed. Open the address that `gradient-flow serve` printed, or send it as "
                "`Authorization: Bearer TOKEN`.",
                {"WWW-Authenticate": "Bearer"},
            )
        return None

    def _has_token(self, scope: Scope, headers: dict[bytes, str]) -> bool:
        assert self._token is not None
        scheme, _, credential = headers.get(b"authorization", "").partition(" ")
        tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if scheme.lower() == "bearer":
            tokens.append(credential.strip())
        return any(hmac.compare_digest(each.encode(), self._token.encode()) for each in tokens)


def _host_name(host: str) -> str:
    """Without the port: `[::1]:80` and `localhost:80` alike; nothing of what is no host.

    >>> _host_name("[::1]:80"), _host_name("localhost:80"), _host_name("[::1].evil.com")
    ('[::1]', 'localhost', '')
    """
    found = _HOST.fullmatch(host)
    return found[1] if found is not None else ""


def _refused(status: int, error: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": error}, status, headers)
