"""What checkpoints cost a run: `python tests/stress/cost.py run scaffold --out FOLDER …`.

Any command of fedrift. Processor time is the main process's own, so that other programs on the
machine do not count; the time on the clock includes waiting for the disk.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from fedrift.cli import code_of
from fedrift.engine.recorder import RunRecorder

spent: list[tuple[float, float]] = []


def main() -> int:
    from fedrift.storage.checkpoint import Checkpoint

    usual = RunRecorder.checkpoint

    def checkpoint(self: RunRecorder, make: Callable[[], Checkpoint]) -> None:
        clock, processor = time.perf_counter(), time.process_time()
        usual(self, make)
        spent.append((time.perf_counter() - clock, time.process_time() - processor))

    RunRecorder.checkpoint = checkpoint
    clock, processor = time.perf_counter(), time.process_time()
    code = code_of(sys.argv[1:])
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    # The last one is made when the run has ended and is part of what it leaves.
    waited, worked = (sum(times) for times in zip((0.0, 0.0), *spent[:-1], strict=True))
    print(
        f"{len(spent)} checkpoints: of {processor:.1f} s of processor time {worked:.2f} s "
        f"({worked / processor:.2%}), of {clock:.1f} s {waited:.2f} s ({waited / clock:.2%}), "
        f"and {spent[-1][0] if spent else 0.0:.2f} s for the last",
        file=sys.stderr,
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
