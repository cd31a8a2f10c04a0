"""What only a run's objects can tell: functions, devices, labels, a model that fits its data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrift.config.client_evaluation import ClientEvaluation, client_evaluation_of
from fedrift.config.fields import whole
from fedrift.config.local_work import amount, check_length
from fedrift.config.spec import Spec
from fedrift.core.algorithm import Algorithm
from fedrift.core.composition import personal_path
from fedrift.core.embeddings import embedded, outside
from fedrift.core.flat import Batch, count, map_tree, take
from fedrift.core.isolation import drawing_alone
from fedrift.core.local import Draw, Local
from fedrift.core.problem import TRIED, Problem, hash_of
from fedrift.core.training_report import is_classification
from fedrift.data import arrays
from fedrift.data.split import Split
from fedrift.errors import InputError, RunError, describe
from fedrift.storage.run_folder import is_own_column

FAILURES = (RuntimeError, TypeError, ValueError, IndexError)
"""What a module or a loss raises for numbers that do not fit."""
MAY_BE_GIVEN = ("accuracy", "perplexity")
"""Columns that the reader may measure where we do not."""


def check_column(name: object, where: str) -> None:
    """Refuses a column of the reader's that would stand in the place of one of ours."""
    if not isinstance(name, str) or not name.strip():
        raise InputError(f"{where}: {name!r} must be a name, a text")
    if not name.isprintable():  # half a character, say, which no file can hold
        raise InputError(f"{where}: {name!r} cannot be printed; choose another name")
    if not is_own_column(name) and name not in MAY_BE_GIVEN:
        raise InputError(f"{where}: '{name}' is a column of every run; choose another name")


def check_functions(loss: Any, metrics: Any) -> None:
    if isinstance(loss, type):
        raise InputError(f"loss={loss.__name__} is a class; give one of it, loss={loss.__name__}()")
    if loss is not None and not callable(loss):
        fix = "such as torch.nn.functional.cross_entropy, or a name such as 'mse'"
        raise InputError(f"loss={loss!r} must be a function of output and target, {fix}")
    if not isinstance(metrics, Mapping) or not all(map(callable, metrics.values())):
        raise InputError(
            f"metrics must map names to functions of output and target, such as {{'f1': f1}}; "
            f"not {metrics!r:.80}"
        )
    for name in metrics:
        check_column(name, "metrics")


def check_tested(tests: np.ndarray, sizes: np.ndarray, field: str) -> None:
    """Refuses test data for a client that has nothing to train on: a shifted list, most likely."""
    if len(wrong := np.flatnonzero((tests > 0) & (sizes == 0))):
        raise InputError(
            f"{field}: client {wrong[0]} has {tests[wrong[0]]} samples to test on and none to "
            "train on; give one set per client in the order of the clients"
        )


def client_evaluation(
    spec: Spec, held: Split, is_tested: bool, made: Algorithm[Any, Any], problem: Problem
) -> ClientEvaluation | None:
    """When clients evaluate: as said; else with every evaluation where nothing else is evaluated,
    and where clients have models of their own."""
    if spec.eval_clients is not None:
        if held.test is None:
            raise InputError(
                f"eval_clients '{spec.eval_clients}': clients have no test data of their own; "
                "give client_test=0.2, or fr.split(…, test=0.2)"
            )
        return client_evaluation_of(spec.eval_clients)
    is_wanted = not is_tested or personal_path(made, problem) is not None
    return ClientEvaluation(spec.eval_every) if held.test is not None and is_wanted else None


UNACCOUNTED = "eval_clients: what clients say of their test data is not covered by the privacy"
UNTESTED = (
    "the server's model lacks what stays at the clients, so its accuracy says little; give "
    "client_test=0.2 to evaluate the clients' own"
)

UNSEEN = "nothing is evaluated: give test=(x, y), or look at RoundReport.weights in on_round"


def unmeasured(metrics: Mapping[str, Any]) -> str:
    """Clients answer with sums of their own, which no function of the reader's can be made of."""
    return (
        f"metrics: {', '.join(metrics)} would be computed on the server's test set, and there is "
        "none: clients report loss and accuracy only; give test=(x, y), and theirs as client_test"
    )


def gaps(y: np.ndarray, classes: int) -> tuple[str, ...]:
    """A remark if the labels leave numbers out: 3, 7 and 100 make 101 classes."""
    if y.dtype.kind == "f" or y.ndim > 1:  # numbers, or the tokens of a text
        return ()
    labels = np.unique(y)
    if len(labels) == classes or int(labels[-1]) + 1 < classes:  # named classes may have no sample
        return ()
    return (f"labels are not 0 to {len(labels) - 1}: {len(labels)} of them make {classes} classes",)


