"""Many algorithms checked side by side: the names are dealt out to one process per core.

Each process is a program of its own (`python -m fedrift.conform.survey MODEL ADAPTER NAMES`),
because every one has workers, and prints a report as soon as it has one. Signals are this process's
to handle: those it starts hear none, and end when it does.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from fedrift import backends
from fedrift.algorithms import NAMES
from fedrift.conform import check
from fedrift.conform.bench import open_bench
from fedrift.conform.report import Report
from fedrift.errors import INTERRUPTED, RunError
from fedrift.grammar import parse

Done = Callable[[Report], None]
WORTH_PROCESSES = 4  # names below which starting another process costs more than it saves


def survey(
    names: Sequence[str],
    done: Done | None = None,
    model: str | None = None,
    adapter: str | None = None,
) -> list[Report]:
    """A report for each name, in the order given; `done` is told of each as it comes in. `model`
    and `adapter`: where they are checked, instead of on the usual problems."""
    ours = [name for name in names if parse(name, "algorithm").name in NAMES]
    number = min(backends.cores(), len(ours) // (WORTH_PROCESSES // 2))
    reports: dict[str, Report] = {}

    def note(name: str, report: Report) -> None:
        reports[name] = report
        if done is not None:
            done(report)

    if number < 2:
        in_turn(names, note, model, adapter)
        return [reports[name] for name in names]
    in_turn([name for name in names if name not in ours], note, model, adapter)
    side_by_side([ours[i::number] for i in range(number)], note, model, adapter)
    return [reports[name] for name in names]


def in_turn(
    names: Sequence[str],
    note: Callable[[str, Report], None],
    model: str | None = None,
    adapter: str | None = None,
) -> None:
    """One after another in this process."""
    if names:
        with open_bench(model, adapter) as bench:
            for name in names:
                note(name, check(name, bench))


def side_by_side(
    shares: Sequence[Sequence[str]],
    note: Callable[[str, Report], None],
    model: str | None = None,
    adapter: str | None = None,
) -> None:
    """Each share in a process of its own."""
    lines: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    command = [sys.executable, "-m", "fedrift.conform.survey", model or "", adapter or ""]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes: list[subprocess.Popen[str]] = []
    try:
        for i, share in enumerate(shares):
            process = subprocess.Popen([*command, *share], **pipes, start_new_session=True)
            processes.append(process)
            threading.Thread(target=_listen, args=(i, process.stdout, lines), daemon=True).start()
        left = len(processes)
        while left:
            i, line = lines.get()
            if line:
                report = Report.of(json.loads(line))
                note(report.name, report)
                continue
            left -= 1
            if processes[i].wait() != 0:
                raise RunError(f"a process that checked {', '.join(shares[i])} failed")
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


def _listen(i: int, pipe: Any, lines: queue.SimpleQueue[tuple[int, str]]) -> None:
    for line in pipe:
        lines.put((i, line))
    pipe.close()
    lines.put((i, ""))


def _say(name: str, report: Report) -> None:
    print(json.dumps(report.row()), flush=True)


def _end_with_parent() -> None:
    sys.stdin.read()  # nothing is ever said; it ends with whoever holds the other end
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    in_turn(sys.argv[3:], _say, *(text or None for text in sys.argv[1:3]))
