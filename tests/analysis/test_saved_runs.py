"""Measurements of real run folders: what they rest on, what they write, what they leave alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import fedrift as fr
from fedrift.analysis import MEASURES, NotMeasured, Options
from fedrift.analysis.drift import inexactness
from fedrift.analysis.live import update_of
from fedrift.config.analyses import WHAT
from fedrift.core import norm
from fedrift.engine.callbacks import Callback, OnRound
from fedrift.errors import InputError
from tests.support.problems import small_run
from tests.support.product import (
    Loader,
    Spec,
    execute,
    prepare,
    run_record,
    run_spec,
    task_from_spec,
)
from tests.support.saved_runs import TINY, kept

FEW = Options(images=60, clients=3, curved=1, steps=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kept(tmp_path_factory.mktemp("runs") / "scaffold")


@pytest.mark.parametrize("algorithm", ["fedprox:mu=0.5", "fedavg", "swa(fedprox:mu=2)"])
def test_inexactness_is_what_is_left_of_the_proximal_problem(
    tmp_path: Path, algorithm: str
) -> None:
    case = Loader().case(kept(tmp_path / "run", algorithm, rounds=2))
    mu = {"fedprox:mu=0.5": 0.5, "fedavg": 0.0, "swa(fedprox:mu=2)": 2.0}[algorithm]
    local = case.trained(case.cohort)
    found = inexactness(case, local)
    assert found["mu"] == mu
    assert found["clients"] == list(local)
    for client, gamma in zip(found["clients"], found["gammas"], strict=True):
        seen, (x, y) = local[client], case.client(client)
        lengths: list[torch.Tensor] = []
        for at in (seen.w, seen.start):
            module = case.problem.module(at, {})
            loss = torch.nn.functional.cross_entropy(module(x), y)
            weights = torch.nn.utils.parameters_to_vector(module.parameters())
            loss = loss + mu / 2 * (weights - seen.start).square().sum()
            grads = torch.autograd.grad(loss, list(module.parameters()))
            lengths.append(torch.cat([g.reshape(-1) for g in grads]).norm())
        assert gamma == pytest.approx(float(lengths[0] / lengths[1]), rel=1e-4)
    unmoved = {client: replace(seen, w=seen.start) for client, seen in local.items()}
    assert inexactness(case, unmoved)["gammas"] == [1.0] * len(local)
    numbers = MEASURES["drift"](case, FEW).numbers
    assert numbers["inexactness"]["mu"] == mu
    assert "inexactness" not in MEASURES["drift"](case, replace(FEW, passes=False)).numbers


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "scaffold", "feddyn", "mimemom", "fednova", "swa(fedavg):start=2"]
)
def test_a_rehearsal_is_the_round_that_would_follow(tmp_path: Path, algorithm: str) -> None:
    spec = Spec.of({**TINY, "lr": 0.1, "algorithm": algorithm})
    seen: dict[int, list[float]] = {}

    class Noting(Callback):
        """Keeps the lengths of the updates of every round."""

        def on_reply(self, exchange: Any, client: int, weight: float, up: Any) -> None:
            update = update_of(up)
            if update is not None:
                seen.setdefault(exchange.round, []).append(float(norm(update)))

    execute(task_from_spec(spec, prepare(spec)), workers=0, callbacks=[Noting()])
    shorter = kept(tmp_path / "run", algorithm, rounds=3) if "swa" not in algorithm else None
    if shorter is None:  # the number of rounds decides when SWA begins
        shorter = kept(tmp_path / "run", "swa(fedavg):start=2", rounds=3)
    case = Loader().case(shorter)
    assert case.round == 3
    local = case.trained(case.cohort)
    assert [float(norm(v.delta)) for v in local.values()] == pytest.approx(seen[3], rel=1e-6)


@pytest.mark.parametrize("algorithm", ["scaffold", "mime", "mimemom"])
def test_a_local_model_is_the_same_however_few_are_looked_at(
    tmp_path: Path, algorithm: str
) -> None:
    """Mime tells its clients the mean gradient of the whole cohort, not of those looked at."""
    case = Loader().case(kept(tmp_path / "run", algorithm, rounds=2))
    one, *others = case.cohort
    assert others
    alone, all_ = case.trained([one]), case.trained(case.cohort)
    assert list(alone) == [one]
    assert torch.equal(alone[one].w, all_[one].w)


def test_a_case_reads_and_changes_nothing(folder: Path) -> None:
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    case = Loader().case(folder)
    assert case.name == "scaffold"
    assert case.round == 4
    assert case.notes == ()
    assert case.snapshots[4] is case.weights
    saved = run_record.load(folder).weights()
    whole = torch.cat([torch.from_numpy(saved[n]).reshape(-1) for n in case.problem.layout.names])
    assert torch.equal(case.weights, whole)
    case.trained(case.cohort)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_the_names_of_the_command_are_those_of_the_measures() -> None:
    assert set(WHAT) == set(MEASURES)


@pytest.mark.parametrize("what", list(MEASURES))
def test_every_measure_gives_numbers_sentences_and_figures(folder: Path, what: str) -> None:
    from fedrift.figures.style import empty_figure
    from fedrift.storage.jsonl import dump, load

    found = MEASURES[what](Loader().case(folder), FEW)
    assert 1 <= len(found.sentences) <= 3
    numbers = load(dump(found.numbers))
    assert numbers["round"] == 4
    assert found.figures
    for draw in found.figures.values():
        figure = empty_figure()
        draw(figure)
        assert all(axis.get_xlabel() or axis.get_ylabel() for axis in figure.axes)
    for picture in found.together.values():  # from what stands in the file
        picture(empty_figure(), {"one": numbers, "two": numbers})


def test_drift_of_scaffold_knows_its_control_variates(folder: Path) -> None:
    numbers = MEASURES["drift"](Loader().case(folder), FEW).numbers
    assert len(numbers["clients"]) == 3
    controls = numbers["controls"]["c"]
    assert 0.3 < controls["mean_cosine"] <= 1.0
    assert numbers["server_controls"]["c"] > 0
    assert numbers["dissimilarity"]["ratio"] >= 1.0


def test_the_true_gradient_is_option_ones_control_variate(tmp_path: Path) -> None:
    # c_i = ∇F_i(w) of the round before: with a rate of nearly zero it is the gradient of now
    run = kept(tmp_path / "run", "scaffold:option=I", lr=1e-9, per_round=6)
    numbers = MEASURES["drift"](Loader().case(run), FEW).numbers
    assert numbers["controls"]["c"]["cosines"] == pytest.approx([1.0] * 6, abs=1e-5)
    lengths, gradients = (numbers["controls"]["c"][k] for k in ("lengths", "gradients"))
    assert lengths == pytest.approx(gradients, rel=1e-4)


def test_local_models_are_sharp_on_their_own_data_and_the_global_one_on_the_pooled(
    folder: Path,
) -> None:
    case = Loader().case(folder)
    numbers = MEASURES["sharpness"](case, replace(FEW, images=0)).numbers
    local, pooled, samples = case.trained(case.few(3)), 0.0, 0
    for client, seen in local.items():
        data = case.client(client)
        own = numbers["clients"][str(client)]
        assert own["loss"] == pytest.approx(float(case.model().loss(seen.w, data)), rel=1e-5)
        pooled += float(case.model().loss(case.weights, data)) * len(data[1])
        samples += len(data[1])
    assert numbers["pooled"]["loss"] == pytest.approx(pooled / samples, rel=1e-5)
    rises = [one["ascent"] for one in numbers["clients"].values()]
    assert numbers["local_mean"] == pytest.approx(sum(rises) / len(rises))
    wanted = numbers["pooled"]["ascent"] - numbers["local_mean"]
    assert numbers["discrepancy"] == pytest.approx(wanted)


def test_what_trains_no_local_model_says_so(tmp_path: Path) -> None:
    run = kept(tmp_path / "run", "fedsgd", batch_size="full")
    with pytest.raises(NotMeasured, match="FedSGD trains no local models"):
        MEASURES["cka"](Loader().case(run), FEW)
    found = MEASURES["sharpness"](Loader().case(run), FEW)
    assert "not compared" in found.sentences[0]


def test_the_last_state_of_an_interrupted_run_is_examined(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def halt(report: fr.RoundReport) -> None:
        if report.round == 2:
            raise Stop

    spec = Spec.of({**TINY, "lr": 0.1, "algorithm": "fedavg"})
    with pytest.raises(Stop):
        execute(
            task_from_spec(spec, prepare(spec)),
            workers=0,
            out=tmp_path / "run",
            callbacks=[OnRound(halt)],
        )
    case = Loader().case(tmp_path / "run")
    assert case.round == 2
    assert len(case.trained(case.cohort)) == 3


def test_a_changed_run_is_told_of(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    text = (other / "spec.toml").read_text()
    (other / "spec.toml").write_text(text.replace("seed = 0", "seed = 1"))
    if "seed" not in text:
        (other / "spec.toml").write_text(text + "seed = 1\n")
    assert "not exactly" in Loader().case(other).notes[0]


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("fedavg", {"sampling": "power:4"}), ("fedbuff:buffer=2", {"devices": "lognormal:1"})],
)
def test_a_cohort_that_only_the_run_would_know_is_said_to_be_drawn_at_random(
    algorithm: str, options: dict[str, Any], tmp_path: Path
) -> None:
    folder = kept(tmp_path / "run", algorithm, rounds=2, per_round=2, **options)
    case = Loader().case(folder)
    assert len(case.cohort) == 2 and "drawn at random stand for them" in case.notes[0]


def test_runs_with_other_losses_do_not_share_their_targets(tmp_path: Path) -> None:
    how: dict[str, Any] = {"partition": "iid", "rounds": 1}
    labels, values = kept(tmp_path / "a", "fedavg", **how), kept(tmp_path / "b", loss="mse", **how)
    loader = Loader()
    assert not loader.case(labels).pooled()[1].is_floating_point()
    case = loader.case(values)
    assert case.pooled()[1].is_floating_point() and case.notes == ()


def test_a_run_made_in_python_points_to_the_functions(tmp_path: Path) -> None:
    small_run("fedavg", out=tmp_path / "run")
    with pytest.raises(InputError, match=r"fedrift\.analysis"):
        Loader().case(tmp_path / "run")


def test_another_models_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    import shutil

    other = tmp_path / "other"
    shutil.copytree(folder, other)
    text = (other / "spec.toml").read_text()
    (other / "spec.toml").write_text(text.replace("logistic", "mlp"))
    with pytest.raises(InputError, match="another model"):
        Loader().case(other)
    for i, change in enumerate((lambda v: v[..., None], lambda v: v.astype(np.float64))):
        path = shutil.copytree(folder, tmp_path / str(i))
        tensors = {
            name: change(value) for name, value in load_file(path / "model.safetensors").items()
        }
        save_file(tensors, path / "model.safetensors")
        with pytest.raises(InputError, match=r"another model's: its '.*' is of the form"):
            Loader().case(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors: {n: v[..., None] for n, v in tensors.items()}, "its '.*' is of the form"),
        (lambda tensors: {n: v.astype(np.int64) for n, v in tensors.items()}, "int64"),
        (lambda tensors: dict(list(tensors.items())[1:]), "has no 'fc"),
    ],
)
def test_kept_weights_of_another_model_are_refused(change: Any, says: str, tmp_path: Path) -> None:
    path = kept(tmp_path / "run", rounds=2)
    tensors = load_file(path / "model.safetensors")
    (path / "analysis" / "weights").mkdir(parents=True)
    file = path / "analysis" / "weights" / "000001.safetensors"
    save_file(tensors, file)
    assert set(Loader().case(path).snapshots) == {1, 2}
    save_file(change(tensors), file)
    with pytest.raises(InputError, match=rf"000001\.safetensors' .*{says}"):
        Loader().case(path)


def test_a_tensor_that_no_model_has_is_refused(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder, tmp_path / "other")
    file = path / "model.safetensors"
    save_file({**load_file(file), "more": np.zeros(3, np.float32)}, file)
    with pytest.raises(InputError, match="has 'more', which the model has not"):
        Loader().case(path)


def test_a_few_clients_come_from_all_over_the_cohort(tmp_path: Path) -> None:
    """Neighbours often hold the same class, so the first ones would say little of the others."""
    spec = Spec.of(
        {"data": "digits", "model": "logistic", "clients": 10, "workers": 0, "rounds": 1}
    )
    run_spec(spec, out=tmp_path / "run")
    case = Loader().case(tmp_path / "run", "run")
    assert case.few(2) == (0, 9) and case.few(4) == (0, 3, 6, 9)
    assert case.few(1) == (0,) and case.few(0) == case.few(12) == tuple(range(10))


@pytest.mark.parametrize(
    ("name", "key", "value", "said"),
    [
        ("rounds.jsonl", "cohort", [0, 499], "names client 499, and the run has 6"),
        ("ledger.jsonl", "replied", [6], "names client 6"),
        ("rounds.jsonl", "round", 10**12, "tells of round 1000000000000, and the run has 4"),
        ("rounds.jsonl", "classes", [0.5], "tells of 1 classes, and the run has 10"),
    ],
)
def test_lines_that_this_run_cannot_have_written(
    folder: Path, tmp_path: Path, name: str, key: str, value: Any, said: str
) -> None:
    forged = shutil.copytree(folder, tmp_path / "run") / name
    *others, last = forged.read_text().splitlines()
    forged.write_text("\n".join([*others, json.dumps({**json.loads(last), key: value})]) + "\n")
    with pytest.raises(InputError, match=said):
        Loader().case(forged.parent)


def test_what_clients_keep_is_only_read(folder: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "run")
    (copied / "clients" / "root.rows").unlink()
    with pytest.raises(InputError, match=r"root\.rows' cannot be read"):
        Loader().case(copied)
    assert not (copied / "clients" / "root.rows").exists()
