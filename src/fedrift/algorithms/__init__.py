"""Every algorithm by name; the command line, specs and notebooks use these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from fedrift.core import Algorithm

Constructor = Callable[..., Algorithm[Any, Any]]


class Constructors(Mapping[str, Constructor]):
    """Name → what makes the algorithm; its file is imported when it is first asked for."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        self._homes = homes

    def __getitem__(self, name: str) -> Constructor:
        file, _, attribute = self._homes[name].partition(":")
        return getattr(import_module(f"{__name__}.{file}"), attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


NAMES: Mapping[str, Constructor] = Constructors(
    {
        "fedsgd": "fedsgd:FedSGD",
        "fedavg": "fedavg:FedAvg",
        "fedavgm": "fedopt:fedavgm",
        "fedprox": "fedprox:fedprox",
        "fednova": "fednova:FedNova",
        "scaffold": "scaffold:Scaffold",
        "fedadagrad": "fedopt:fedadagrad",
        "fedadam": "fedopt:fedadam",
        "fedyogi": "fedopt:fedyogi",
        "feddyn": "feddyn:FedDyn",
        "fedsam": "sam:fedsam",
        "fedasam": "sam:fedasam",
        "fedcm": "fedcm:FedCM",
        "mofedsam": "sam:mofedsam",
        "fedgamma": "sam:fedgamma",
        "fedspeed": "fedspeed:fedspeed",
        "fedsmoo": "fedsmoo:FedSMOO",
        "fedgf": "fedgf:FedGF",
        "ghbm": "ghbm:GHBM",
        "localghbm": "ghbm:LocalGHBM",
        "fedhbm": "ghbm:FedHBM",
        "mime": "mime:Mime",
        "mimemom": "mime:mimemom",
        "mimelite": "mime:MimeLite",
        "mimelitemom": "mime:mimelitemom",
        "fed3r": "fed3r:Fed3R",
        "fed3rft": "fed3r_finetune:fed3rft",
        "diloco": "diloco:diloco",
        "fedasync": "fedasync:FedAsync",
        "fedbuff": "fedbuff:FedBuff",
        "localonly": "localonly:localonly",
        "fedper": "fedper:fedper",
        "fedrep": "fedrep:fedrep",
        "fedbn": "fedbn:fedbn",
        "pfedme": "pfedme:PFedMe",
        "apfl": "apfl:APFL",
        "swa": "swa:SWA",
        "wima": "wima:WiMA",
        "sam": "wrappers:with_sam",
        "asam": "wrappers:with_asam",
        "serveradam": "wrappers:with_server_adam",
        "keep": "keep:keep",
        "ditto": "ditto:Ditto",
        "finetune": "fedavg_finetune:FineTuned",
    }
)
"""Name → file of this package and what of it makes the algorithm."""
