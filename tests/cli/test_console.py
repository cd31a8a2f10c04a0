"""What the command line prints: losses of any size, and lists of everything that has a name."""

from __future__ import annotations

import pytest

from fedrift.cli import code_of
from fedrift.cli.console import loss_text
from fedrift.cli.listing import KINDS


@pytest.mark.parametrize(
    ("loss", "text"), [(0.5, "0.5000"), (0.0, "0.0000"), (1.5e9, "1.500e+09"), (2e-7, "2.000e-07")]
)
def test_losses_of_any_size(loss: float, text: str) -> None:
    assert loss_text(loss) == text


@pytest.mark.parametrize("kind", KINDS)
def test_everything_can_be_listed(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["list", kind]) == 0
    short = capsys.readouterr().out
    assert code_of(["list", kind, "--verbose"]) == 0
    assert len(capsys.readouterr().out) > 50 < len(short)
