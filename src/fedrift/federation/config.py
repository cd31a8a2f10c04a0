"""What server and sites agree on before anything is sent: one file that both hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedrift.config.own_code import foreign_code
from fedrift.config.spec import FIELDS, Spec, read_toml
from fedrift.engine.prepare import Prepared
from fedrift.errors import InputError, unknown

FILE = "fedrift.toml"
TASK = ("shape", "classes", "clients", "mean", "std", "named")
NOT_HERE = ("data_dir", "device", "workers", "backend", "out")


@dataclass(frozen=True)
class FederationConfig:
    """An experiment, and the shape of its data, which nobody can look up elsewhere."""

    spec: Spec
    shape: tuple[int, ...]
    """Of one sample."""
    classes: int
    clients: int
    mean: tuple[float, ...] = ()
    """What was subtracted from each channel of the samples, if anything."""
    std: tuple[float, ...] = ()
    """What each channel was divided by."""
    named: bool = True
    """The spec names the data; otherwise only the sites know them."""

    @property
    def black(self) -> tuple[float, ...]:
        """What black has become in each channel, for crops."""
        return tuple(-m / s for m, s in zip(self.mean, self.std, strict=True))

    @staticmethod
    def of(spec: Spec, ready: Prepared) -> FederationConfig:
        """The federation config of an experiment on named data."""
        data = ready.data
        without_paths = replace(spec, model=ready.model, **dict.fromkeys(("data_dir", "out")))
        shape = tuple(int(n) for n in ready.x.shape[1:])
        numbers = int(data.classes), ready.partition.clients
        return FederationConfig(without_paths, shape, *numbers, tuple(data.mean), tuple(data.std))

    @staticmethod
    def read(path: Path) -> FederationConfig:
        """From its file."""
        values = read_toml(path)
        task = values.pop("task", None)
        if not isinstance(task, dict):
            raise InputError(
                f"federation config '{path}' has no table [task] with shape, classes, clients"
            )
        spec = Spec.of(values)
        spec.validate()
        named: dict[str, Any] = task
        for key in named:
            if key not in TASK:
                raise unknown("key of [task]", key, TASK)
        try:
            shape = tuple(int(n) for n in named["shape"])
            mean, std = (tuple(float(v) for v in named.get(n, ())) for n in ("mean", "std"))
            if len(mean) != len(std) or 0.0 in std:
                raise ValueError
            numbers = int(named["classes"]), int(named["clients"])
            return FederationConfig(
                spec, shape, *numbers, mean, std, bool(named.get("named", True))
            )
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"federation config '{path}': [task] needs shape, a list of numbers, classes and "
                "clients; mean and std, if there, are as many numbers each"
            ) from None

    def to_toml(self) -> str:
        """The file, which stands for itself."""
        import tomlkit

        settings = {k: v for k, v in self.spec.to_dict().items() if k not in NOT_HERE}
        document = tomlkit.parse(Spec.of(settings).to_toml())
        for key in NOT_HERE if self.named else (*NOT_HERE, "data", "partition"):
            document.pop(key, None)
        table = tomlkit.table()
        table.add("shape", list(self.shape))
        table.add("classes", self.classes)
        table.add("clients", self.clients)
        table.add("mean", list(self.mean))
        table.add("std", list(self.std))
        if not self.named:
            table.add("named", False)
        document.add("task", table)
        return tomlkit.dumps(document)

    def with_changes(self, changes: Mapping[str, Any]) -> FederationConfig:
        """The same with what a start of the app says otherwise: algorithm, rounds, seed, …"""
        wanted = {k: v for k, v in changes.items() if k in FIELDS and k not in NOT_HERE and v != ""}
        if not wanted:
            return self
        spec = Spec.of({**self.spec.to_dict(), **wanted})
        spec.validate()
        new = [code for code in foreign_code(spec) if code not in foreign_code(self.spec)]
        if new:  # whoever starts the app must not choose what a site imports
            raise InputError(f"'{new[0]}' is code that the config does not name; change the config")
        return replace(self, spec=spec)
