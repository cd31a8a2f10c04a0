"""The table of backends: a line of it and a module with `make` are a backend."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import fedrift as fr
from fedrift.cli import code_of
from fedrift.config.backends import BACKENDS, BackendKind, backend_kind, public_names
from fedrift.config.spec import Spec
from fedrift.storage.run_record import load
from tests.backends import backwards
from tests.support.problems import small_run

OWN = BackendKind("tests.backends.backwards", "none")


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "mime"])
def test_a_line_of_the_table_is_a_backend(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "backwards", OWN)
    backwards.visited.clear()
    there = small_run(name, backend="backwards", stack="off")
    assert backwards.visited, "it was asked"
    first = backwards.visited[: len(there.ledger.entries[0].replied)]
    assert first == sorted(first, reverse=True), "the last client first"
    assert there.fingerprint == small_run(name, stack="off").fingerprint
    assert Spec.of({"backend": "backwards"}).backend == "backwards"


def test_the_command_line_and_comparisons_know_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BACKENDS, "backwards", OWN)
    common = ["compare", "fedavg", "scaffold", "--clients", "3", "--rounds", "2", "--quiet"]
    folders = [tmp_path / "here", tmp_path / "there"]
    assert code_of([*common, "--workers", "0", "--out", str(folders[0])]) == 0
    backwards.visited.clear()
    assert code_of([*common, "--backend", "backwards", "--out", str(folders[1])]) == 0
    assert backwards.visited
    for run in sorted((folders[0] / "runs").iterdir()):
        other = folders[1] / "runs" / run.name
        assert load(run).summary["fingerprint"] == load(other).summary["fingerprint"]


def test_what_a_backend_refuses_stands_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "far", BackendKind("nowhere", "cores", needs_workers=True))
    with pytest.raises(fr.InputError, match="backend 'far' and workers=0: drop one"):
        small_run("fedavg", backend="far", workers=0)
    with pytest.raises(fr.InputError, match="unknown backend 'far:somewhere'"):
        small_run("fedavg", backend="far:somewhere", workers=2)
    monkeypatch.setitem(BACKENDS, "blind", BackendKind(OWN.module, "none", is_timed=False))
    with pytest.raises(fr.InputError, match="profile: times can be taken"):
        small_run("fedavg", backend="blind", profile=True)


def test_every_line_names_a_module_that_makes_it() -> None:
    for name, kind in BACKENDS.items():
        if not kind.takes_address:  # ray may not be installed
            assert callable(import_module(kind.module).make), name


def test_a_spec_may_name_what_is_public() -> None:
    assert public_names() == ("auto", "in-process", "processes", "ray")
    assert Spec.of({"backend": "ray:10.0.0.1:6379"}).backend == "ray:10.0.0.1:6379"
    for text in ("wire", "ray:", "ray: x ", "processes:2", "rays"):
        with pytest.raises(fr.InputError, match="unknown backend"):
            Spec.of({"backend": text})
    assert not backend_kind("wire").is_public