def measured(name: str, measure: Callable[[Any, Any], Any]) -> Callable[[Any, Any], float]:
    """The reader's metric, which must give one number."""

    def scalar(output: Any, target: Any) -> float:
        try:
            value = measure(output, target)
        except Exception as error:
            raise RunError(f"metrics['{name}'] failed: {describe(error)}") from error
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            shape = getattr(value, "shape", None)
            what = type(value).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")
            raise InputError(
                f"metrics['{name}'] gave a {what}; one number is wanted, such as its mean()"
            ) from None

    return scalar


def check_own_metrics(
    problem: Problem, test: tuple[Any, Any] | None, metrics: Mapping[str, Any]
) -> None:
    """Refuses a metric in the place of one that is computed for this model and these targets."""
    given = [name for name in MAY_BE_GIVEN if name in metrics]
    if not given or test is None:
        return
    few = take(test, slice(2))
    output = problem.model.logits(problem.w0, few[0])
    if not is_classification(output, few[1], problem.classes):
        return
    ours = {"accuracy": "the share of labels that have the largest output"}
    if few[1].dim() == 2:
        ours["perplexity"] = "exp of the mean loss of the labels at the positions"
    for name in given:
        if name in ours:
            raise InputError(
                f"metrics: '{name}' is computed already, {ours[name]}; choose another name"
            )


def check_device(name: str) -> None:
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    if not there[torch.device(name).type]:
        raise InputError(f"device={name!r} is not available here; use cpu")


def check_local(local: Local | None, clients: int, problem: Problem) -> None:
    """Whether the algorithm's local work, which may be an object's own, suits clients and model."""
    if local is None:
        return
    for name in ("epochs", "steps"):
        work: Any = getattr(local, name)
        check_length(work, name, clients)
        if work is not None:
            amount().read(work.high if isinstance(work, Draw) else work, name)
    if local.batch_size is not None:
        whole(1).read(local.batch_size, "batch_size")
    if local.batch_size == 1 and problem.model.has_batch_norm:
        raise InputError("batch_size=1 gives batch normalisation nothing to average; use 2 or more")


def has_labels(y: Any) -> bool:
    return isinstance(y, Tensor) and not y.is_floating_point()


def check_labels(
    problem: Problem, split: Split, test: tuple[Any, Any] | None, strict: bool
) -> None:
    """Whether targets and output suit the default loss; with a loss of one's own anything may."""
    if not strict:
        return
    sides = [("clients", split.y), ("test", None if test is None else test[1])]
    if split.test is not None and split.test.y is not split.y:
        sides.append(("client_test", split.test.y))
    for name, y in sides:
        if isinstance(y, Tensor) and y.is_floating_point():
            raise InputError(
                f"{name}: targets are floating point ({str(y.dtype).removeprefix('torch.')} of "
                f"shape {tuple(y.shape)}), but without loss=… they must be class labels; give for "
                "example loss=torch.nn.functional.mse_loss for regression, or "
                "binary_cross_entropy_with_logits for several labels at once"
            )
    if problem.classes == 1:
        raise InputError(
            "loss: the model has one output, whose cross-entropy is always 0; give the model one "
            "output per class, or loss=… for regression or a yes-or-no answer"
        )
    check_range(problem, sides, split.x, split)


def check_range(
    problem: Problem, sides: Sequence[tuple[str, Any]], x: Any, split: Split | None = None
) -> None:
    """Refuses labels that are no class of the model; those of a split are named by client."""
    if problem.classes is None:
        return
    for name, y in sides:
        if isinstance(y, Tensor) and y.numel() and not y.is_floating_point():
            bad = ((y >= problem.classes) | ((y < 0) & (y != -100))).nonzero()
            if len(bad):
                sample, wrong = int(bad[0, 0]), int(y[tuple(bad[0])])
                whose = _owner(split, sample) if split is not None and y is split.y else name
                top = max(int(one.max()) for _, one in sides if isinstance(one, Tensor))
                more = f", or the model {top + 1} outputs" if wrong > 0 else ""
                raise InputError(
                    f"{whose}: label {wrong} is outside the model's {problem.classes} classes "
                    f"(0 to {problem.classes - 1}){classes_axis(problem, x)}; give labels "
                    f"that count from 0{more}"
                )


