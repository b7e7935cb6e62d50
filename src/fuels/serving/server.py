"""The process of `fuels serve`: where it listens, who may use it, and how it ends."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from fuels.data.files import os_errors
from fuels.errors import FuelsError
from fuels.forecasting.saved_run import SavedRun
from fuels.serving.app import create_app
from fuels.serving.live import LiveRun

SHORTEST = 16  # characters of a token
MOST_AT_ONCE = 64  # connections
GRACE = 30  # seconds for requests that are being answered at the end


class Server(uvicorn.Server):
    """Ends after SIGTERM and SIGINT as after any other end: the exit code is 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(
    run: Path,
    *,
    host: str,
    port: int,
    horizon: int,
    token_file: Path | None,
    most_bytes: int,
    say: Callable[[str], None],
    adjust: Callable[[SavedRun], None] = lambda saved: None,
) -> None:
    """Serve a run until a signal arrives."""
    token = None if token_file is None else read_token(token_file, say)
    address, family = resolved(host)
    if token is None and not address.is_loopback:
        raise FuelsError(
            f"--host {host} can be reached from other machines: give a file with a token"
            " (--token-file), or listen on 127.0.0.1"
        )
    with listening(str(address), port, family) as listener:
        live = LiveRun(run, horizon, say, adjust)
        with ThreadPoolExecutor(1, thread_name_prefix="run") as worker:
            worker.submit(live.refresh)  # requests wait for it
            app = create_app(live, worker, token=token, most_bytes=most_bytes)
            config = uvicorn.Config(
                app,
                access_log=False,
                log_level="warning",
                limit_concurrency=MOST_AT_ONCE,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=GRACE,
            )
            name = f"[{address}]" if family == socket.AF_INET6 else str(address)
            say(f"serving {run} at http://{name}:{listener.getsockname()[1]}")
            Server(config).run(sockets=[listener])
        say("stopped")


def read_token(file: Path, say: Callable[[str], None]) -> str:
    """The token in a file: one word."""
    try:
        with os_errors(file, "cannot be read"):
            token = file.read_text(encoding="ascii").strip()
            mode = file.stat().st_mode
    except UnicodeDecodeError:
        raise FuelsError(f"{file}: a token consists of ASCII characters") from None
    if len(token) < SHORTEST or len(token.split()) != 1:
        raise FuelsError(
            f"{file}: a token is one word of at least {SHORTEST} characters, such as the output of"
            " openssl rand -hex 32"
        )
    if mode & 0o077:
        say(f"note: other users of this machine can read {file}: chmod 600 {file}")
    return token


def resolved(
    host: str,
) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, socket.AddressFamily]:
    """The address that a host stands for."""
    try:
        family, *_, where = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise FuelsError(f"--host {host}: no such address") from None
    return ipaddress.ip_address(str(where[0]).partition("%")[0]), family


@contextmanager
def listening(address: str, port: int, family: socket.AddressFamily) -> Iterator[socket.socket]:
    try:
        listener = socket.create_server((address, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FuelsError(f"cannot listen on {address}, port {port} ({reason.lower()})") from None
    with listener:
        yield listener
