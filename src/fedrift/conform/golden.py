"""Golden numbers: does an algorithm reproduce its rows of the table, to 2e-6 in float64?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedrift.conform import closed_form
from fedrift.conform.problem import Trial, alternating, golden, pair
from fedrift.conform.report import Cell, not_checked, sum_up
from fedrift.conform.runs import path
from fedrift.conform.subject import Subject
from fedrift.conform.watched_run import Inside
from fedrift.engine.callbacks import RoundReport

# Each algorithm's model after 1, 2, 3 and 10 rounds on two quadratics.

AFTER = (1, 2, 3, 10)


@dataclass(frozen=True)
class Row:
    """One line of the table: w after 1, 2, 3 and 10 rounds, six decimals."""

    text: str
    numbers: str
    mode: Literal["F", "A"] = "F"
    local: Mapping[str, Any] = field(default_factory=dict[str, Any])
    copies: tuple[int, ...] = (1, 1)

    @property
    def name(self) -> str:
        return self.text.partition("(")[0].partition(":")[0]

    @property
    def points(self) -> list[tuple[float, float]]:
        values = [float(number) for number in self.numbers.split()]
        return list(zip(values[::2], values[1::2], strict=True))

    @property
    def trial(self) -> Trial:
        trial = replace(golden(self.copies), rounds=AFTER[len(self.points) - 1])
        return (alternating(trial) if self.mode == "A" else trial).working(**self.local)

    def __str__(self) -> str:
        settings = " ".join(f"{key}={value}" for key, value in self.local.items())
        sizes = "" if self.copies == (1, 1) else f"n={self.copies}"
        return " ".join(part for part in (self.text, self.mode, settings, sizes) if part)


UNEQUAL = {"steps": (2, 8)}

ROWS = (
    Row(
        "fedsgd",
        "-0.050000 0.200000 -0.087500 0.370000 -0.115625 0.514500 -0.188737 1.070834",
    ),
    Row(
        "fedavg:weights=uniform",
        "0.153145 0.745670 0.204315 1.087996 0.221412 1.245153 0.229987 1.377961",
    ),
    Row(
        "fedavg",
        "-0.384548 0.782345 -0.463742 1.192910 -0.480052 1.408369 -0.484282 1.643697",
        copies=(1, 3),
    ),
    Row(
        "fedavg",
        "-0.206602 0.749533 -0.292011 1.150708 -0.327319 1.365430 -0.352150 1.609597",
        local=UNEQUAL,
    ),
    Row(
        "fedavgm:beta=0.9",
        "0.153145 0.745670 0.342145 1.759099 0.437564 2.465332 0.362954 1.541067",
    ),
    Row(
        "fedavgm:beta=0.9,nesterov=true",
        "0.290976 1.416773 0.337867 1.981467 0.280136 1.888650 0.230472 1.399990",
    ),
    Row(
        "fedprox:mu=1",
        "0.116740 0.613470 0.168622 0.953707 0.191679 1.142405 0.210060 1.373585",
    ),
    Row(
        "fednova",
        "0.405249 0.805958 0.589738 1.105791 0.673726 1.217336 0.743631 1.283350",
        local=UNEQUAL,
    ),
    Row(
        "fednova",
        "2.151527 2.327962 2.359006 0.231686 2.379014 2.119334 2.381149 0.795558",
        local={**UNEQUAL, "momentum": 0.9},
    ),
    Row(
        "fednova:mu=1",
        "0.360733 0.812680 0.509847 1.113352 0.571486 1.224593 0.614829 1.289857",
        local=UNEQUAL,
    ),
    Row(
        "scaffold",
        "0.153145 0.745670 0.011874 1.082616 -0.111618 1.228747 -0.200098 1.333162",
    ),
    Row(
        "scaffold:option=I",
        "0.153145 0.745670 -0.108848 1.087996 -0.216940 1.231479 -0.200043 1.333118",
    ),
    Row(
        "scaffold",
        "1.228530 0.672320 -0.543460 1.491340 -0.572668 1.097313 -0.198369 1.326808",
        mode="A",
    ),
    Row(
        "fedadagrad",
        "0.099349 0.099866 0.148460 0.167804 0.177757 0.221898 0.227427 0.462700",
    ),
    Row(
        "fedadam",
        "0.093685 0.098668 0.215513 0.231707 0.330681 0.386294 0.113592 1.559243",
    ),
    Row(
        "fedyogi",
        "0.093683 0.098668 0.215081 0.231353 0.329780 0.385085 0.116380 1.538473",
    ),
    Row(
        "feddyn:alpha=1",
        "0.233480 1.226940 0.135412 1.594608 -0.003634 1.578034 -0.188532 1.333105",
    ),
    Row(
        "feddyn:alpha=1",
        "1.512720 0.831930 -0.904077 1.698228 0.086560 1.360288 -0.262820 1.352585",
        mode="A",
    ),
    Row(
        "fedsam:rho=0.1",
        "0.151621 0.776334 0.196381 1.118587 0.206961 1.267749 0.205799 1.382042",
    ),
    Row(
        "fedasam:rho=0.5,eta_a=0.2",
        "0.196625 0.832313 0.283074 1.257744 0.337901 1.422610 0.436111 1.482343",
    ),
    Row(
        "fedcm:alpha=0.1",
        "-0.018799 0.097050 -0.051503 0.271826 -0.092296 0.501814 -0.231822 1.925157",
    ),
    Row(
        "mofedsam:alpha=0.1,rho=0.1",
        "-0.024876 0.100831 -0.068127 0.282091 -0.122054 0.519891 -0.313223 1.936946",
    ),
    Row(
        "fedgamma:rho=0.1",
        "0.151621 0.776334 -0.018351 1.105806 -0.159880 1.240550 -0.258519 1.327506",
    ),
    Row(
        "fedspeed:gamma=1,a=0.9,rho=0.1",
        "0.220337 1.271989 0.094454 1.615841 -0.056113 1.573205 -0.240532 1.328287",
    ),
    Row(
        "fedsmoo:r=0.1,gamma=1",
        "0.223497 1.277291 0.094166 1.619070 -0.062375 1.570840 -0.209305 1.363126",
    ),
    Row(
        "fedgf:rho=0.1,rho_g=0.1,threshold=0.9,window=3",
        "0.151621 0.776334 -0.263945 1.267693 -0.264734 1.374189 -0.157176 1.411624",
    ),
    Row(
        "fedgf:rho=0.1,rho_g=0.1,threshold=auto,window=3",
        "1.264989 0.701807 -0.900409 1.250060 0.737597 1.075576 -2.325240 1.502520",
        mode="A",
    ),
    Row(
        "ghbm:tau=1",
        "0.153145 0.745670 0.292536 1.588417 0.331186 2.040459 0.244849 1.456032",
    ),
    Row(
        "ghbm:tau=2",
        "0.153145 0.745670 0.204315 1.087996 0.280261 1.610231 0.223936 1.235361",
    ),
    Row(
        "ghbm:tau=2",
        "1.228530 0.672320 -0.826710 1.216018 0.435675 1.438684 -0.865137 1.357936",
        mode="A",
    ),
    Row(
        "localghbm",
        "1.228530 0.672320 -0.826710 1.216018 0.435675 1.438684 -0.865137 1.357936",
        mode="A",
    ),
    Row(
        "fedhbm",
        "1.228530 0.672320 -0.826710 1.216018 0.059025 1.261745 -0.803508 1.476082",
        mode="A",
    ),
    Row(
        "mime",
        "-0.160018 0.745670 -0.192007 1.074322 -0.198402 1.219175 -0.200000 1.332964",
    ),
    Row(
        "mimemom",
        "-0.023792 0.097050 -0.066166 0.274380 -0.120223 0.511055 -0.308487 2.037352",
    ),
    Row(
        "mimemom:form=heavy_ball",
        "-0.160018 0.745670 -0.336023 1.745425 -0.385597 2.414741 -0.312200 1.607893",
    ),
    Row(
        "mimelitemom",
        "-0.018799 0.097050 -0.056814 0.274403 -0.107647 0.511144 -0.306755 2.038860",
    ),
    Row(
        "diloco",
        "0.000011 0.066343 0.000029 0.160344 0.000050 0.278424 0.000215 1.427355",
        local={"lr": 0.01},
    ),
    Row(
        "diloco",
        "0.066357 0.066334 0.027869 0.160524 0.091003 0.278573 0.084216 1.478608",
        mode="A",
        local={"lr": 0.01},
    ),
    Row(
        "diloco:warmup=7,schedule=cosine",
        "0.000292 0.282133 0.003437 0.996122 0.010299 1.783934 0.041551 2.663959",
    ),
    Row(
        "diloco:inner_wd=0.5,server_lr=1,server_momentum=0.5",
        "0.677256 0.671343 -0.113348 1.231651 0.508854 1.271757 -0.318371 1.054625",
        mode="A",
    ),
    Row(
        "fedasync",
        "0.736385 0.402998 0.033042 0.579156 0.761316 0.748755 0.060690 1.321979",
    ),
    Row(
        "fedasync",
        "0.341910 0.215940 -0.219815 0.606797 0.232718 0.560691 -0.377405 1.390709",
        local=UNEQUAL,
    ),
    Row(
        "fedasync:alpha=0.8,staleness=hinge,a=2,b=1,rho=0.5",
        "0.444000 0.280000 -0.622311 1.121064 0.609026 0.649813 1.163453 1.118494",
        local={"steps": (2, 40)},
    ),
    Row(
        "fedasync:staleness=constant,rho=0",
        "0.737118 0.403392 -0.258497 0.652769 0.894876 0.743810 -0.147597 1.439538",
        copies=(1, 3),
    ),
    Row(
        "fedbuff:buffer=1",
        "1.228530 0.672320 0.576408 1.251455 1.568893 1.082397 0.542945 1.301041",
    ),
    Row(
        "fedbuff:buffer=3",
        "0.052265 0.619689 -0.337652 1.195850 -0.211332 1.357282 -0.423627 1.639129",
        local=UNEQUAL,
    ),
    Row(
        "fedbuff:buffer=3,server_lr=0.5,staleness=none",
        "0.023333 0.448406 0.045189 0.843004 -0.205996 1.297183 -0.266281 1.692582",
        local={"steps": (2, 40)},
    ),
    Row(
        "fedbuff:buffer=2",
        "0.153145 0.745670 0.055758 1.240201 -0.018895 1.456228 -0.044136 1.461707",
        copies=(1, 3),
    ),
)

# By definition the same as another row, or a mean of its first three points.
DERIVED = (
    Row("mimelite", ROWS[1].numbers),
    Row("sam(scaffold):rho=0.1", ROWS[22].numbers),
    Row("asam(fedavg):rho=0.5,eta_a=0.2", ROWS[19].numbers),
    Row("serveradam(fedavg)", ROWS[14].numbers),
    Row("swa(fedavg):start=0", "0.153145 0.745670 0.178730 0.916833 0.192957 1.026273"),
    Row("wima(fedavg):window=2", "0.153145 0.745670 0.178730 0.916833 0.212864 1.166575"),
)

# The model, and what each of two clients is evaluated with, after five rounds of least squares.


@dataclass(frozen=True)
class Personal:
    """One line: w, θ of the first client, θ of the second."""

    text: str
    numbers: str
    mode: Literal["F", "A"] = "F"

    @property
    def name(self) -> str:
        return self.text.partition("(")[0].partition(":")[0]

    @property
    def trial(self) -> Trial:
        trial = pair(PERSONAL_AFTER)
        return alternating(trial) if self.mode == "A" else trial

    def __str__(self) -> str:
        return f"{self.text} {self.mode}"


PERSONAL_AFTER = 5
PERSONAL = (
    Personal(
        "localonly",
        "0.500000 -0.500000 1.584512 -0.259844 0.633748 -1.334441",
    ),
    Personal(
        "localonly",
        "0.500000 -0.500000 1.329621 -0.386196 0.494890 -0.909788",
        "A",
    ),
    Personal(
        "fedper:what=own",
        "1.126433 -0.500000 1.126433 -0.368623 1.126433 -1.542284",
    ),
    Personal(
        "fedper:what=own",
        "1.063294 -0.500000 1.063294 -0.458885 1.063294 -1.049573",
        "A",
    ),
    Personal(
        "keep(fedavg):what=own",
        "1.126433 -0.500000 1.126433 -0.368623 1.126433 -1.542284",
    ),
    Personal(
        "keep(fedavg):what=own", "1.063294 -0.500000 1.063294 -0.458885 1.063294 -1.049573", "A"
    ),
    Personal(
        "fedrep:what=own,head_steps=2", "1.008182 -0.500000 1.008182 -0.450239 1.008182 -1.284440"
    ),
    Personal(
        "fedrep:what=own,head_steps=2",
        "1.064389 -0.500000 1.064389 -0.501325 1.064389 -0.915417",
        "A",
    ),
    Personal(
        "finetune(fedavg):steps=4", "1.004381 -0.729524 1.251878 -0.518502 0.726410 -1.072443"
    ),
    Personal(
        "finetune(fedavg):steps=4", "0.967920 -0.717857 1.230906 -0.518979 0.709242 -1.055996", "A"
    ),
    Personal(
        "ditto(fedavg):lam=0.7,steps=2,lr=0.2",
        "1.004381 -0.729524 1.450686 -0.366369 0.731132 -1.257450",
    ),
    Personal(
        "ditto(fedavg):lam=0.7,steps=2,lr=0.2",
        "0.967920 -0.717857 1.279137 -0.480617 0.623160 -0.991015",
        "A",
    ),
    Personal(
        "pfedme:lam=2,inner_steps=4,inner_lr=0.05,beta=0.8",
        "0.831513 -0.695897 1.183157 -0.476586 0.664033 -1.032713",
    ),
    Personal(
        "pfedme:lam=2,inner_steps=4,inner_lr=0.05,beta=0.8",
        "0.859438 -0.602662 1.129019 -0.491316 0.620745 -0.902179",
        "A",
    ),
    Personal(
        "apfl:alpha=0.3",
        "1.004381 -0.729524 1.105834 -0.512990 0.626788 -0.946294",
    ),
    Personal(
        "apfl:alpha=0.3",
        "0.967920 -0.717857 0.915347 -0.632050 0.626045 -0.846059",
        "A",
    ),
    Personal(
        "apfl:alpha=0.3,adaptive=true", "1.004381 -0.729524 1.106787 -0.517087 0.586579 -0.940940"
    ),
    Personal(
        "apfl:alpha=0.3,adaptive=true",
        "0.967920 -0.717857 0.911029 -0.624118 0.607950 -0.833496",
        "A",
    ),
    Personal(
        "fedbn",
        "1.004381 -0.729524 1.004381 -0.729524 1.004381 -0.729524",
    ),
    Personal(
        "fedbn",
        "0.967920 -0.717857 0.967920 -0.717857 0.967920 -0.717857",
        "A",
    ),
)

TOLERANCE = 2e-6


def rows_of(kind: str) -> list[Row]:
    """The rows of one name."""
    return [row for row in (*ROWS, *DERIVED) if row.name == kind]


def check(subject: Subject) -> Cell:
    """All rows of the algorithm's name."""
    if subject.kind == "fed3r":
        return sum_up(closed_form.golden_failures(), 2, "row")
    rows = rows_of(subject.kind)
    own = [row for row in PERSONAL if row.name == subject.kind]
    if not rows and not own:
        return not_checked("no row in the golden table")
    faults = [fault for row in rows for fault in failures(row)]
    faults += [fault for row in own for fault in personal_failures(row)]
    return sum_up(faults, len(rows) + len(own), "row")