def check_embedded(
    problem: Problem, sides: Mapping[str, Any], x: Any, split: Split | None = None
) -> None:
    """Refuses numbers that an embedding, which is given the inputs as they come, does not have."""
    for place, layer, size in embedded(problem.model, problem.w0, x):
        for name, inputs in sides.items():
            tokens = inputs if place is None else inputs[place]
            bad = ((tokens < 0) | (tokens >= size)).nonzero()
            if len(bad) and _cannot_look_up(problem, take(inputs, bad[:1, 0])):
                sample, wrong = int(bad[0, 0]), int(tokens[tuple(bad[0])])
                whose = name if split is None or inputs is not split.x else _owner(split, sample)
                top = max(int(wrong), int(tokens.max()))
                raise InputError(f"{whose}: {outside(wrong, layer, size, top)}")


def _cannot_look_up(problem: Problem, x: Any) -> bool:
    """Whether a sample is too much for an embedding; a model may make other numbers of it."""
    try:
        problem.model.logits(problem.w0, x)
    except IndexError:
        return True
    except (RuntimeError, TypeError, ValueError):  # it takes no single sample; a visit will tell
        return False
    return False


def _owner(split: Split, sample: int) -> str:
    """The client that a sample of the block belongs to, as errors name it."""
    client = next((i for i, part in enumerate(split.parts) if sample in part), None)
    return "clients" if client is None else f"clients[{client}]"


def classes_axis(problem: Problem, x: Any) -> str:
    """Where classes are looked for in an output of many axes, as part of a sentence."""
    try:
        output = problem.model.logits(problem.w0, take(x, slice(2)))
    except FAILURES:  # there is no output to speak of
        return ""
    if not isinstance(output, Tensor) or output.dim() < 3:
        return ""
    shape = ", ".join(["N", *map(str, output.shape[1:])])
    return f"; dimension 1 of the output ({shape}) is taken as classes: transpose it if need be"


def try_loss(problem: Problem, probe: tuple[Any, Any], field: str) -> None:
    """Refuse, before the first round, a model, targets and a loss that do not fit together."""
    try:
        model = problem.model
        buffers = model.buffers()
        model.w.copy_(problem.w0)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Using a target size")  # broadcast by mistake
            if field != "loss":
                model.loss(problem.w0, probe)
            else:
                model.gradients(probe)
        model.load_buffers(buffers)
    except (*FAILURES, AttributeError, KeyError, UserWarning) as error:
        if field == "loss" and (shape := _no_number(problem, probe)):
            raise InputError(f"loss: {shape}") from error
        said = describe(error) if isinstance(error, (AttributeError, KeyError)) else error
        labels = _shortened(str(probe[1].tolist())) if isinstance(probe[1], Tensor) else "…"
        raise InputError(
            f"{field}: no loss can be computed from the model's output for two samples and the "
            f"targets {labels}: {said}{_fix(problem, probe)}"
        ) from error


def _shortened(words: str, most: int = 60) -> str:
    return words if len(words) <= most else f"{words[: most - 2]} …"


def _fix(problem: Problem, probe: tuple[Any, Any]) -> str:
    """What most often helps where output and targets do not fit together, after a semicolon."""
    x, y = probe
    try:
        output = problem.model.logits(problem.w0, x)
    except FAILURES:  # there is no output to speak of
        return ""
    if isinstance(output, Tensor) and isinstance(y, Tensor):
        if output.shape == (*y.shape, 1):
            return "; give the targets the output's shape, y[:, None]"
        if output.shape == y.shape and y.dim() == 2 and not y.is_floating_point():
            if bool((y.sum(dim=1) == 1).all()) and bool(((y == 0) | (y == 1)).all()):
                return "; give class labels, y.argmax(dim=1)"
            return (
                "; for several labels at once give y.float() and "
                "loss=torch.nn.functional.binary_cross_entropy_with_logits"
            )
    if not isinstance(output, Tensor):
        kind = type(output).__name__
        return f"; the model gives a {kind}: return a tensor, or give a loss that takes a {kind}"
    return classes_axis(problem, x)


def _no_number(problem: Problem, probe: tuple[Any, Any]) -> str:
    """What to do about a loss that has a number per sample, or is no tensor, of which there is no
    gradient; nothing if it has one."""
    try:
        value: object = problem.model.loss(problem.w0, probe)
    except (*FAILURES, AttributeError, KeyError, UserWarning):
        return ""
    if not isinstance(value, Tensor):
        return f"it gave a {type(value).__name__}, and a tensor is wanted, which has a gradient"
    if value.numel() == 1:
        return ""
    return (
        f"it gave a Tensor of shape {tuple(value.shape)} for two samples, and one number, their "
        "mean, is wanted: end it with .mean(), or leave reduction='none' out"
    )


