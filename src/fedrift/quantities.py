"""Readable quantities."""

from __future__ import annotations


def bytes_text(count: float) -> str:
    """`12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} PB"


def seconds_text(seconds: float) -> str:
    """`0.8 s`, `42 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count_text(count: float) -> str:
    """`853`, `12.3 k`, `4.56 M`."""
    for unit in ("", " k", " M", " G"):
        if abs(count) < 999.5:
            return f"{count:.0f}{unit}" if not unit or abs(count) >= 99.95 else f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g} T"
