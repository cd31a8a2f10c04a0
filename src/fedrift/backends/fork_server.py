"""What the fork server imports, once for all workers that it starts."""

from __future__ import annotations

from fedrift.backends import importing

with importing():
    from fedrift.backends import worker

__all__ = ["worker"]
