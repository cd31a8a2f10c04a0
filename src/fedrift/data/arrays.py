"""The reader's own data, in the forms people have them, as tensors; `split` divides them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.masked import MaskedTensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from fedrift.core.alignment import dense
from fedrift.core.flat import count, map_tree
from fedrift.data import partition
from fedrift.data.shift import domains_of
from fedrift.data.sources import huggingface
from fedrift.data.split import Split
from fedrift.errors import InputError, describe, named_arguments


def inputs(value: Any, dtype: torch.dtype | None, field: str) -> Any:
    """What a model is given. Truth values beside other inputs are masks, and stay what they are."""
    return tensors(value, dtype, field, has_masks=isinstance(value, (dict, tuple)))


def tensors(value: Any, dtype: torch.dtype | None, field: str, *, has_masks: bool = False) -> Any:
    """Arrays as tensors: floats in the run's dtype (None: as they are), whole numbers as int64,
    truth values as floats unless they are masks."""
    if isinstance(value, dict):
        tree = {
            key: tensors(v, dtype, f"{field}[{key!r}]", has_masks=has_masks)
            for key, v in value.items()
        }
        return _of_one_length(tree, tree.values(), field)
    if isinstance(value, tuple):
        parts = tuple(
            tensors(v, dtype, f"{field}[{i}]", has_masks=has_masks) for i, v in enumerate(value)
        )
        return _of_one_length(parts, parts, field)
    _refuse_kinds(value, field)
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(_writable(value))
    except (TypeError, ValueError) as error:
        why = _ragged([(item,) for item in value], error) if isinstance(value, list) else error  # type: ignore[reportUnknownArgumentType]
        if _is_text(value):
            why = (
                "it holds text, or numbers of several kinds; number it first, such as with "
                "np.unique(values, return_inverse=True)[1], or pd.get_dummies(table) for columns"
            )
        raise InputError(f"{field}: {type(value).__name__} cannot become a tensor: {why}") from None
    if tensor.is_complex():
        raise InputError(
            f"{field}: holds complex numbers; give real and imaginary parts as two columns "
            "(torch.view_as_real)"
        )
    if tensor.dim() == 0:
        raise InputError(f"{field}: a single number is no data; the first axis counts samples")
    tensor = dense(tensor.detach(), channels_last=False)
    if tensor.is_floating_point():
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{field}: holds NaN or infinite values; clean the data first")
        return tensor if dtype is None else tensor.to(dtype)
    if tensor.dtype is torch.bool:  # several labels at once: targets of a loss with logits
        return (
            tensor
            if has_masks
            else tensor.to(torch.get_default_dtype() if dtype is None else dtype)
        )
    return tensor.to(torch.int64)


def _is_text(value: Any) -> bool:
    """Whether the array of it would hold something else than numbers."""
    try:
        return _array(value).dtype.kind in "OSU"
    except ValueError:  # ragged
        return False


def _refuse_kinds(value: Any, field: str) -> None:
    """Containers that hold no plain block of numbers, each with what to do about it."""
    if isinstance(value, Dataset):
        raise InputError(f"{field}: a Dataset is no array; give it in the place of the pair (x, y)")
    if isinstance(value, (np.ma.MaskedArray, MaskedTensor)):
        raise InputError(f"{field}: is masked; fill what is hidden, such as with .filled(0)")
    if isinstance(value, Tensor) and value.is_nested:
        raise InputError(
            f"{field}: is a nested tensor; pad it to one length (torch.nested.to_padded_tensor)"
        )
    if isinstance(value, Tensor) and (value.is_quantized or value.is_meta):
        fix = "holds no numbers (meta)" if value.is_meta else "is quantized; give x.dequantize()"
        raise InputError(f"{field}: {fix}")
    if isinstance(value, Tensor) and value.layout != torch.strided:
        raise InputError(f"{field}: is sparse ({value.layout}); give x.to_dense()")


ITERABLE = ("__iter__", "__array__", "__array_interface__")


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "__getitem__") and not any(map(partial(hasattr, value), ITERABLE)):
        value = [value[i] for i in range(len(value))]  # asked by number it may never say stop
    return np.asarray(value)


def _writable(value: Any) -> np.ndarray:
    """As torch can take it: it knows neither read-only memory nor steps backwards, nor numbers
    that stand across the places of others or with their bytes the other way round."""
    array = _array(value)
    flags, kind = array.flags, array.dtype
    steps = (step < 0 or step % (kind.itemsize or 1) for step in array.strides)
    if flags.writeable and flags.aligned and kind.isnative and not any(steps):
        return array
    return np.array(array, dtype=kind.newbyteorder("="), order="C")


def _of_one_length(tree: Any, parts: Iterable[Any], field: str) -> Any:
    lengths = {count(part) for part in parts}
    if len(lengths) != 1:
        raise InputError(f"{field}: its parts have {sorted(lengths)} samples; they must agree")
    return tree


def channels_last(value: Any) -> Any:
    """Images in the memory format in which convolutions are fastest; the rest as it is."""

    return map_tree(lambda x: dense(x, channels_last=True), value)


def contiguous(value: Any) -> Any:
    """Images row by row, for modules that look at their memory."""
    return map_tree(lambda x: dense(x, channels_last=False), value)


def has_images(value: Any) -> bool:
    return any(x.dim() == 4 for x in _flat(value))


def pair(value: Any, dtype: torch.dtype, field: str) -> tuple[Any, Any]:
    """One (x, y), from arrays or from a map-style data set."""
    if isinstance(value, Dataset):
        value = _read(value, field)
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        has_data = isinstance(value, DataLoader)
        fix = "; give its data set (.dataset), batches are made here" if has_data else ""
        raise InputError(
            f"{field} must be a pair (x, y) or a Dataset, not {type(value).__name__}{fix}"
        )
    x, y = inputs(value[0], dtype, f"{field} x"), tensors(value[1], dtype, f"{field} y")
    if count(x) != count(y):
        raise InputError(f"{field}: x has {count(x)} samples but y has {count(y)}")
    return x, y


def _read(data: Any, field: str) -> tuple[Any, Any]:
    if isinstance(data, IterableDataset):
        raise InputError(f"{field}: an iterable data set has no order; give a map-style one")
    try:
        n = len(data)
    except (TypeError, NotImplementedError):
        raise InputError(
            f"{field}: {type(data).__name__} does not say how many samples it has; give it __len__"
        ) from None
    if n == 0:
        return torch.empty(0), torch.empty(0, dtype=torch.int64)
    first = _item(data, 0, field)
    if not isinstance(first, (tuple, list)) or len(first) != 2:
        raise InputError(f"{field}: its items must be pairs (x, y), not {type(first).__name__}")
    _check_room(n, first, field)
    try:
        some = range(min(n, 16))  # a flip may spare a few
        agree = [_agree(_item(data, i, field), _item(data, i, field)) for i in some]
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{field}: its items cannot become tensors: {error}") from None
    if not all(agree):
        raise InputError(
            f"{field}: two reads of one item differ, so the data set augments; data are read once, "
            "so move that to augment=['crop:4', 'flip', …]"
        )
    items = [_item(data, i, field) for i in range(n)]
    try:
        x, y = default_collate(items)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        why = _ragged(items, error)
        raise InputError(f"{field}: its items cannot become one block: {why}") from None
    return (tuple(x) if isinstance(x, list) else x), y


def _check_room(samples: int, first: Any, field: str) -> None:
    """Refuses what no memory of this machine holds, before all of it is read."""
    needed = there = 0
    with suppress(AttributeError, OSError, ValueError, TypeError, RuntimeError):
        needed = samples * sum(torch.as_tensor(leaf).nbytes for leaf in _flat(tuple(first)))
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there > 0:
        raise InputError(
            f"{field}: its {samples:,} samples take {needed / 1e9:,.1f} GB, and this machine has "
            f"{there / 1e9:,.1f} GB; give fewer"
        )


def _item(data: Any, index: int, field: str) -> Any:
    try:
        return data[index]
    except (IndexError, KeyError) as error:
        raise InputError(
            f"{field}: {type(data).__name__} has {len(data)} samples, but number {index} cannot be "
            f"read ({describe(error)})"
        ) from error


def _ragged(items: Sequence[Any], error: Exception, names: Sequence[str] = ()) -> str:
    """Which of the items has another shape than the first; what torch says if none has."""
    try:
        shapes = [[tuple(np.shape(leaf)) for leaf in _flat(tuple(item))] for item in items]
    except ValueError:  # lists inside an item that are ragged themselves
        return str(error)
    other = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
    if other is None:
        return str(error)
    first, odd = (names[i] if names else f"item {i}" for i in (0, other))
    return (
        f"{odd} has shapes {shapes[other]}, {first} {shapes[0]}; pad them to one length "
        "(labels of padding: -100), and give the model a mask as a second input if it needs one"
    )


def _agree(one: Any, other: Any) -> bool:
    def equal(a: Any, b: Any) -> bool:
        return torch.equal(torch.as_tensor(a), torch.as_tensor(b))

    return all(_flat(map_tree(equal, tuple(one), tuple(other))))


def _flat(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for v in tree.values() for leaf in _flat(v)]
    return [leaf for v in tree for leaf in _flat(v)] if isinstance(tree, tuple) else [tree]


def gather(clients: Any, dtype: torch.dtype, field: str = "clients") -> Split:
    """All clients' samples in one block."""
    if isinstance(clients, Split):
        own = clients.test
        if own is not None and own.x is not clients.x:
            own = gather(own, dtype, f"{field} test")
        x, y = inputs(clients.x, dtype, f"{field} x"), tensors(clients.y, dtype, f"{field} y")
        if own is not None and own.x is clients.x:
            own = own.with_data(x, y)
        return Split(x, y, clients.parts, clients.note, test=own, domains=clients.domains)
    if isinstance(clients, str):
        raise InputError(
            f"{field}='{clients}' must be a list of (x, y), one per client; data sets by name are "
            "for the command line, as in fedrift run --data digits"
        )
    if not isinstance(clients, Sequence) or not clients:
        found = "it is empty" if isinstance(clients, Sequence) else f"not {type(clients).__name__}"
        fix = f"; give list({field}.values())" if isinstance(clients, Mapping) else ""
        raise InputError(
            f"{field} must be a list of (x, y), one per client, a list of Datasets, or what "
            f"fr.split returns; {found}{fix}"
        )
    pairs = [pair(c, dtype, f"{field}[{i}]") for i, c in enumerate(clients)]
    sizes = [count(y) for _, y in pairs]
    full = [p for p, n in zip(pairs, sizes, strict=True) if n]
    if not full:
        raise InputError(f"{field}: nobody has any samples")
    ends = np.cumsum([0, *sizes])
    parts = [np.arange(a, b) for a, b in pairwise(ends)]
    try:
        x, y = (map_tree(lambda *ts: torch.cat(ts), *side) for side in zip(*full, strict=True))
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        names = [f"{field}[{i}]" for i, n in enumerate(sizes) if n]
        ones = [map_tree(lambda t: t[0], one) for one in full]
        raise InputError(
            f"{field}: the samples of different clients differ in shape: "
            f"{_ragged(ones, error, names)}"
        ) from None
    return Split(x, y, parts)


