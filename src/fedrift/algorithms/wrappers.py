"""Wrappers: any algorithm with another gradient rule, server optimizer or model to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any

from torch import Tensor

from fedrift.core import Algorithm, Cohort, Local, Problem, Redefine, Sampling, Vec, state
from fedrift.core import ASAM, SAM, Adam, Gradient, InputError, Plain
from fedrift.core import local_of, makes_steps, map_local, parts


class Wrapper(Algorithm[Any, Any]):
    """All but the round and the model that is shown is the inner algorithm's."""

    inner: Algorithm[Any, Any]

    def check(self, p: Problem) -> None:
        self.inner.check(p)
        if p.moving:
            raise InputError(
                "swa, wima: averaged weights do not fit the running statistics of batch "
                "normalisation; use a model with group normalisation or none"
            )

    def sampling(self, s: Any) -> Sampling:
        return self.inner.sampling(s.inner)

    def allowed(self, s: Any) -> Tensor | None:
        return self.inner.allowed(s.inner)

    def temperature(self, s: Any) -> float:
        return self.inner.temperature(s.inner)

    def local_now(self, s: Any) -> Local | None:
        return self.inner.local_now(s.inner)

    def frozen(self, s: Any, p: Problem) -> Mapping[str, Tensor]:
        return self.inner.frozen(s.inner, p)

    def log(self, s: Any) -> Mapping[str, float]:
        return self.inner.log(s.inner)

    def adapt(self, p: Problem, redefine: Redefine) -> Problem:
        return self.inner.adapt(p, redefine)

    def has_global_model(self) -> bool:
        return self.inner.has_global_model()

    def exhausted(self, s: Any, p: Problem) -> Any:
        return replace(s, inner=self.inner.exhausted(s.inner, p))


@state
class Wrapped:
    inner: Any


class AtClients(Wrapper):
    """The server does what the inner algorithm does; clients do something more."""

    def prepare(self, p: Problem) -> Algorithm[Any, Any]:
        return replace(self, inner=self.inner.prepare(p))  # type: ignore[type-var]

    def check(self, p: Problem) -> None:
        self.inner.check(p)
        if not makes_steps(self.inner):
            kind = type(self.inner).__name__
            raise InputError(f"{kind} makes no local steps that could be made for a client itself")

    def server(self, p: Problem) -> Wrapped:
        return Wrapped(inner=self.inner.server(p))

    def round(self, s: Wrapped, cohort: Cohort) -> Wrapped:
        return Wrapped(inner=self.inner.round(s.inner, cohort))

    def model(self, s: Wrapped) -> Vec:
        return self.inner.model(s.inner)

    def also(self, s: Wrapped) -> Mapping[str, Vec]:
        return self.inner.also(s.inner)


def with_sam(
    inner: Algorithm[Any, Any], rho: Annotated[float, ">= 0"] = 0.05
) -> Algorithm[Any, Any]:
    """Any algorithm with sharpness-aware local steps: `sam(scaffold):rho=0.05`.

    rho: length of the ascent
    """
    return _with_rule(inner, SAM(rho))


def with_asam(
    inner: Algorithm[Any, Any],
    rho: Annotated[float, ">= 0"] = 0.5,
    eta_a: Annotated[float, ">= 0"] = 0.2,
) -> Algorithm[Any, Any]:
    """Any algorithm with adaptive sharpness-aware local steps.

    rho: length of the ascent in scaled coordinates
    eta_a: added to |w|, so that small weights move too
    """
    return _with_rule(inner, ASAM(rho, eta_a))


def _with_rule(inner: Algorithm[Any, Any], rule: Gradient) -> Algorithm[Any, Any]:
    for _, node in parts(inner):
        local = getattr(node, "local", None)
        plain = isinstance(local, Local) and isinstance(local.gradient, Plain)
        if isinstance(local, Local) and not (plain and node.takes_gradient_rule):
            kind = type(node).__name__
            raise InputError(f"sam, asam: {kind} already says where its gradient is taken")
    if local_of(inner) is None:
        raise InputError("sam, asam: there are no local steps to change")
    return map_local(inner, lambda local: replace(local, gradient=rule))


def with_server_adam(
    inner: Algorithm[Any, Any],
    server_lr: Annotated[float, "> 0"] = 0.1,
    tau: Annotated[float, "> 0"] = 1e-3,
    beta1: Annotated[float, ">= 0", "< 1"] = 0.9,
    beta2: Annotated[float, ">= 0", "< 1"] = 0.99,
) -> Algorithm[Any, Any]:
    """Any algorithm with an outer optimizer, with Adam in its place: `serveradam(scaffold)`.

    server_lr: rate of the server's step
    tau: adaptivity, outside the root
    beta1: decay of the mean update
    beta2: decay of its square
    """
    if "outer" not in {f.name for f in fields(inner)}:  # type: ignore[arg-type]
        kind = type(inner).__name__
        raise InputError(f"serveradam: {kind} has a server rule of its own, no outer optimizer")
    return replace(inner, outer=Adam(server_lr, beta1, beta2, tau, tau**2))  # type: ignore[type-var]
