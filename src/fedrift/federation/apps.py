"""The two Flower apps: ours runs the engine at the server, and one entry at every node."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedrift.backends.backend import Backend
from fedrift.backends.codec import Refused
from fedrift.core.exchange import Signature
from fedrift.core.isolation import one_thread
from fedrift.errors import InputError
from fedrift.federation.config import FILE, FederationConfig
from fedrift.federation.events import EventLog
from fedrift.federation.flower import FlowerTransport, from_records, to_records
from fedrift.federation.node import Node
from fedrift.federation.protocol import Envelope
from fedrift.federation.remote import Remote
from fedrift.federation.server import DEADLINE, WrapBackend, serve
from fedrift.federation.task import make_node

try:
    from flwr.app import Context, Message  # pyright: ignore[reportMissingImports]
    from flwr.clientapp import ClientApp  # pyright: ignore[reportMissingImports]
    from flwr.serverapp import ServerApp  # pyright: ignore[reportMissingImports]
except ImportError:
    raise InputError("flwr is incomplete; install it with: pip install 'fedrift[flower]'") from None

Load = Callable[[FederationConfig, Mapping[str, Any]], tuple[Any, ...]]
"""The config and the node's own configuration → this site's samples and labels, and, where the
config says client_test = "own", those it tests on behind them."""
LoadTest = Callable[[FederationConfig, Mapping[str, Any]], tuple[Any, Any] | None]
"""The config and what this start of the app says → samples and labels to evaluate on."""
log = logging.getLogger("flwr").getChild("fedrift")


def state_folder(node: Mapping[str, Any]) -> Path:
    """Where a node keeps client states: `state-dir` of the node, FEDRIFT_STATE, or its home."""
    folder = node.get("state-dir") or os.environ.get("FEDRIFT_STATE")
    return Path(str(folder)) if folder else Path.home() / ".fedrift" / "state"


def client_app(folder: str | Path, load: Load) -> ClientApp:
    """The app of a site: its data come from `load` and never leave it."""
    app, home = ClientApp(), Path(folder)

    def node_here(context: Context) -> Node:
        config = FederationConfig.read(home / FILE).with_changes(dict(context.run_config))
        node: dict[str, Any] = dict(context.node_config)
        client = node.get("partition-id")
        if not isinstance(client, int):
            raise InputError("partition-id is missing; give it with --node-config")
        x, y, *own = load(config, node)
        test = (own[0], own[1]) if len(own) == 2 else None
        return make_node(config, client, x, y, state_folder(node), test)

    def answer(
        message: Message, context: Context, kind: Callable[[Any, Envelope], Envelope]
    ) -> Any:
        with one_thread():
            try:
                reply = kind(node_here(context), from_records(message.content))
            except (InputError, Refused) as why:
                log.warning("%s", why)
                reply = Envelope({"refused": str(why)[:200]})
        return Message(to_records(reply), reply_to=message)

    def about(message: Message, context: Context) -> Message:
        return answer(message, context, lambda node, envelope: node.about())

    def train(message: Message, context: Context) -> Message:
        if not context.run_config.get("secagg"):
            return answer(message, context, lambda node, envelope: node.answer(envelope))
        from fedrift.federation import secagg

        with one_thread():
            return secagg.answer(message, context, lambda: node_here(context))

    app.query()(about)
    app.train()(train)
    return app


def server_app(folder: str | Path, test: LoadTest) -> ServerApp:
    """The app of the server: it holds test data at the most."""
    app, home = ServerApp(), Path(folder)

    def main(grid: Any, context: Context) -> None:
        run_config: dict[str, Any] = dict(context.run_config)
        config = FederationConfig.read(home / FILE).with_changes(run_config)
        out = Path(str(run_config["out"])) if run_config.get("out") else None
        event_log = EventLog(config, out, log.info)
        try:
            serve(
                config,
                FlowerTransport(grid),
                test=test(config, run_config),
                out=None if out is None else out / "run",
                least=int(run_config.get("min-nodes") or 0) or None,
                deadline=float(run_config.get("deadline") or DEADLINE),
                callbacks=[event_log],
                note=event_log.note,
                around=_masks(grid) if run_config.get("secagg") else None,
            )
        except Exception as error:
            event_log.failed(error)
            raise

    app.main()(main)
    return app


def _masks(grid: Any) -> WrapBackend:
    """Secure aggregation around the exchanges; refuses what cannot be masked."""
    from fedrift.federation import secagg

    def around(remote: Remote, phases: Mapping[str, Signature]) -> Backend:
        secagg.check(remote, phases)
        return secagg.MaskedBackend(remote, grid)

    return around
