"""A whole federation on this machine: data at the nodes, a comparison, live progress, a report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrift.config.grid import slug
from fedrift.config.spec import Spec
from fedrift.engine.prepare import Prepared, prepare
from fedrift.errors import InputError, RunError
from fedrift.federation.certificates import Certificates, make_certificates
from fedrift.federation.config import FederationConfig
from fedrift.federation.events import EVENTS
from fedrift.federation.template import write_app

NAME, LINK = "here", "flower-superlink"
LINK_SECONDS = 90.0  # seconds the SuperLink may take to answer
GRACE = 5.0  # seconds to end by itself
SILENCE = 900.0  # seconds without any news after which a run is given up


Say = Callable[[str, dict[str, Any]], None]
"""Algorithm and what happened."""


@dataclass(frozen=True)
class DemoLayout:
    """Everything on disk before a process starts."""

    app: Path
    test: Path
    sites: tuple[Path, ...]


def write_layout(folder: Path, spec: Spec, ready: Prepared, deadline: float) -> DemoLayout:
    """One file of samples for each node, one for the server's test, and the app without data."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"out '{folder}' is not empty; name a new folder")
    sites: list[Path] = []
    for client, part in enumerate(ready.partition.parts):
        site = folder / "sites" / f"node{client}"
        site.mkdir(parents=True)
        np.savez(site / "data.npz", x=ready.x[part], y=ready.data.y[part])
        sites.append(site)
    test = folder / "server" / "test.npz"
    test.parent.mkdir(parents=True)
    np.savez(test, x=ready.data.x_test, y=ready.data.y_test)
    write_app(folder / "app", FederationConfig.of(spec, ready), deadline)
    return DemoLayout(folder / "app", test, tuple(sites))


def run_demo(
    algorithms: Sequence[str],
    spec: Spec,
    folder: Path,
    *,
    secure: bool,
    deadline: float,
    say: Say,
) -> list[Path]:
    """Run every algorithm in one federation after another on the same nodes; the run folders."""
    program(LINK)  # before anything is written
    folder = folder.resolve()  # processes get paths of it, and have working folders of their own
    specs = [replace(spec, algorithm=text) for text in algorithms]
    for one in specs:
        one.validate()
    ready = prepare(spec)
    layout = write_layout(folder, specs[0], ready, deadline)
    names = [site.name for site in layout.sites]
    certificates = make_certificates(folder / "papers", names, ["127.0.0.1"]) if secure else None
    loopback = Loopback(folder / "logs", certificates)
    try:
        say("", {"event": "note", "text": "starting the SuperLink"})
        loopback.start_link()
        for client, site in enumerate(layout.sites):
            if secure:
                loopback.register(site.name)
            config = {"partition-id": client, "num-partitions": len(names)}
            config |= {"data": site / "data.npz", "state-dir": site / "state"}
            loopback.start_node(site.name, config)
        say("", {"event": "note", "text": f"starting {len(names)} SuperNodes"})
        runs: list[Path] = []
        for text in algorithms:
            out = folder / "runs" / slug(text)
            config = {"algorithm": text, "out": out, "test": layout.test}
            name = loopback.start_app(layout.app, config)
            for row in _read_events(loopback, name, out / EVENTS):
                say(text, row)
                if row["event"] == "failed":
                    raise RunError(f"{text}: {row['text']}")
            runs.append(out / "run")
        return runs
    finally:
        say("", {"event": "note", "text": "stopping every process"})
        loopback.stop()


def _read_events(loopback: Loopback, name: str, file: Path) -> Iterator[dict[str, Any]]:
    """Events as the server app writes them, until it has finished or failed."""
    seen, heard = 0, time.monotonic()
    while True:
        loopback.check()
        ended = loopback.started[name].poll() is not None
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        for line in lines[seen:]:
            row = json.loads(line)
            yield row
            heard = time.monotonic()
            if row["event"] in ("finished", "failed"):
                return
        seen = len(lines)
        if ended and loopback.started[name].returncode:
            raise RunError(f"flwr run ended{loopback.tail(name)}")
        if time.monotonic() - heard > SILENCE:
            raise RunError(f"nothing was heard for {SILENCE:g} seconds{loopback.tail(name)}")
        time.sleep(0.5)