def is_per_client(test: Any) -> bool:
    """Whether test data are one set per client: a split, or a list of data sets or of (x, y).

    A tuple is always one pair, and so is a list of two arrays.
    """
    if isinstance(test, Split):
        return True
    return isinstance(test, list) and all(isinstance(one, (Dataset, tuple)) for one in test)  # type: ignore[reportUnknownVariableType]


def gather_tests(test: Any, clients: int, dtype: torch.dtype, field: str) -> Split:
    """The test data of each client, in one block."""
    if len(test) != clients:
        raise InputError(
            f"{field} has test data of {len(test)} clients, but there are {clients}; give one "
            "(x, y) or Dataset per client, an empty one where there is none"
        )
    return gather(test, dtype, field)


# `fr.split`: the reader's own samples, divided among clients by a scheme of `data.partition`.

SHIFTED = ", shift "
"""Between the scheme and the shift in the note of a split."""


@named_arguments
def split(
    x: Any,
    y: Any,
    scheme: Any = "iid",
    *,
    clients: int = 10,
    seed: int = 0,
    users: Any = None,
    alpha: float | None = None,
    shift: str | None = None,
    labels: Any = None,
    test: float | None = None,
) -> Split:
    """Divide samples among clients: `fr.split(x, y, "dirichlet:0.1", clients=100)`.

    Args:
        x: All samples: a tensor or an array, or a tuple or dict of these.
        y: Their labels or targets.
        scheme: As for `fedrift run --partition`; `fedrift list partitions` describes them. It may
            be a partitioner of flwr_datasets too, which brings its number of clients.
        clients: How many.
        seed: Fixes who gets what.
        users: Who each sample comes from, for `"natural"`; the number of clients is theirs.
        alpha: Takes the place of the number in a Dirichlet scheme.
        shift: Makes inputs differ by client, such as `"rotation:45"`; with
            `"rotation:45,domains=6,unseen=5"` the test set of `run` is evaluated in each of six
            domains, the last of which no client has.
        labels: Whole numbers to skew by, where `y` itself holds no class labels (regression,
            several labels at once, maps of pixels).
        test: The share of its samples that each client keeps to be tested on, such as 0.2, in
            the proportions of its classes; what is left is what it trains on. A client of a
            single sample keeps it for training.

    Returns:
        The clients' data, for the argument `clients` of `run` and `compare`.
    """
    if isinstance(x, Dataset):
        raise InputError(
            "x: a Dataset is no array, and split divides arrays; write for example "
            "x, y = next(iter(DataLoader(dataset, batch_size=len(dataset))))"
        )
    x_tree, y_tree = inputs(x, None, "x"), tensors(y, None, "y")
    if count(x_tree) != count(y_tree):
        raise InputError(f"x has {count(x_tree)} samples but y has {count(y_tree)}")
    names = None if users is None else np.asarray(users)
    by = _targets(y_tree) if labels is None else _labels(labels, count(y_tree))
    if isinstance(scheme, str):
        arguments: dict[str, Any] = {
            "clients": clients,
            "seed": seed,
            "users": names,
            "alpha": alpha,
        }
        division = partition.partition(scheme, by, **arguments)
    else:
        division = huggingface.partition_by(scheme, by, seed)
    made = Split(x_tree, y_tree, division.parts, division.name)
    if shift is not None:
        if not isinstance(x_tree, Tensor):
            raise InputError(f"shift '{shift}' needs one tensor of images as x")
        x_tree = torch.from_numpy(partition.shift(shift, x_tree.numpy(), division.parts, seed))
        note, domains = f"{division.name}{SHIFTED}{shift}", domains_of(shift, len(division.parts))
        made = Split(x_tree, y_tree, division.parts, note, domains=domains)
    return made if test is None else made.held_out(checked_share(test, "test"), seed)


def checked_share(share: Any, field: str) -> float:
    """A share of the samples that is neither none nor all."""
    is_number = isinstance(share, (int, float, np.number)) and not isinstance(share, bool)
    if not is_number or not 0 < share < 1:
        raise InputError(f"{field}={share!r} must be a share above 0 and below 1, such as 0.2")
    return float(share)


def _targets(y: Any) -> np.ndarray:
    """What a scheme looks at; one that skews labels refuses what holds none."""
    return y.numpy() if isinstance(y, Tensor) else np.empty(count(y), dtype=object)


def _labels(labels: Any, samples: int) -> np.ndarray:
    array = np.asarray(labels)
    if array.shape != (samples,) or array.dtype.kind not in "iub":
        raise InputError(
            f"labels must be {samples} whole numbers, one per sample, not {array.dtype} of shape "
            f"{array.shape}"
        )
    return array
