"""Parts of a model that stay at the clients: any algorithm with parameters it never sees.

Kept parameters are trained in the same local steps as the others. They follow the plain gradient of
the step, with the local optimizer and without the algorithm's corrections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedrift.algorithms.wrappers import Wrapper
from fedrift.core import Algorithm, Cohort, Layout, Problem, Site, Vec, state
from fedrift.core import EvaluatedModel, InnerVisit, InputError, inner_client, makes_steps

NOTHING = Layout((), ())


@state
class Server:
    inner: Any
    start: Vec  # the model everybody began with: what is kept stays as it was there


@state
class Kept:
    own: Vec  # parameters that stay at the client
    statistics: tuple[Tensor, ...]  # running statistics that stay there
    inner: Any  # what the algorithm inside keeps


@dataclass(frozen=True)
class Keep(Wrapper):
    """Some parameters and running statistics stay at the client, whatever the algorithm is."""

    inner: Algorithm[Any, Any]
    what: str = "head"
    may_match_nothing: bool = False
    names: tuple[str, ...] = ()  # of what is kept; known with the model
    whole: Layout = NOTHING
    shared: Layout = NOTHING

    def view(self, child: str, p: Problem) -> Problem:
        return p.keeping(self.names)

    def prepare(self, p: Problem) -> Keep:
        inner_client(self.inner, p)  # refuses what cannot be inside
        names = kept_names(self.what, p, self.may_match_nothing)
        view = p.keeping(names)
        inner = self.inner.prepare(view)
        return replace(self, inner=inner, names=names, whole=p.layout, shared=view.layout)

    def check(self, p: Problem) -> None:
        if self.names and not makes_steps(self.inner):
            kind = type(self.inner).__name__
            raise InputError(f"{kind} makes no local steps, so what is kept would never be trained")
        self.inner.check(self.view("inner", p))

    def server(self, p: Problem) -> Server:
        return Server(inner=self.inner.server(self.view("inner", p)), start=p.w0)

    def client(self, p: Problem) -> Kept:
        view = self.view("inner", p)
        own, statistics = view.own_start()
        return Kept(own=own, statistics=statistics, inner=inner_client(self.inner, view))

    def round(self, s: Server, cohort: Cohort) -> Server:
        p = cohort.problem
        before = dict(zip(p.moving, cohort.buffers, strict=True))
        cohort.problem = view = self.view("inner", p)
        cohort.buffers = tuple(before[name] for name in view.moving)
        inner = self.inner.round(s.inner, cohort)
        after = before | dict(zip(view.moving, cohort.buffers, strict=True))
        cohort.problem, cohort.buffers = p, tuple(after.values())
        return replace(s, inner=inner)

    def around(self, visit: InnerVisit, site: Site, received: Any, mine: Kept) -> tuple[Any, Kept]:
        site.load_own(mine.own, mine.statistics)
        up, inner = visit(mine.inner)
        own, statistics = site.own()
        return up, Kept(own=own, statistics=statistics, inner=inner)

    def personal(self, site: Site, shown: EvaluatedModel, mine: Kept) -> EvaluatedModel:
        p = site.problem
        own = p.layout.select(lambda name: name in self.names)
        kept = [name for name in p.moving if name in self.names]
        moved = dict(zip(p.moving, shown.buffers, strict=True))
        moved |= dict(zip(kept, mine.statistics, strict=True))
        w = p.layout.placed(shown.w, own, mine.own)
        return replace(shown, w=w, buffers=tuple(moved[name] for name in p.moving))

    def kept(self) -> tuple[str, ...]:
        return self.names

    def has_global_model(self) -> bool:
        return not self.names  # it lacks what was kept

    def model(self, s: Server) -> Vec:
        return self._placed(s, self.inner.model(s.inner))

    def also(self, s: Server) -> Mapping[str, Vec]:
        return {name: self._placed(s, w) for name, w in self.inner.also(s.inner).items()}

    def _placed(self, s: Server, w: Vec) -> Vec:
        return self.whole.placed(s.start, self.shared, w)

    def frozen(self, s: Server, p: Problem) -> Mapping[str, Tensor]:
        return self.inner.frozen(s.inner, self.view("inner", p))


def kept_names(what: str, p: Problem, may_match_nothing: bool = False) -> tuple[str, ...]:
    """Names of the parameters and running statistics that a text chooses."""
    by: dict[str, str] = {}
    for pattern in what.split("+"):
        found = p.matching(pattern)
        if not found and pattern != "none" and not may_match_nothing:
            known = ", ".join(p.layout.names[:4]) + (", …" if len(p.layout.names) > 4 else "")
            raise InputError(
                f"what={pattern} matches no trained parameter and no running statistic of the "
                f"model ({known}); write head, norm (BatchNorm; layers of another normalisation go "
                "by their names), all or a name such as 'conv1.*'"
            )
        for name in found:
            if name in by:
                raise InputError(
                    f"what={what}: '{by[name]}' and '{pattern}' both keep '{name}'; drop one"
                )
            by[name] = pattern
    return tuple(by)


def keep(inner: Algorithm[Any, Any], what: str = "head") -> Keep:
    """Any algorithm with a part of the model that stays at the clients: `keep(scaffold):what=head`.

    what: head, norm (BatchNorm layers only), all, none, or names such as conv1.*; joined by +
    """
    return Keep(inner=inner, what=what)
