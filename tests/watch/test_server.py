"""The page's server: only this machine, only with its secret, only what is listed."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from fedrift.errors import InputError
from fedrift.watch.server import HOST, WatchServer
from tests.watch.test_folders import add, folder, row

NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WatchServer]:
    add(folder(tmp_path, NASTY), "rounds.jsonl", row(1), row(2))
    with WatchServer(tmp_path) as opened:
        thread = threading.Thread(target=opened.serve_forever, daemon=True)
        thread.start()
        yield opened
        opened.shutdown()
        thread.join()


def ask(
    server: WatchServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), dict(answer.headers)


def test_with_the_secret_it_answers(server: WatchServer) -> None:
    status, body, headers = ask(server, f"/{server.token}/")
    assert status == 200 and "<title>fedrift watch</title>" in body
    assert "{{" not in body.replace("${", "")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe-inline" not in headers["Content-Security-Policy"]
    runs = json.loads(ask(server, f"/{server.token}/runs")[1])
    assert [run["name"] for run in runs["runs"]] == [NASTY]
    query = urlencode({"run": NASTY, "from": 1, "generation": 0})
    curves = json.loads(ask(server, f"/{server.token}/curves?{query}")[1])
    assert curves["columns"]["round"] == [2]


@pytest.mark.parametrize("path", ["/", "/runs", "/wrong/runs", "//runs", "/%s"])
def test_without_the_secret_it_refuses(server: WatchServer, path: str) -> None:
    status, body, _ = ask(server, path)
    assert status == 403 and server.token not in body


def test_another_name_or_page_is_refused(server: WatchServer) -> None:
    good = f"/{server.token}/runs"
    assert ask(server, good, Host=f"evil.example:{server.server_port}")[0] == 403
    assert ask(server, good, Origin="http://evil.example")[0] == 403
    assert ask(server, good, Origin="http://[")[0] == 403  # no address at all
    assert ask(server, good, Origin=f"http://{HOST}:{server.server_port}")[0] == 200


@pytest.mark.parametrize("run", ["../outside", "/etc", "", "nobody"])
def test_only_listed_runs_are_served(server: WatchServer, run: str) -> None:
    ask(server, f"/{server.token}/runs")
    query = urlencode({"run": run})
    assert ask(server, f"/{server.token}/curves?{query}")[0] == 404
    assert ask(server, f"/{server.token}/stop?{query}", "POST")[0] == 404


@pytest.mark.parametrize("place", ["-1", "1e3", "9" * 30, "x"])
def test_numbers_are_numbers(server: WatchServer, place: str) -> None:
    ask(server, f"/{server.token}/runs")
    query = urlencode({"run": NASTY, "from": place})
    assert ask(server, f"/{server.token}/curves?{query}")[0] == 404


def test_stopping_what_does_not_run_is_told(server: WatchServer) -> None:
    ask(server, f"/{server.token}/runs")
    query = urlencode({"run": NASTY})
    status, body, _ = ask(server, f"/{server.token}/stop?{query}", "POST")
    assert status == 409 and "nobody is writing" in json.loads(body)["error"]
    assert ask(server, f"/{server.token}/stop?{query}")[0] == 404  # a link cannot stop anything


def test_a_page_that_is_closed_while_it_is_answered_is_no_news(
    server: WatchServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor does a stranger's half of an answer print a traceback in the terminal."""
    asked = f"GET /{server.token}/ HTTP/1.0\r\nHost: {HOST}:{server.server_port}\r\n\r\n"
    for _ in range(5):
        with socket.create_connection((HOST, server.server_port), timeout=10) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.sendall(asked.encode())
    assert ask(server, f"/{server.token}/")[0] == 200
    server.shutdown()
    server.server_close()  # waits for nobody: threads of requests are daemons
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(timeout=10)
    assert capfd.readouterr().err == ""


def test_a_port_in_use_is_refused_in_a_sentence(server: WatchServer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="choose another with --port"):
        WatchServer(tmp_path, server.server_port)
