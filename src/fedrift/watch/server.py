"""The page's server: this machine only, a secret in its address, and nothing but what is listed."""

from __future__ import annotations

import hmac
import secrets
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedrift.errors import InputError
from fedrift.figures.style import COLOURS
from fedrift.storage.jsonl import Record, dump
from fedrift.watch.folders import Watched
from fedrift.watch.writer import stop

HOST = "127.0.0.1"
HERE = Path(__file__).parent
STYLES = (HERE.parent / "report" / "page.css", HERE / "watch.css")
SCRIPTS = (HERE / "watch.js", HERE / "clients.js")


def page(nonce: str) -> str:
    """The page; all it shows it asks for."""
    style = "".join(file.read_text(encoding="utf-8") for file in STYLES)
    body = (HERE / "watch.html").read_text(encoding="utf-8")
    return (
        body.replace("{{style}}", style)
        .replace("{{script}}", "".join(file.read_text(encoding="utf-8") for file in SCRIPTS))
        .replace("{{colours}}", dump(COLOURS))
        .replace("{{nonce}}", nonce)
    )


class WatchServer(ThreadingHTTPServer):
    """Serves one folder of runs under an address that only the one who started it knows."""

    daemon_threads = True

    def __init__(self, root: Path, port: int = 0) -> None:
        self.watched = Watched(root)
        self.token = secrets.token_urlsafe(16)
        self.turn = threading.Lock()
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise InputError(
                f"port {port} cannot be used: {error.strerror}; choose another with --port"
            ) from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that is closed while it is answered is no news."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer  # type: ignore[reportIncompatibleVariableOverride]
    server_version = "fedrift"
    sys_version = ""
    timeout = 10

    def do_GET(self) -> None:
        path, query = self._asked()
        if path is None:
            return self._refuse(HTTPStatus.FORBIDDEN, "open the address that fedrift watch printed")
        match path:
            case "":
                nonce = secrets.token_urlsafe(16)
                return self._answer(page(nonce).encode("utf-8"), "text/html", nonce)
            case "runs":
                with self.server.turn:
                    self.server.watched.refresh()
                    overview = self.server.watched.overview()
                return self._record(overview)
            case "curves" | "clients":
                return self._news(path, query)
            case _:
                return self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def do_POST(self) -> None:
        path, query = self._asked()
        if path != "stop":
            return self._refuse(HTTPStatus.FORBIDDEN, "this cannot be done here")
        run = self.server.watched.runs.get(query.get("run", ""))
        if run is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "there is no such run")
        try:
            return self._record({"process": stop(run.folder)})
        except InputError as error:
            return self._refuse(HTTPStatus.CONFLICT, str(error))

    def _news(self, what: str, query: dict[str, str]) -> None:
        run = self.server.watched.runs.get(query.get("run", ""))
        numbers = [query.get(key, "0") for key in ("from", "generation")]
        if run is None or not all(n.isdecimal() and len(n) < 12 for n in numbers):
            return self._refuse(HTTPStatus.NOT_FOUND, "there is no such run")
        since, generation = map(int, numbers)
        tell = run.curves if what == "curves" else run.clients.since
        with self.server.turn:  # not while it is sent: a reader that stalls would stop all others
            news = tell(since, generation)
        self._record(news)

    def _asked(self) -> tuple[str | None, dict[str, str]]:
        """What is asked for below the secret; None for strangers: another name for this machine
        in the request (a page elsewhere may send one), a foreign page, a wrong secret."""
        own = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        origin = self.headers.get("Origin")
        try:
            url, theirs = urlsplit(self.path), urlsplit(origin or "").netloc
        except ValueError:  # no address: half of a bracket, say
            return None, {}
        token, _, rest = url.path.lstrip("/").partition("/")
        is_known = (
            self.headers.get("Host") in own
            and (origin is None or theirs in own)
            and hmac.compare_digest(token.encode(), self.server.token.encode())
        )
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        return (rest if is_known else None), query

    def _record(self, record: Record) -> None:
        self._answer(dump(record).encode("utf-8"), "application/json")

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._answer(dump({"error": why}).encode("utf-8"), "application/json", status=status)

    def _answer(
        self, body: bytes, kind: str, nonce: str = "", status: HTTPStatus = HTTPStatus.OK
    ) -> None:
        allowed = f"'nonce-{nonce}'" if nonce else "'none'"
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header(
            "Content-Security-Policy",
            f"default-src 'none'; style-src {allowed}; script-src {allowed}; connect-src 'self'; "
            "frame-ancestors 'none'; form-action 'none'; base-uri 'none'",
        )
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent: the page is what is shown."""
