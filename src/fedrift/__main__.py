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

    code = interrupts.working(cli.code_of)
    gc.freeze()  # the end of the process frees it all faster than a search for garbage
    sys.exit(code)


if __name__ == "__main__":
    main()
