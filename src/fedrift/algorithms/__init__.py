"""Every algorithm by name; the command line, specs and notebooks use these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedrift.algorithms.apfl import APFL
from fedrift.algorithms.diloco import diloco
from fedrift.algorithms.ditto import Ditto
from fedrift.algorithms.fed3r import Fed3R
from fedrift.algorithms.fed3r_finetune import fed3rft
from fedrift.algorithms.fedasync import FedAsync
from fedrift.algorithms.fedavg import FedAvg
from fedrift.algorithms.fedbn import fedbn
from fedrift.algorithms.fedbuff import FedBuff
from fedrift.algorithms.fedcm import FedCM
from fedrift.algorithms.feddyn import FedDyn
from fedrift.algorithms.fedgf import FedGF
from fedrift.algorithms.fednova import FedNova
from fedrift.algorithms.fedopt import fedadagrad, fedadam, fedavgm, fedyogi
from fedrift.algorithms.fedper import fedper
from fedrift.algorithms.fedprox import fedprox
from fedrift.algorithms.fedrep import fedrep
from fedrift.algorithms.fedsgd import FedSGD
from fedrift.algorithms.fedsmoo import FedSMOO
from fedrift.algorithms.fedspeed import fedspeed
from fedrift.algorithms.fedavg_finetune import FineTuned
from fedrift.algorithms.ghbm import GHBM, FedHBM, LocalGHBM
from fedrift.algorithms.keep import keep
from fedrift.algorithms.localonly import localonly
from fedrift.algorithms.mime import Mime, MimeLite, mimelitemom, mimemom
from fedrift.algorithms.pfedme import PFedMe
from fedrift.algorithms.sam import fedasam, fedgamma, fedsam, mofedsam
from fedrift.algorithms.scaffold import Scaffold
from fedrift.algorithms.swa import SWA
from fedrift.algorithms.wima import WiMA
from fedrift.algorithms.wrappers import with_asam, with_sam, with_server_adam
from fedrift.core import Algorithm

NAMES: dict[str, Callable[..., Algorithm[Any, Any]]] = {
    "fedsgd": FedSGD,
    "fedavg": FedAvg,
    "fedavgm": fedavgm,
    "fedprox": fedprox,
    "fednova": FedNova,
    "scaffold": Scaffold,
    "fedadagrad": fedadagrad,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "feddyn": FedDyn,
    "fedsam": fedsam,
    "fedasam": fedasam,
    "fedcm": FedCM,
    "mofedsam": mofedsam,
    "fedgamma": fedgamma,
    "fedspeed": fedspeed,
    "fedsmoo": FedSMOO,
    "fedgf": FedGF,
    "ghbm": GHBM,
    "localghbm": LocalGHBM,
    "fedhbm": FedHBM,
    "mime": Mime,
    "mimemom": mimemom,
    "mimelite": MimeLite,
    "mimelitemom": mimelitemom,
    "fed3r": Fed3R,
    "fed3rft": fed3rft,
    "diloco": diloco,
    "fedasync": FedAsync,
    "fedbuff": FedBuff,
    "localonly": localonly,
    "fedper": fedper,
    "fedrep": fedrep,
    "fedbn": fedbn,
    "pfedme": PFedMe,
    "apfl": APFL,
    "swa": SWA,
    "wima": WiMA,
    "sam": with_sam,
    "asam": with_asam,
    "serveradam": with_server_adam,
    "keep": keep,
    "ditto": Ditto,
    "finetune": FineTuned,
}
