"""Every algorithm by name, and compositions that must work like one."""

from __future__ import annotations

from fedrift.algorithms import NAMES

COMPOSED = (
    "swa(fedavg):cycle=2",
    "wima(fedsam)",
    "sam(scaffold)",
    "fed3rft(fedavg):train=all",
    "fed3rft(fedavg):train=head",
    "fed3rft(fedavg):train=features",
    "fed3rft(scaffold):temperature=auto",
    "fed3r:features=64",
    "swa(serveradam(sam(scaffold)))",
    "keep(mimemom):what=hidden",
    "keep(swa(localghbm))",
    "ditto(fedsam):lam=0.1,steps=2",
    "apfl:adaptive=true",
)
EVERY = (*NAMES, *COMPOSED)