def failures(row: Row) -> list[str]:
    """The first round at which a row differs, if there is one."""
    weights = path(row.text, row.trial)
    for after, expected in zip(AFTER, row.points, strict=False):
        if after > len(weights):
            return [f"{row}: stopped after round {len(weights)}"]
        w = weights[after - 1].tolist()
        if max(abs(a - b) for a, b in zip(w, expected, strict=True)) > TOLERANCE:
            return [f"{row}: after round {after} w is {_point(w)}, not {_point(expected)}"]
    return []


def personal_failures(row: Personal) -> list[str]:
    """Which of the three points differs, if one does."""
    inside, found = Inside(row.text, row.trial), list[list[float]]()

    def look(report: RoundReport) -> None:
        thetas = [inside.evaluated(client, report).w for client in (0, 1)]
        found[:] = [point.tolist() for point in (report.weights, *thetas)]

    inside.run(look)
    numbers = [float(number) for number in row.numbers.split()]
    expected = list(zip(numbers[::2], numbers[1::2], strict=True))
    for name, w, right in zip(("w", "θ_0", "θ_1"), found, expected, strict=True):
        if max(abs(a - b) for a, b in zip(w, right, strict=True)) > TOLERANCE:
            return [f"{row}: {name} is {_point(w)}, not {_point(right)}"]
    return []


def _point(w: list[float] | tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{x:.6f}" for x in w) + ")"