# The Flower federation itself: a SuperLink, SuperNodes and an app, as processes.


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Loopback:
    """Starts processes, each in a group of its own, and ends exactly those.

    With certificates everything is encrypted and only known nodes may join.
    """

    home: Path
    certificates: Certificates | None = None
    port: int = field(default_factory=free_port)
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(self.home / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        (self.home / "flwr").mkdir(exist_ok=True)
        how = "insecure = true"
        if self.certificates is not None:
            how = f'root-certificates = "{self.certificates.authority}"'
        config = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n'
        config += f'address = "{self.address}"\n{how}\n'
        (self.home / "flwr" / "config.toml").write_text(config, encoding="utf-8")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start_link(self, *more: str) -> None:
        """The SuperLink; returns when it listens."""
        secure = ["--insecure"]
        if self.certificates is not None:
            p = self.certificates
            secure = ["--ssl-certfile", str(p.certificate), "--ssl-keyfile", str(p.key)]
            secure += ["--ssl-ca-certfile", str(p.authority), "--enable-supernode-auth"]
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        alone = "--disable-runtime-dependency-installation"
        self._start("superlink", LINK, *secure, *where, alone, *more)
        end = time.monotonic() + LINK_SECONDS
        while time.monotonic() < end:
            self.check("superlink")
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.2)
        raise RunError(
            f"the SuperLink does not listen after {LINK_SECONDS:g} seconds{self.tail('superlink')}"
        )

    def start_node(
        self,
        name: str,
        config: Mapping[str, Any],
        *more: str,
        plain: bool = False,
        superlink: str | None = None,
    ) -> None:
        """One SuperNode; `config` is its --node-config."""
        secure = ["--insecure"]
        if self.certificates is not None and not plain:
            secure = ["--root-certificates", str(self.certificates.authority)]
            if name in self.certificates.nodes:
                secure += ["--auth-supernode-private-key", str(self.certificates.nodes[name])]
        node_config = " ".join(f"{k}={_quoted(v)}" for k, v in config.items())
        where = [
            "--superlink",
            superlink or self.address,
            "--port",
            str(free_port()),
            "--node-config",
            node_config,
        ]
        self._start(name, "flower-supernode", *secure, *where, *more)

    def register(self, name: str) -> None:
        """Tell the SuperLink the public key of a node that may join."""
        assert self.certificates is not None
        public = self.certificates.nodes[name].with_suffix(".pub")
        command = [program("flwr"), "supernode", "register", str(public), NAME]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, timeout=60, check=False
        )
        if done.returncode:
            raise RunError(f"node {name} could not be registered: {done.stdout.decode()[-300:]}")

    def start_app(self, folder: Path, config: Mapping[str, Any], *more: str) -> str:
        """`flwr run`, following its log; the name of its process."""
        run_config = " ".join(f"{k}={_quoted(v)}" for k, v in config.items())
        name = f"app {len(self.started)}"
        how = ["--run-config", run_config] if run_config else []
        self._start(name, "flwr", "run", str(folder), NAME, "--stream", *how, *more)
        return name

    def _start(self, name: str, command: str, *arguments: str) -> None:
        with (self.home / f"{name}.log").open("ab") as log:
            self.started[name] = subprocess.Popen(
                [program(command), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.home,
                start_new_session=True,  # a group of its own, ended as a whole
            )

    def check(self, *names: str) -> None:
        """Complain about a process that should be running and is not."""
        for name in names or tuple(self.started):
            code = self.started[name].poll()
            if code is not None and not name.startswith("app "):
                raise RunError(f"the {name} ended with code {code}{self.tail(name)}")

    def tail(self, name: str) -> str:
        """The end of a process's log."""
        with suppress(OSError):
            text = (self.home / f"{name}.log").read_text(encoding="utf-8", errors="replace")
            return f":\n{text[-1500:]}"
        return ""

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """End one process with everything it started."""
        process = self.started.pop(name)
        below = descendants(process.pid)  # some make groups of their own
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # what is left of the group
        for one, born in below.items():
            if _born(one) == born:  # the number has not been given to another process since
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(one, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End everything that was started here, the SuperLink last."""
        for name in sorted(self.started, key=lambda n: n == "superlink"):
            self.kill(name, signal.SIGTERM)


def program(name: str) -> str:
    """One of Flower's programs: of this environment first."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        raise InputError(
            f"the program {name} is missing; install it with: pip install 'fedrift[flower]'"
        )
    return path


def descendants(process: int) -> dict[int, str]:
    """All processes below one, and when each was born; empty where there is no /proc."""
    births: dict[int, str] = {}
    for tasks in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, tasks.read_text().split()):
                births |= {child: _born(child), **descendants(child)}
    return births


def _born(process: int) -> str:
    with suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _quoted(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else '"' + str(value) + '"'
