"""The ways in which one configuration is executed, and what came of it in a form to compare."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedrift as fr
from fedrift.api import task_of
from fedrift.backends import hidden_main
from fedrift.core.isolation import SWITCHES, TorchSettings, one_thread
from fedrift.engine import recorder
from tests.stress.bits.configuration import Configuration, arguments
from tests.support.product import Pool, execute

Outcome = dict[str, Any]
"""How a run ended, and hashes of all that it found; or why there is no run."""

REFERENCE = "here"
LONGEST = 180.0  # seconds; a way that takes longer hangs, also on a busy machine
THREADS = (1, 2, 3)


def found(result: fr.Result) -> Outcome:
    ledger = json.dumps([result.ledger.rows(), result.client_rounds], sort_keys=True)
    buffers = b"".join(
        name.encode() + value.detach().contiguous().numpy().tobytes()
        for name, value in sorted(result.buffers.items())
    )
    return {
        "status": result.status,
        "diverged_at": result.diverged_at,
        "fingerprint": result.fingerprint,
        "ledger": hashlib.sha256(ledger.encode()).hexdigest()[:16],
        "buffers": hashlib.sha256(buffers).hexdigest()[:16],
    }


# What surrounds a run: torch's switches, threads, addresses, generators; all given back after it.


@contextmanager
def switched(changes: dict[str, Any]) -> Generator[None]:
    """torch's settings as the configuration has them."""
    before = TorchSettings.current()
    try:
        for name, value in changes.items():
            SWITCHES[name][1](getattr(torch, value) if isinstance(value, str) else value)
        yield
    finally:
        for name in changes:
            SWITCHES[name][1](before.values[name])


@contextmanager
def disturbed(number: int) -> Generator[None]:
    """Other addresses, threads and positions of the generators than before."""
    r = random.Random(number)
    held: list[Any] = [torch.empty(r.randint(1, 9999)) for _ in range(r.randint(1, 30))]
    held += [np.empty(r.randint(1, 3000), np.uint8) for _ in range(30)]
    held += [bytearray(r.randint(1, 500)) for _ in range(50)]
    del held[:: r.randint(2, 5)]
    threads = torch.get_num_threads()
    torch.set_num_threads(r.choice(THREADS))
    torch.manual_seed(r.randint(0, 99))
    np.random.seed(r.randint(0, 99))
    random.seed(r.randint(0, 99))
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        held.clear()


@contextmanager
def limited(seconds: float = LONGEST) -> Generator[None]:
    """A run that does not end is an error."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError(f"no end after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def lent() -> tuple[Any, ...]:
    """What belongs to the caller and must be as it was after a run."""
    state = np.random.get_state(legacy=True)
    return (
        torch.get_rng_state().numpy().tobytes(),
        state[1].tobytes(),  # type: ignore[index, union-attr]
        state[2],  # type: ignore[index]
        random.getstate(),
        torch.get_num_threads(),
        TorchSettings.current(),
        torch.is_grad_enabled(),
    )


def contents(settings: dict[str, Any]) -> str:
    """The caller's samples and module, to see whether a run has written to them."""
    digest = hashlib.sha256()
    for leaf in _leaves([settings.get(k) for k in ("model", "clients", "test")]):
        digest.update(leaf.tobytes())
    return digest.hexdigest()


