"""Starting and stopping: an address that is free, a token where others can reach it, an end on Ctrl-C."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import uvicorn

from gradient_flow.errors import ConfigError
from gradient_flow.report.serve.access import Access, is_loopback
from gradient_flow.report.serve.app import application
from gradient_flow.report.serve.live_runs import LiveRuns
from gradient_flow.report.serve.run_ids import RunFolder

FIRST_PORT: Final = 8765
_TRIED: Final = 20


class DashboardServer:
    """A folder of runs at an address. The socket is taken when this is made, so `url` is known before `serve`."""

    def __init__(
        self, path: str | Path, *, host: str = "127.0.0.1", port: int | None = None, token: str | None = None
    ) -> None:
        self.live = LiveRuns(RunFolder(path))
        if token is not None and not token:
            raise ConfigError("`token` must not be empty. Leave it out to have one generated.")
        if token is None and not is_loopback(host):
            token = secrets.token_urlsafe(24)
        self.token = token
        self._socket = _listening(host, port)
        self._host, self.port = host, int(self._socket.getsockname()[1])
        app = Access(application(self.live), host=host, token=token)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", server_header=False, timeout_graceful_shutdown=3
        )
        self._server = _Server(config, self.live)

    @property
    def url(self) -> str:
        """Where a browser finds it, with the token if there is one."""
        name = socket.gethostname() if self._host in ("0.0.0.0", "::", "") else self._host
        name = f"[{name}]" if ":" in name else name
        return f"http://{name}:{self.port}/" + (f"?token={quote(self.token, safe='')}" if self.token else "")

    def serve(self, started: Callable[[], None] = lambda: None) -> None:
        """Serve until Ctrl-C or `stop`. `started` is called once requests are answered."""
        self._server.started_callback = started
        try:
            with suppress(KeyboardInterrupt):
                self._server.run(sockets=[self._socket])
        finally:
            self.close()

    def stop(self) -> None:
        """End `serve` from another thread."""
        self.live.stopping.set()
        self._server.should_exit = True

    def close(self) -> None:
        """Let go of the address; `serve` does so at its end."""
        self.live.stopping.set()
        self._socket.close()


class _Server(uvicorn.Server):
    """Tells when it answers, and tells open streams when it is to end: they would keep it waiting."""

    def __init__(self, config: uvicorn.Config, live: LiveRuns) -> None:
        super().__init__(config)
        self._live = live
        self.started_callback: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does, then the word."""
        self._live.prepare()
        await super().startup(sockets)
        self.started_callback()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Streams first."""
        self._live.stopping.set()
        await super().shutdown(sockets)


def _listening(host: str, port: int | None) -> socket.socket:
    """A socket at that port; without one, at the first that is free from 8765 on."""
    ports = range(FIRST_PORT, FIRST_PORT + _TRIED) if port is None else [port]
    problem: OSError | None = None
    for each in ports:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host or None, each, type=socket.SOCK_STREAM)[0]
            found = socket.socket(family, kind, protocol)
        except OSError as unknown:
            raise ConfigError(f"`host` {host!r} is not an address of this machine ({unknown.strerror}).") from unknown
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(128)  # now: a port that is only bound could be bound once more
            return found
        except OSError as taken:
            found.close()
            problem = taken
    which = f"`port` {port}" if port is not None else f"every port from {FIRST_PORT} to {FIRST_PORT + _TRIED - 1}"
    reason = problem.strerror if problem is not None else "none was tried"
    raise ConfigError(f"{which} cannot be used at {host!r} ({reason}). Another: --port 0 takes any that is free.")
