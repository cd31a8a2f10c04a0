"""The naming grammar: what each text means, and that bad text is refused in one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrift.errors import InputError
from fedrift.grammar import Named, number
from tests.support.product import parse

GOOD = [
    ("fedavg", Named("fedavg")),
    ("fedprox:mu=0.3", Named("fedprox", None, {"mu": "0.3"})),
    ("fedprox,mu=0.3", Named("fedprox", None, {"mu": "0.3"})),
    ("dirichlet:0.1", Named("dirichlet", "0.1")),
    ("dirichlet:0.1,min_size=5", Named("dirichlet", "0.1", {"min_size": "5"})),
    ("dirichlet:0.1,min-size=5", Named("dirichlet", "0.1", {"min_size": "5"})),
    ("synthetic:1,1", Named("synthetic", "1,1")),
    ("synthetic:1,1,iid=true", Named("synthetic", "1,1", {"iid": "true"})),
    ("classes:1,3|0,6|2,5", Named("classes", "1,3|0,6|2,5")),
    ("npz:/a/b,c.npz", Named("npz", "/a/b,c.npz")),
    ("npz:/a/x=3/b.npz", Named("npz", "/a/x=3/b.npz")),
    ("npz:C:\\data\\b.npz", Named("npz", "C:\\data\\b.npz")),
    ("npz:/a/b (1).npz", Named("npz", "/a/b (1).npz")),
    ("csv:FILE,root=/d/e", Named("csv", "FILE", {"root": "/d/e"})),
    ("package.module:attribute", Named("package.module", "attribute")),
    ("package.module:Net,width=3", Named("package.module", "Net", {"width": "3"})),
    ("swa(fedavg)", Named("swa", inner=Named("fedavg"))),
    (
        "swa(fedasam:rho=0.7,eta_a=0.2):start=0.75,cycle=10,lr2=1e-4",
        Named(
            "swa",
            None,
            {"start": "0.75", "cycle": "10", "lr2": "1e-4"},
            Named("fedasam", None, {"rho": "0.7", "eta_a": "0.2"}),
        ),
    ),
    (
        "a(b(c:k=1):k=2)",
        Named("a", inner=Named("b", None, {"k": "2"}, Named("c", None, {"k": "1"}))),
    ),
    ("  fedprox : mu = 0.3 ", Named("fedprox", None, {"mu": "0.3"})),
    ("cnn-mcmahan", Named("cnn-mcmahan")),
]


@pytest.mark.parametrize(("text", "expected"), GOOD, ids=[text for text, _ in GOOD])
def test_meaning(text: str, expected: Named) -> None:
    assert parse(text, "thing") == expected


@pytest.mark.parametrize("text", [text for text, _ in GOOD])
def test_canonical_text_parses_to_the_same(text: str) -> None:
    named = parse(text, "thing")
    assert parse(str(named), "thing") == named


def test_canonical_text_does_not_depend_on_the_order_of_options() -> None:
    assert str(parse("a:z=1,b=2", "thing")) == str(parse("a:b=2,z=1", "thing")) == "a:b=2,z=1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "name"),
        ("   ", "name"),
        (":0.1", "name"),
        ("=3", "name"),
        ("()", "name"),
        ("swa()", "name"),
        ("swa(fedavg", "parentheses"),
        ("swa(fedavg))", "parentheses"),
        ("fedavg)", "parentheses"),
        ("swa(fedavg)start=1", "after the name"),
        ("fed avg", "after the name"),
        ("fedavg:", "nothing after"),
        ("fedavg:mu=1,", "nothing after"),
        ("fedavg:mu=1,mu=2", "twice"),
        ("fedavg:m-u=1,m_u=2", "twice"),
        ("fedavg:=3", "no key"),
        ("fedavg:mu=", "no value"),
        ("fedavg,scaffold", "key=value"),
        ("a" * 20_000, "long"),
        ("a(" * 50 + "b" + ")" * 50, "inside one another"),
    ],
)
def test_bad_text_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match="partition") as caught:
        parse(text, "partition")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        named = parse(text, "thing")
    except InputError:
        return
    assert parse(str(named), "thing") == named


@pytest.mark.parametrize(
    ("text", "bounds", "expected"),
    [
        ("1e-3", {}, 0.001),
        ("-2", {}, -2.0),
        ("0", {"low": 0}, 0.0),
        ("1", {"low": 0, "high": 1, "low_open": True}, 1.0),
    ],
)
def test_number(text: str, bounds: dict[str, float], expected: float) -> None:
    assert number(text, "lr", **bounds) == expected  # type: ignore[arg-type]


def test_a_whole_number_is_an_int() -> None:
    assert isinstance(number("12", "clients", kind=int), int)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "abc", "", "0", "-1", "2", "1e999"])
def test_bad_number_names_field_and_value(text: str) -> None:
    with pytest.raises(InputError) as caught:
        number(text, "lr", low=0, high=1, low_open=True)
    assert str(caught.value) == f"lr must be a number above 0 and at most 1, not '{text}'"


@pytest.mark.parametrize("text", ["1.5", "1e3", "x", "0"])
def test_bad_whole_number(text: str) -> None:
    with pytest.raises(InputError, match="clients must be a whole number of at least 1"):
        number(text, "clients", kind=int, low=1)


def test_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, fedrift.grammar; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