def _leaves(tree: Any) -> Iterator[np.ndarray]:
    if isinstance(tree, (torch.Tensor, np.ndarray)):
        yield np.ascontiguousarray(tree.detach() if isinstance(tree, torch.Tensor) else tree)
    elif isinstance(tree, torch.nn.Module):
        for value in tree.state_dict().values():
            if not torch.nn.parameter.is_lazy(value):
                yield from _leaves(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from _leaves(value)
    elif isinstance(tree, dict):
        yield from _leaves(list(tree.values()))
    elif hasattr(tree, "x") and hasattr(tree, "y"):
        yield from _leaves([tree.x, tree.y])
    elif hasattr(tree, "tensors"):
        yield from _leaves(tree.tensors)


# The ways.


class Ways:
    """Executes configurations; what several of them share is kept between them."""

    def __init__(self, scratch: Path | None = None, kept: str | None = "spawn") -> None:
        """`kept` says how the workers of the pool are started that all configurations share."""
        self._scratch = Path(tempfile.mkdtemp(prefix="fedrift-bits-", dir=scratch))
        self._pool: Pool | None = None
        self._start = kept
        self._count = 0

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        shutil.rmtree(self._scratch, ignore_errors=True)

    def execute(self, config: Configuration, way: str) -> Outcome:
        """What comes of a configuration in one way; an exception is an outcome too."""
        name, _, how = way.partition(":")
        self._count += 1
        with warnings.catch_warnings(), switched(config["torch"]), disturbed(self._count):
            warnings.simplefilter("ignore")
            try:
                settings = arguments(config, "plain" if name == "shifted" else None)
                before, own = contents(settings), lent()
                with limited():
                    outcome = getattr(self, f"_{name}")(config, settings, how)
                if contents(settings) != before:
                    return {"crash": "the run has written to the caller's data or module"}
                if lent() != own:
                    return {"crash": "the caller's generators or settings were not given back"}
                return outcome
            except (fr.InputError, fr.RunError) as error:
                return {"refused": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
            except Exception as error:
                if isinstance(error, TimeoutError) and self._pool is not None:
                    self._pool.close()
                    self._pool = None
                return {"crash": f"{type(error).__name__}: {error}"}

    def _here(self, config: Configuration, settings: dict[str, Any], how: str) -> Outcome:
        return found(fr.run(config["algorithm"], workers=0, **settings))

    _shifted = _here

    def _workers(self, config: Configuration, settings: dict[str, Any], how: str) -> Outcome:
        number, start = how.split(",")
        before = os.environ.get("FEDRIFT_START")
        os.environ["FEDRIFT_START"] = start
        try:
            return found(fr.run(config["algorithm"], workers=int(number), **settings))
        finally:
            if before is None:
                del os.environ["FEDRIFT_START"]
            else:
                os.environ["FEDRIFT_START"] = before

    def _kept(self, config: Configuration, settings: dict[str, Any], how: str) -> Outcome:
        """On a pool that has seen other models, data and settings."""
        if self._pool is None:
            self._pool = Pool(2, self._start)
        with one_thread():
            return found(execute(task_of(config["algorithm"], settings), pool=self._pool))

    def _compared(self, config: Configuration, settings: dict[str, Any], how: str) -> Outcome:
        """Beside another run, on workers that both share."""
        seed = settings.pop("seed")
        both = {"asked": config["algorithm"], "beside": "fedavg"}
        table = fr.compare(both, seeds=[seed], workers=2, **settings)
        asked = next(o for o in table.outcomes if o.item.label == "asked")
        if asked.result is None:
            raise fr.RunError(asked.error)
        return found(asked.result)

    def _resumed(self, config: Configuration, settings: dict[str, Any], how: str) -> Outcome:
        """Interrupted by a signal in a process of its own, and gone on with in this one."""
        name, at, delay, before, after = how.split(",")
        place = self._scratch / f"run {self._count}"
        words = (config, place, name, int(at), int(delay) / 1000, int(before))
        child = multiprocessing.get_context("forkserver").Process(target=_stopped, args=words)
        with hidden_main():
            child.start()
        child.join(LONGEST)
        if child.exitcode is None:
            child.kill()
            child.join()
            raise TimeoutError("the interrupted run did not end")
        try:
            return found(fr.run(config["algorithm"], workers=int(after), out=place, **settings))
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _stopped(
    config: Configuration, place: Path, name: str, at: int, delay: float, workers: int
) -> None:
    """A run that gets a signal some time after a round."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # its traceback is expected
    # Workers whose parent was killed remove its temporary files: they must be its own.
    vars(multiprocessing.current_process())["_config"].pop("tempdir", None)
    recorder.SHORTEST, recorder.SHARE = 0.0, 1.0  # a checkpoint after almost every round

    def strike() -> None:
        time.sleep(delay)
        os.kill(os.getpid(), getattr(signal, name))

    def on_round(report: fr.RoundReport) -> None:
        if report.round == at:
            if delay:
                threading.Thread(target=strike, daemon=True).start()
            else:
                strike()

    warnings.simplefilter("ignore")
    with switched(config["torch"]):
        settings = arguments(config)
        fr.run(config["algorithm"], workers=workers, out=place, on_round=on_round, **settings)
        time.sleep(delay)


def prepare(preload: tuple[str, ...] = ()) -> None:
    """Start the server that processes are forked from, with everything imported that they need."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["fedrift.backends.worker", __name__, *preload])
    with hidden_main():
        ensure_running()
