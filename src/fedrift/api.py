"""The front door: run, with one's own model and data or with named ones."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedrift import backends
from fedrift.comparison import CallbacksOf, Comparison, Item, Runner
from fedrift.config.analyses import LivePlan, parse_live_plan
from fedrift.config.grid import seeds_of, slug
from fedrift.config.spec import FIELDS, Spec
from fedrift.core.composition import local_of
from fedrift.core.isolation import own_turn
from fedrift.core.sampling import Chooser
from fedrift.data.arrays import is_per_client
from fedrift.engine import task
from fedrift.engine.build import AlgorithmLike, has_personal_models, instance, text_of, work
from fedrift.engine.callbacks import Callback, RoundReport, callbacks_of
from fedrift.engine.execute import execute
from fedrift.engine.objects import objects_from_call, spec_from_call
from fedrift.engine.plan import Task, UserMetric
from fedrift.engine.prepare import Prepared, prepare
from fedrift.engine.progress import Shown, showing
from fedrift.engine.result import Result
from fedrift.engine.task import where
from fedrift.engine.trackers import tracks
from fedrift.errors import InputError, named_arguments, unknown
from fedrift.storage.fork import Origin
from fedrift.storage.run_folder import check_comparable

if TYPE_CHECKING:
    from fedrift.analysis.next_round import Watch


@named_arguments
def run(
    algorithm: AlgorithmLike,
    *,
    model: str | Callable[[], nn.Module] | nn.Module,
    clients: Any,
    test: Any = None,
    client_test: Any = None,
    loss: str | Callable[[Any, Any], Tensor] | None = None,
    metrics: Mapping[str, UserMetric] | None = None,
    rounds: int,
    per_round: int | None = None,
    fraction: float | None = None,
    participants: Sequence[Sequence[int]] | None = None,
    sampling: str | Chooser = "fixed",
    epochs: Any = None,
    steps: Any = None,
    batch_size: int | str | None = "default",
    lr: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    clip: float | None = None,
    schedule: str | None = None,
    optimizer: str | None = None,
    weights: str | None = None,
    augment: Sequence[str] | str | None = None,
    devices: str | None = None,
    late: str | None = None,
    faults: Sequence[str] | str | None = None,
    aggregate: str | None = None,
    privacy: str | None = None,
    compress: str | None = None,
    dtype: str | torch.dtype = "float32",
    device: str = "cpu",
    stack: str = "auto",
    workers: int | str = "auto",
    backend: str = "auto",
    seed: int = 0,
    out: str | Path | None = None,
    eval_every: int = 1,
    eval_clients: str | int | None = None,
    head: str | None = None,
    adapter: str | None = None,
    on_round: Callable[[RoundReport], bool | None] | None = None,
    callbacks: Sequence[Callback] = (),
    track: str | Sequence[str] | None = None,
    analyse: str | LivePlan | None = None,
    profile: bool = False,
    progress: bool | str = "auto",
) -> Result:
    """Simulate a federation and return its `Result`.

    Args:
        algorithm: A text such as `"fedprox:mu=0.3"` or `"my_module:MyAlgorithm,mu=0.3"`, an
            `Algorithm` object or its class. The local settings below fill an object that was given
            no `Local`.
        model: A function that returns a module (a class will do), a module, which is copied, or
            the name of one of ours such as `"cnn"`; it gets as many outputs as there are labels.
        clients: What `split` returns, or a list with one `(x, y)` or map-style `Dataset` per
            client. `x` may be a tuple of tensors (positional arguments of the model) or a dict
            (keyword arguments).
        test: `(x, y)` or a `Dataset` that the server evaluates on; or a list with one `(x, y)` or
            `Dataset` per client, which clients evaluate on. Without any nothing is evaluated.
        client_test: Test data of the clients' own, beside those of the server: the share of its
            samples that each client keeps for it, such as 0.2, or a list with one per client.
            `split(…, test=0.2)` says the same.
        loss: `f(output, target)`, the mean over the batch, or a name of `fedrift list losses`, such
            as `"mse"`; cross-entropy of class labels unless given. Floating-point targets need one.
        metrics: `{name: f(output, target)}`: each gives one number for the whole test set at once,
            a column of `result.metrics`.
        rounds: How many.
        per_round: Clients in a round; all unless given.
        fraction: The same as a share of all clients.
        participants: Instead of these, exactly who: one list of client numbers per round. Lists
            beyond `rounds` are not used, and a note says so.
        sampling: `"fixed"` draws that many, `"bernoulli"` each with that probability, `"cyclic"`
            takes them in turns, `"size"` draws that many in proportion to their samples and
            averages them uniformly, `"available"` asks those whose device is there (with
            `devices`), `"power:D"` of D drawn by size those with the largest reported loss; or
            `f(choice)`, also as `"module:function"`, which gives the numbers of the clients.
        epochs: Local work: a number, a list with one per client, or `"uniform:2,5"`, drawn per
            client and round. 1 unless `steps` is given.
        steps: The same in minibatches; only one of the two.
        batch_size: A number; `"full"` or `None` takes all of a client's samples at once. 64 unless
            given, all for FedSGD.
        lr: Rate of the local steps; 0.1 unless given.
        momentum: Of the local steps.
        weight_decay: Of the local steps.
        clip: The largest norm of a local step.
        schedule: Of `lr` over rounds: `"exp:0.9"`, `"step:10,factor=0.5"` or `"cosine"`; with
            `",per=step"` (or `"cosine:per=step"`) over the local steps of each visit.
        optimizer: Of the local steps, by torch's name and with its options and defaults: `"sgd"`,
            `"adam"`, `"adamw:betas=0.9|0.95,eps=1e-6"`, `"adagrad"`, `"rmsprop:momentum=0.5"`; the
            run's `lr`, `momentum` and `weight_decay` are its own. What it remembers begins anew at
            every visit.
        weights: How replies are averaged: `"samples"` or `"uniform"`; the algorithm's own unless
            given.
        augment: Such as `["crop:4", "flip", "mixup:alpha=1", "cutout:length=16"]`.
        devices: A simulated clock, by the speed, bandwidth and presence of each client's device:
            `"uniform"`, `"lognormal:1"`, `"stragglers:0.5"`, `"FILE.csv"` or `"trace:FILE.csv"`.
        late: What is done about clients that take long on that clock: `"wait"`, `"drop:60"` after
            so many seconds, `"partial:60"` (as many steps as these allow), or `"over:5"` (five
            more are asked, and the first replies count).
        faults: Such as `["dropout:0.1", "stragglers:0.3,late=partial", "corrupt:0.2"]`.
        aggregate: In place of the mean: `"median"`, `"trimmed:0.1"`, `"krum:2"`, `"multikrum:2"`.
        privacy: Clips and noises what clients send: `"gaussian:NOISE,clip=LENGTH,delta=1e-5"`.
        compress: How vectors are packed where they travel: `"up=topk:0.01"` (the largest entries,
            the rest with a later reply), `"up=qsgd:8,down=float16"`, `"up=sign"`; `"up.dc=…"` says
            it of one field.
        dtype: `"float32"` or `"float64"`, or torch's own.
        device: `"cpu"`, `"cuda"` or `"mps"`.
        stack: Small models are trained many clients at once: `"auto"` where it pays, `"off"`, or
            `"on"`.
        workers: Processes that train clients, 0 for none; the bits do not depend on them. `"auto"`
            starts one per core if the run is long enough.
        backend: `"auto"`, `"in-process"`, `"processes"` or `"ray"`.
        seed: Fixes every random choice.
        out: A folder for the run; one that holds the beginning of the same run is continued.
        eval_every: Every how many rounds the model is evaluated, and after the last.
        eval_clients: When clients evaluate the model, or their own, on test data of their own, and
            how many of them: `"every=10"` or `"every=10,sample=200"`. With every evaluation where
            the server has no test data and where the algorithm has personal models.
        head: Name of the last layer, for algorithms that need to know it.
        adapter: What is trained, on a base that stays as it is: `"lora:rank=8,alpha=16,on=*.up"`,
            `"bitfit"` or `"head"`; the whole model unless given.
        on_round: `f(RoundReport)`, called after every round; the run stops if it returns `True`.
        callbacks: Objects that watch the run, of classes that inherit `fedrift.Callback`.
        track: `"tensorboard"`, `"mlflow"`, `"wandb"`, or a list of these.
        analyse: What to measure on the way, such as `"every=10,what=drift,classes"`; needs `out`.
        profile: Note where the time of every round goes, in `Result.profile`.
        progress: `"auto"` shows a bar in a terminal, the growing curve in a notebook, and nothing
            in a script whose errors go to a file or a pipe; `True` prints lines there; `False` is
            silent.

    Returns:
        Curve, weights, costs and identity of the run. Divergence is a result, not an exception.
    """
    settings = {key: value for key, value in locals().items() if key in TASK}
    given = callbacks_of(callbacks, on_round)
    wanted, folder = tracks(track), _folder(out)
    with own_turn():
        made = task_of(algorithm, settings)
        made = replace(made, spec=where(made.spec, workers, backend))
        name = slug(f"{made.about['algorithm']}-s{made.seed}" if folder is None else folder.name)
        trackers = [one.follow(name, made.spec.to_dict(), folder) for one in wanted]
        live = _live(analyse, made, folder)
        with showing(progress, [made.spec.rounds]) as board:
            watching = [] if board is None else [board.callback(name, made.seed, made.spec.rounds)]
            return execute(
                made,
                workers=workers,
                backend=backend,
                out=folder,
                callbacks=[*live, *trackers, *watching, *given],
                profile=profile,
            )


def _folder(out: str | Path | None) -> Path | None:
    try:
        return None if out is None else Path(out)
    except TypeError:
        raise InputError(f"out={out!r} must be a path, a text") from None


def _live(
    analyse: str | LivePlan | None, made: Task, out: Path | None, measuring: Watch | None = None
) -> list[Callback]:
    """Who measures during the run; what is found goes to the run folder."""
    if analyse is None:
        return []
    if out is None:
        raise InputError(f"analyse='{analyse}' needs a folder for what it finds; give out")
    from fedrift.analysis.live import LiveAnalysis

    plan = parse_live_plan(analyse) if isinstance(analyse, str) else analyse
    return [LiveAnalysis(plan, made, out, measuring)]


OBJECTS = ("model", "clients", "test", "loss", "metrics")
TASK = tuple(
    key
    for key in inspect.signature(run).parameters
    if key in (*FIELDS, *OBJECTS) and key not in ("algorithm", "workers", "backend", "out")
)
"""The arguments of `run` that decide its result, besides the algorithm."""


def task_of(algorithm: AlgorithmLike, settings: Mapping[str, Any]) -> Task:
    """What these arguments of `run` describe."""
    for key in ("model", "clients", "rounds"):
        if settings.get(key) is None:
            raise InputError(f"{key} is missing")
    objects = {key: value for key, value in settings.items() if key in OBJECTS}
    options = {key: value for key, value in settings.items() if key not in OBJECTS}
    own = settings.get("client_test")
    if is_per_client(own):  # a spec can hold a share, and no data
        options["client_test"] = None
    spec = spec_from_call(algorithm, options)
    objects |= {"client_test": own, "seed": spec.seed}
    objects |= {"sampling": settings.get("sampling", "fixed")}
    return task.make_task(spec, objects_from_call(algorithm, spec.dtype, **objects))


def run_spec(
    spec: Spec,
    *,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    prepared: Prepared | None = None,
    track: str | Sequence[str] | None = None,
    analyse: str | LivePlan | None = None,
    until: int | None = None,
    origin: Origin | None = None,
    profile: bool = False,
    measuring: Watch | None = None,
) -> Result:
    """Run what a spec says: named data, partition and model; a fork begins as its origin.

    `measuring` is told how far a long measurement of `analyse` has come.
    """
    spec.validate()
    given = callbacks_of(callbacks)
    wanted, place = tracks(track), out if out is not None else spec.out
    folder = _folder(place)
    with own_turn():
        ready = prepared or prepare(spec)
        made = task.task_from_spec(spec, ready, origin=origin)
        before = None if origin is None else (task.task_from_spec(origin.spec, ready), origin.at)
        name = slug(f"{spec.algorithm}-s{spec.seed}" if folder is None else folder.name)
        trackers = [one.follow(name, made.spec.to_dict(), folder) for one in wanted]
        return execute(
            made,
            until=until,
            origin=before,
            workers=spec.workers,
            backend=spec.backend,
            out=folder,
            callbacks=[*_live(analyse, made, folder, measuring), *trackers, *given],
            profile=profile,
        )


# Several algorithms on one task: `fr.compare`.

LONGEST = 60  # characters of a label in the name of a folder


def compare(
    algorithms: AlgorithmLike | Sequence[AlgorithmLike] | Mapping[str, AlgorithmLike],
    *,
    seeds: int | Sequence[int] = 1,
    workers: int | str = "auto",
    out: str | Path | None = None,
    callbacks: CallbacksOf | None = None,
    track: str | Sequence[str] | None = None,
    progress: bool | str = "auto",
    **settings: Any,
) -> Comparison:
    """Run several algorithms on the same task, with the same seeds; other arguments as for `run`.

    For one seed all of them start from the same weights, ask the same cohorts and see the same
    batches, so that differences are the algorithms' own. There are as many runs as algorithms
    times seeds, each as long as one `run`; `workers` of them are under way at a time.

    Args:
        algorithms: Texts, objects or classes; `{label: algorithm}` says what each is called.
            Objects of one class are told apart by the fields in which they differ.
        seeds: How many (0, 1, …), or which.
        workers: Runs that are under way at a time; `"auto"` takes as many as there are cores.
        out: A folder for the runs; the same call goes on where it was stopped.
        callbacks: `f(item)`, the callbacks of one run, an `Item` with `label`, `seed` and `folder`;
            runs are under way side by side, each in a thread of its own.
        track: `"tensorboard"`, `"mlflow"`, `"wandb"`, or a list of these.
        progress: As of `run`: `"auto"`, `True` or `False`.
        settings: The other arguments of `run`.

    Returns:
        All runs, with a table (`frame`) and a page (`report`) of them. One that fails does not
        stop the others; if all do, what the first failed with is raised.
    """
    for key in settings:
        if key == "seed":
            raise InputError(
                f"seed={settings[key]!r}: compare takes seeds, such as seeds=[{settings[key]!r}]"
            )
        if key not in TASK:
            raise unknown("argument of compare", key, [k for k in TASK if k != "seed"])
    numbers = seeds_of(list(seeds) if isinstance(seeds, Sequence) else seeds)
    if workers != "auto" and (not isinstance(workers, int) or workers < 0):
        raise InputError(f"workers={workers!r} must be 'auto' or a whole number")
    if callbacks is not None and not callable(callbacks):
        raise InputError(
            f"callbacks={callbacks!r} must be a function of a run that gives a list of callbacks"
        )
    folder, wanted = _folder(out), tracks(track)
    if folder is not None:
        check_comparable(folder)
    items: list[Item] = []
    entrants = named(algorithms)
    if _tests_at_clients(settings) and any(map(has_personal_models, entrants.values())):
        settings = {"eval_clients": settings.get("eval_every", 1), **settings}  # all alike
    places = _places(list(entrants))
    for seed in numbers:
        for label, algorithm in entrants.items():
            place = None if folder is None else folder / "runs" / f"{places[label]}-s{seed}"
            make = partial(task_of, algorithm, {**settings, "seed": seed})
            shown = "" if label == algorithm else label
            items.append(Item(label, {}, seed, make, place, settings.get("rounds", 0), shown))
    number = backends.cores() if workers == "auto" else int(workers)
    labels = [item.label for item in items]
    with showing(progress, [item.rounds for item in items], labels) as board:
        made = Comparison(Runner(number, _told(callbacks, board), wanted).run(items), folder)
    if not made.results and (cause := made.outcomes[0].cause) is not None:
        raise cause
    return made


def _tests_at_clients(settings: Mapping[str, Any]) -> bool:
    """Whether clients have test data of their own."""
    given = settings.get("client_test"), getattr(settings.get("clients"), "test", None)
    return any(one is not None for one in given) or is_per_client(settings.get("test"))


def _told(callbacks: CallbacksOf | None, board: Shown | None) -> CallbacksOf | None:
    """The callbacks of each run, and the one that shows how far it is."""
    if board is None:
        return callbacks

    def of(item: Item) -> list[Callback]:
        given = [] if callbacks is None else callbacks_of(callbacks(item))
        return [board.callback(item.label, item.seed, item.rounds), *given]

    return of


def named(algorithms: Any) -> dict[str, AlgorithmLike]:
    """Every algorithm under a label of its own."""
    if isinstance(algorithms, Mapping):
        for label, one in algorithms.items():
            if not isinstance(label, str) or not label.strip():
                raise InputError(f"algorithms: the label {label!r} must be a text")
            _ = one if isinstance(one, str) else instance(one)
        labelled: dict[str, AlgorithmLike] = dict(algorithms)  # type: ignore[reportUnknownArgumentType]
    else:
        listed = algorithms if isinstance(algorithms, (list, tuple)) else [algorithms]
        made = [one if isinstance(one, str) else instance(one) for one in listed]
        labelled = dict(zip(_labels(made), made, strict=True))
    if not labelled:
        raise InputError("algorithms is empty: name at least one")
    return labelled


def _labels(algorithms: Sequence[Any]) -> list[str]:
    """Texts as they are, objects by their class and options, then by the local work in which they
    differ; a second one of a name gets a number."""
    texts = [a if isinstance(a, str) else text_of(a) for a in algorithms]
    works = [{} if isinstance(a, str) else work(local_of(a)) for a in algorithms]
    names: list[str] = []
    for i, (text, mine) in enumerate(zip(texts, works, strict=True)):
        rivals = [works[j] for j, other in enumerate(texts) if other == text and j != i]
        own = [k for k, v in mine.items() if any(r and r.get(k) != v for r in rivals)]
        if own:
            text += f" ({', '.join(f'{k} {mine[k]}' for k in own)})"
        names.append(text)
    return [
        f"{name} ({names[:i].count(name) + 1})" if name in names[:i] else name
        for i, name in enumerate(names)
    ]


def _places(labels: Sequence[str]) -> dict[str, str]:
    """A folder for each: readable, and with a digest where that alone would not tell them apart."""
    short = [slug(label) for label in labels]
    places: dict[str, str] = {}
    for label, name in zip(labels, short, strict=True):
        digest = hashlib.sha256(label.encode()).hexdigest()[:8]
        is_plain = short.count(name) == 1 and len(label) <= LONGEST
        places[label] = name if is_plain else f"{name[:LONGEST]}-{digest}"
    return places
