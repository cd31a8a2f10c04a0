"""The catalogue: options read from source, typed from text, refused in one sentence."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from textwrap import dedent

import pytest

from fedrift.config.algorithms import Kind, Scalar, kind_of
from fedrift.errors import InputError
from tests.support.product import catalogue, parse

FILES = {
    "algorithm.py": """
        from typing import Annotated, Literal, TypeAlias
        Weights: TypeAlias = Literal["samples", "uniform"]
        Positive = Annotated[float, "> 0"]
        class Algorithm: ...
        """,
    "local.py": "class Local: ...",
    "algorithms/__init__.py": """
        NAMES = Constructors({
            "average": "average:Average", "prox": "average:prox", "wrap": "wrap:Wrap",
            "near": "settled:near", "far": "settled:far", "spring": "settled:Spring",
        })
        """,
    "algorithms/average.py": '''
        """Averaging, Someone and others, 2017, algorithm 1.

        Where we differ."""
        import math
        from typing import TYPE_CHECKING, ClassVar, Literal
        from fedrift.algorithm import Algorithm, Weights
        if TYPE_CHECKING:
            from fedrift.algorithm import Positive
            from fedrift.local import Local
        SMALL = 1e-3
        @dataclass(frozen=True)
        class Parent(Algorithm):
            weights: Weights = "samples"
        @dataclass(frozen=True)
        class Average(Parent):
            """The mean of what clients send.

            server_lr: how far the server goes
            tau: window of rounds
            """
            local: Local = Local()
            outer: "Optimizer" = SGD(lr=1.0)
            kinds: ClassVar[int] = 3
            pieces: tuple[Correction, ...] = ()
            server_lr: "Positive" = 1.0
            tau: int | Literal["auto"] = "auto"
            clip: float | None = None
            nesterov: bool = False
            small: float = SMALL
            threshold: float = math.inf
            inner: Literal["adamw", "sgd"] = "adamw"
            weights: Weights = "uniform"
        class Optimizer: ...
        class Correction: ...
        def prox(local: Local, mu: float, *, weights: Weights = "samples") -> Average:
            """Average with a pull to the start.

            mu: strength of the pull
            """
        ''',
    "algorithms/settled.py": '''
        """Settling, Somebody else, 2021."""
        from functools import partial
        from fedrift.algorithms.average import Average, prox
        def _pull(far: bool, local: Local, mu: float = 1.0, power: int = 2) -> Average:
            """Average with a pull.

            mu: strength of the pull
            power: of the distance
            """
        near = partial(_pull, False)
        """Average with a weak pull."""
        far = partial(_pull, True, power=3)
        """Average with a strong pull."""
        class Local: ...
        @dataclass(frozen=True)
        class Spring(Average):
            """An average on a spring.

            tau: time it swings
            """
        ''',
    "algorithms/wrap.py": '''
        """Wrapping, Somebody, 2020."""
        from fedrift.algorithm import Algorithm
        @dataclass(frozen=True)
        class Wrap(Algorithm):
            """Averages models of another algorithm over rounds.

            start: first round, or fraction of rounds
            """
            inner: Algorithm
            start: int | float = 0.75
        ''',
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return tmp_path


def test_a_dataclass(package: Path) -> None:
    entry = catalogue.algorithms(package)["average"]
    assert (entry.module, entry.attribute) == ("fedrift.algorithms.average", "Average")
    assert entry.summary == "The mean of what clients send."
    assert entry.citation == "Averaging, Someone and others, 2017, algorithm 1."
    assert not entry.is_wrapper
    defaults = {option.name: option.default for option in entry.options}
    assert defaults == {
        "weights": "uniform",
        "server_lr": 1.0,
        "tau": "auto",
        "clip": None,
        "nesterov": False,
        "small": 1e-3,
        "threshold": math.inf,
        "inner": "adamw",
    }
    about = {option.name: option.about for option in entry.options}
    assert about["server_lr"] == "how far the server goes"
    assert "averaged" in about["weights"]
    assert entry.usage.startswith("average:weights=uniform,server_lr=1,tau=auto,clip=none")


def test_a_function_and_a_required_option(package: Path) -> None:
    entry = catalogue.entry("prox", package)
    assert [option.name for option in entry.options] == ["mu", "weights"]
    assert [option.required for option in entry.options] == [True, False]
    assert entry.options[0].about == "strength of the pull"
    assert entry.usage == "prox:mu=…,weights=samples"


def test_a_function_with_a_part_settled(package: Path) -> None:
    near, far = catalogue.entry("near", package), catalogue.entry("far", package)
    assert (near.module, near.attribute) == ("fedrift.algorithms.settled", "near")
    assert near.citation == "Settling, Somebody else, 2021."
    assert near.summary == "Average with a weak pull."
    assert near.usage == "near:mu=1,power=2"
    assert [option.about for option in near.options] == ["strength of the pull", "of the distance"]
    assert (far.summary, far.usage) == ("Average with a strong pull.", "far:mu=1")


def test_fields_and_their_lines_are_inherited_across_files(package: Path) -> None:
    spring, average = catalogue.entry("spring", package), catalogue.entry("average", package)
    assert spring.summary == "An average on a spring."
    assert [str(option) for option in spring.options] == [str(option) for option in average.options]
    about = {option.name: option.about for option in spring.options}
    assert about["tau"] == "time it swings"
    assert about["server_lr"] == "how far the server goes"


def test_a_wrapper(package: Path) -> None:
    entry = catalogue.entry("wrap", package)
    assert entry.is_wrapper
    assert entry.usage == "wrap(INNER):start=0.75"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("average", {}),
        ("average:server_lr=2", {"server_lr": 2.0}),
        ("average:tau=5,clip=none", {"tau": 5, "clip": None}),
        ("average:tau=AUTO,nesterov=True", {"tau": "auto", "nesterov": True}),
        ("average:threshold=inf", {"threshold": math.inf}),
        ("prox:mu=0.3", {"mu": 0.3}),
        ("wrap(prox:mu=1):start=3", {"start": 3}),
        ("wrap(average):start=0.5", {"start": 0.5}),
    ],
)
def test_typed_options(package: Path, text: str, expected: dict[str, Scalar]) -> None:
    typed = catalogue.check(parse(text, "algorithm"), package=package)
    assert typed == expected
    assert [type(value) for value in typed.values()] == [type(v) for v in expected.values()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("averag", "unknown algorithm 'averag': did you mean 'average'?"),
        ("average:server-l=2", "unknown option of average 'server_l': did you mean 'server_lr'?"),
        ("average:server_lr=x", "option server_lr of average must be a number > 0, not 'x'"),
        ("average:server_lr=0", "option server_lr of average must be a number > 0, not '0'"),
        ("average:server_lr=nan", "must be a number > 0, not 'nan'"),
        ("average:tau=1.5", "option tau of average must be a whole number or auto, not '1.5'"),
        ("average:nesterov=1", "must be true or false, not '1'"),
        ("average:weights=all", "must be samples or uniform, not 'all'"),
        ("average:0.3", "'0.3'; options are written key=value"),
        ("average(prox:mu=1)", "average wraps no other algorithm"),
        ("prox", "needs option 'mu'"),
        ("wrap", "name it in parentheses"),
        ("wrap(prox:mu=x)", "option mu of prox must be a number, not 'x'"),
        ("wrap(nothing)", "unknown algorithm 'nothing'"),
    ],
)
def test_refused(package: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        catalogue.check(parse(text, "algorithm"), package=package)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_annotation_defined_nowhere_is_the_packages_mistake(package: Path) -> None:
    path = package / "algorithms" / "wrap.py"
    path.write_text(path.read_text().replace("int | float", "Fractoin"))
    with pytest.raises(ValueError, match="Fractoin"):
        catalogue.entry("wrap", package)


def test_a_bound_that_cannot_be_read_is_the_packages_mistake() -> None:
    with pytest.raises((KeyError, ValueError)):
        kind_of(ast.parse("Annotated[float, '=> 0']", mode="eval").body, lambda name: None)


def test_kind_in_words() -> None:
    assert str(Kind(("float",), (None,), (">= 0", "< 1"))) == "a number >= 0 and < 1 or none"
    assert str(Kind((), ("I", "II"))) == "I or II"


def test_the_real_package_is_readable_and_documented() -> None:
    entries = catalogue.algorithms()
    assert {"fedsgd", "fedavg", "scaffold"} <= set(entries)
    for entry in entries.values():
        assert entry.summary and entry.citation
        assert [option.name for option in entry.options if not option.about] == []


def test_the_catalogue_agrees_with_the_imported_algorithms() -> None:
    """What is read from source is what the constructors really take."""
    import inspect

    from fedrift.algorithms import NAMES

    for name, entry in catalogue.algorithms().items():
        parameters = inspect.signature(NAMES[name]).parameters
        for option in entry.options:
            default = parameters[option.name].default
            assert default == (inspect.Parameter.empty if option.required else option.default)
