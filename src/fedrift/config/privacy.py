"""Options `privacy` and `aggregate`: what they say, and what a privacy option guarantees.

Central differential privacy of whole clients: each reply is clipped to a length, Gaussian noise is
added to the sum. The guarantee counts on a seed that is kept secret and on real numbers; here it
is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedrift.errors import InputError, no_option, unknown
from fedrift.grammar import Named, number, parse

if TYPE_CHECKING:
    from fedrift.core.sampling import Participation


ROBUST = {
    "median": "median",
    "trimmed": "trimmed:SHARE",
    "krum": "krum:F",
    "multikrum": "multikrum:F",
}
PRIVATE = "gaussian:NOISE,clip=LENGTH[,delta=1e-5]"


@dataclass(frozen=True)
class Robustness:
    """median of each coordinate; mean without the `value` share at either end; the reply (krum),
    or the mean of replies (multikrum), with the nearest neighbours, `value` being corrupted."""

    kind: str
    value: float = 0.0

    def __str__(self) -> str:
        return self.kind if self.kind == "median" else f"{self.kind}:{self.value:g}"

    def check_replies(self, number: int) -> None:
        """Krum compares each reply with its nearest neighbours."""
        least = int(self.value) + 3 if self.kind in ("krum", "multikrum") else 1
        if number < least:
            raise InputError(
                f"aggregate '{self}' needs at least {least} replies in a round, not {number}"
            )

    def trimmed(self, replies: int) -> int:
        """How many are left out at either end."""
        return min(int(self.value * replies + 1e-9), (replies - 1) // 2)


@dataclass(frozen=True)
class Privacy:
    """Noise of standard deviation `noise` × `clip` on the sum of replies of length ≤ `clip`."""

    noise: float
    clip: float
    delta: float = 1e-5
    expected: float = 1.0
    """The number of replies that sums are divided by, whoever came."""
    is_ghost: bool = False


def parse_aggregate(text: str | None) -> Robustness | None:
    """`median`, `trimmed:0.1`, `krum:2`, `multikrum:2`; `mean` is as usual."""
    if text is None or text == "mean":
        return None
    named = _named(text, "aggregate")
    if named.name not in ROBUST:
        raise unknown("aggregate", named.name, ["mean", *ROBUST])
    wanted = ROBUST[named.name]
    if named.options or (named.value is None) != (named.name == "median"):
        raise InputError(f"aggregate '{text}': write {wanted}")
    if named.name == "median":
        return Robustness("median")
    if named.name == "trimmed":
        share = number(named.value or "", "aggregate: trimmed", low=0.0, high=0.499)
        return Robustness("trimmed", share)
    return Robustness(
        named.name, number(named.value or "", f"aggregate: {named.name}", kind=int, low=0)
    )


def parse_privacy(text: str | None) -> Privacy | None:
    """`gaussian:1.1,clip=0.5,delta=1e-5`."""
    if text is None:
        return None
    named = _named(text, "privacy")
    if named.name != "gaussian":
        raise unknown("privacy", named.name, ["gaussian"])
    for key in named.options:
        if key not in ("clip", "delta"):
            raise no_option(f"privacy '{text}'", key, ("clip", "delta"), PRIVATE)
    if named.value is None or "clip" not in named.options:
        raise InputError(f"privacy '{text}': write {PRIVATE}")
    return Privacy(
        noise=number(named.value, "privacy: noise", low=0.0, low_open=True, high=1e6),
        clip=number(named.options["clip"], "privacy: clip", low=0.0, low_open=True, high=1e9),
        delta=number(
            named.options.get("delta", "1e-5"), "privacy: delta", low=0.0, low_open=True, high=0.5
        ),
    )


def _named(text: Any, field: str) -> Named:
    if not isinstance(text, str):
        raise InputError(f"{field}={text!r:.60} must be a text")
    named = parse(text, field)
    if named.inner is not None:
        raise InputError(f"{field} '{text}' has parentheses; remove them")
    return named


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ) for every client, and how it was reckoned."""

    epsilon: float
    delta: float
    basis: str

    def __str__(self) -> str:
        return f"ε = {self.epsilon:.4g} at δ = {self.delta:g} ({self.basis})"


@dataclass(frozen=True)
class Stretch:
    """The first rounds of a run, if they were made with other settings than the rest."""

    privacy: Privacy | None
    who: Participation
    rounds: int


def guarantee(
    privacy: Privacy, who: Participation, rounds: int, before: Stretch | None = None
) -> Guarantee:
    """What the run, its first rounds included, gives away of one client, by dp-accounting."""
    if before is None:
        return _composed(privacy.delta, [Stretch(privacy, who, rounds)])
    if before.privacy is None:
        basis = f"its first {before.rounds} rounds were made without privacy, so nothing is bounded"
        return Guarantee(math.inf, privacy.delta, basis)
    if before.who.kind != who.kind:
        raise InputError(
            f"privacy: no bound is known for a run that draws its clients in two ways; keep "
            f"sampling '{before.who.kind}'"
        )
    return _composed(privacy.delta, [before, Stretch(privacy, who, rounds - before.rounds)])


def _composed(delta: float, stretches: Sequence[Stretch]) -> Guarantee:
    who = stretches[0].who
    if who.kind not in ("bernoulli", "fixed"):
        raise InputError(
            f"privacy: no bound is known for sampling '{who.kind}'; use bernoulli or fixed"
        )
    try:
        from dp_accounting import (  # type: ignore[import-not-found]
            NeighboringRelation,
            dp_event,
            pld,
            rdp,
        )
    except ImportError:
        raise InputError(
            "privacy needs the library dp-accounting: pip install 'fedrift[privacy]'"
        ) from None
    if who.kind == "bernoulli":
        basis = "PLD, add or remove one client, sensitivity = clip, Bernoulli participation"
        accountant: Any = pld.PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    else:
        # Replacing a client moves a sum of vectors of length ≤ clip by up to 2 × clip.
        basis = "RDP, replace one client, sensitivity = 2 × clip, cohorts of fixed size"
        accountant = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    for part in stretches:
        assert part.privacy is not None
        noise, who = part.privacy.noise, part.who
        if who.kind == "bernoulli":
            one: Any = dp_event.GaussianDpEvent(noise)
            if who.share < 1.0:
                one = dp_event.PoissonSampledDpEvent(who.share, one)
        else:
            one = dp_event.GaussianDpEvent(noise / 2)
            if who.size < who.population:
                one = dp_event.SampledWithoutReplacementDpEvent(who.population, who.size, one)
        accountant.compose(dp_event.SelfComposedDpEvent(one, part.rounds))
    return Guarantee(float(accountant.get_epsilon(delta)), delta, basis)
