"""The program `fedrift`, also as `python -m fedrift`."""

from __future__ import annotations

import gc
import sys
from typing import NoReturn

from fedrift.engine import interrupts


def main() -> NoReturn:
    """Imports only here: until they are done, Ctrl-C ends it without a word."""
    interrupts.listen()
    from fedrift import cli

    try:
        interrupts.work_begins()
        code = cli.code_of(None)
    except KeyboardInterrupt:  # while the last one was being answered
        code = cli.INTERRUPTED
    interrupts.work_ends()
    gc.freeze()  # the end of the process frees it all faster than a search for garbage
    sys.exit(code)


if __name__ == "__main__":
    main()
