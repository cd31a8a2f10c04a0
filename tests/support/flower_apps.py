"""The apps of a Flower federation in this process: a grid that hands messages to client apps."""

# pyright: reportMissingImports=false

from __future__ import annotations

import copy
import importlib.util
import itertools
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedrift.federation.template import write_app
from tests.support.federations import FederationConfig
from tests.support.product import Spec, prepare

FLOWER = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Marks of a file that uses flwr."""


def as_in_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages can be made inside an app only; this is as if."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def written(folder: Path, what: Spec) -> tuple[ModuleType, ModuleType]:
    """The modules of an app that was just written."""
    write_app(folder, FederationConfig.of(what, prepare(what)), 60.0)
    found: list[ModuleType] = []
    for name in ("client", "server"):
        at = importlib.util.spec_from_file_location(
            f"written_{name}", folder / "federated" / f"{name}.py"
        )
        assert at is not None and at.loader is not None
        module = importlib.util.module_from_spec(at)
        at.loader.exec_module(module)
        found.append(module)
    return found[0], found[1]


class Grid:
    """Flower's grid with nodes in this process."""

    def __init__(self, app: Any, config: dict[str, Any], nodes: dict[int, dict[str, Any]]) -> None:
        self._app, self._config, self._nodes = app, config, nodes
        self._replies: dict[str, Any] = {}
        self._contexts: dict[int, Any] = {}
        self._count = itertools.count()
        self.seen: list[Any] = []

    def get_node_ids(self) -> list[int]:
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        from flwr.app import Context, Error, Message, RecordDict

        tickets: list[str] = []
        for message in messages:
            ticket = f"message {next(self._count)}"
            message.metadata.__dict__["_message_id"] = ticket
            node = message.metadata.dst_node_id
            new = Context(1, node, self._nodes[node], RecordDict(), self._config)
            context = self._contexts.setdefault(node, new)
            try:
                reply = self._app(copy.deepcopy(message), context)
            except Exception as error:
                reply = Message(Error(2, str(error)), reply_to=message)
            self._replies[ticket] = reply
            self.seen.append(reply)
            tickets.append(ticket)
        return tickets

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Any:
        assert timeout is not None, "every exchange has a deadline"
        return self.pull_messages(self.push_messages(messages))

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        return [self._replies.pop(i) for i in list(ids) if i in self._replies]
