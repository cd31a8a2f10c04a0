"""The program `fedrift`, also as `python -m fedrift`."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Imports only here, so that Ctrl-C while they last ends it without a word, too."""
    try:
        from fedrift import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