def check_isolated(problem: Problem, batch: Batch, other: Batch) -> Problem:
    """Refuses a model whose gradient or output depends on what was computed before it; the task
    with what was seen.

    The same batch at the same weights with the same seed, twice and after another batch, must
    give the same bits: else a client's update would depend on who was visited before.
    """
    model, threads, keeps = problem.model, torch.get_num_threads(), False
    torch.set_num_threads(1)  # as in every visit
    try:
        given = (batch, batch, other, batch)
        first, again, _, last = map(problem.first_gradient, given)
        with suppress(Exception):  # an evaluation that fails says so itself
            seen, _, then = (problem.first_outputs(some[0]) for some in (other, batch, other))
            keeps |= seen != then
    except Exception:  # the first visit fails in the same way, and the run says at whom
        return problem
    finally:
        torch.set_num_threads(threads)
    if not all(torch.equal(first.nan_to_num(), g.nan_to_num()) for g in (again, last)):
        raise InputError(
            f"model: {type(model.module).__name__} gives other gradients for the same samples, "
            "weights and seed: it keeps something that cannot be put back between two clients; "
            "keep it in a buffer or a plain attribute, and draw random numbers from torch, numpy "
            "or random"
        )
    if keeps:
        raise InputError(
            f"model: {type(model.module).__name__} gives other outputs for the same samples when "
            "it is evaluated: it keeps something that cannot be put back between two evaluations; "
            "keep it in a buffer or a plain attribute, and draw random numbers from torch, numpy "
            "or random"
        )
    return replace(problem, tried=(problem.trial(), hash_of(first)))


# A model bound to its data: tried on two samples, in the memory format that suits it.


def bind(
    describe: Callable[..., Problem],
    split: Split,
    test: tuple[Any, Any] | None,
    check: Callable[[Problem, Split, tuple[Any, Any] | None], None],
    device: str,
) -> tuple[Problem, Split, tuple[Any, Any] | None, tuple[str, ...]]:
    """Try the model on two samples: channels-last images first, then as they came."""
    first = split.first(2)
    try:
        return *_bound(describe, split, test, check, first, device, arrays.channels_last), ()
    except InputError:
        if not arrays.has_images(split.x):
            raise
    notes = ("the model takes no channels-last images: slower convolutions",)
    return *_bound(describe, split, test, check, first, device, arrays.contiguous), notes


@drawing_alone()
def _bound(
    describe: Callable[..., Problem],
    split: Split,
    test: tuple[Any, Any] | None,
    check: Callable[[Problem, Split, tuple[Any, Any] | None], None],
    first: np.ndarray,
    device: str,
    arrange: Callable[[Any], Any],
) -> tuple[Problem, Split, tuple[Any, Any] | None]:
    def placed(tree: Any) -> Any:
        return map_tree(lambda t: t.to(device), tree)

    own = split.test
    if own is not None and own.x is not split.x:
        own = own.with_data(placed(arrange(own.x)), placed(own.y))
    data = split.with_data(
        placed(arrange(split.x)), placed(split.y), None if own is split.test else own
    )
    probe = take(data.x, first), take(data.y, first)
    more = take(data.x, split.first(TRIED))
    problem = describe(probe=map_tree(lambda t: t.cpu(), probe), more=map_tree(Tensor.cpu, more))
    check(problem, data, test)
    try_loss(problem, probe, "loss")
    if data.test is not None and data.test.x is not data.x:
        few = torch.from_numpy(data.test.first(2))
        try_loss(problem, (take(data.test.x, few), take(data.test.y, few)), "client_test")
    problem = check_isolated(problem, (more, take(data.y, split.first(TRIED))), probe)
    sides = {"clients": data.x} if len(data.parts) else {}
    if data.test is not None and data.test.x is not data.x:
        sides["client_test"] = data.test.x
    if test is None or not count(test[0]):
        check_embedded(problem, sides, probe[0], data)
        return problem, data, None
    test = placed(arrange(test[0])), placed(test[1])
    check_embedded(problem, {**sides, "test": test[0]}, probe[0], data)
    few = torch.arange(min(2, count(test[0])))
    try_loss(problem, (take(test[0], few), take(test[1], few)), "test")
    return problem, data, test
