"""Domains of a shift: who has which, and the server's test set in each of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedrift as fr
from fedrift.data.shift import domains_of
from tests.support.product import Spec, load_run, prepare, run_spec, task_from_spec

RNG = np.random.default_rng(0)
X = RNG.standard_normal((240, 1, 6, 6)).astype(np.float32)
Y = np.arange(240) % 3
X[:, 0, 0] += 2 * Y[:, None]
TEST = X[:90] + 0.1, Y[:90]
SHIFT = "rotation:90,domains=3,unseen=2"  # -90 and 0 degrees are seen, +90 is not


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))


def run(algorithm: str = "fedavg", shift: str = SHIFT, **options: Any) -> fr.Result:
    clients = fr.split(X, Y, "iid", clients=5, seed=1, shift=shift, test=options.pop("own", None))
    given: dict[str, Any] = {
        "model": Small,
        "clients": clients,
        "test": TEST,
        "rounds": 4,
        "batch_size": 16,
        "lr": 0.1,
        "workers": 0,
        "seed": 3,
    }
    return fr.run(algorithm, **(given | options))


def test_clients_hold_the_seen_domains_in_turn() -> None:
    domains = domains_of("rotation:60,domains=6,unseen=0|4", 9)
    assert domains.seen == (1, 2, 3, 5) and domains.tested == (1, 2, 3, 5, 0, 4)
    assert [domains.of(c) for c in range(9)] == [1, 2, 3, 5, 1, 2, 3, 5, 1]
    assert domains.names == ("−60°", "−36°", "−12°", "+12°", "+36°", "+60°")
    both = domains_of("rotation:30+noise:0.5+contrast:0.5,domains=3", 3)
    assert both.names[2] == "+30°, noise 0.5, contrast ×1.5" and both.names[1].startswith("0°")


def test_a_domain_for_every_client_is_the_shift_as_it_was() -> None:
    """Bit for bit: only what the server evaluates differs."""
    plain, every = run(shift="rotation:40+noise:0.2"), run(shift="rotation:40+noise:0.2,domains=5")
    named = run(shift="rotation:40+noise:0.2,domains=clients")
    assert torch.equal(plain.weights, every.weights) and torch.equal(plain.weights, named.weights)
    assert every.fingerprint == named.fingerprint
    assert "domain_accuracy" not in plain.metrics[-1] and plain.domain_frame().empty


@pytest.mark.parametrize(("samples", "unseen"), [(90, 2), (370, 2), (90, 0)])
def test_the_figures_are_those_of_the_model_on_turned_images(samples: int, unseen: int) -> None:
    """A quarter turn is a permutation of pixels, so it can be made without the product."""
    x, y = (torch.from_numpy(np.concatenate([t] * 5)[:samples]) for t in TEST)
    result = run(test=(x, y), shift=f"rotation:90,domains=3,unseen={unseen}")
    seen = slice(0, 2) if unseen else slice(1, 3)
    module, last = result.module().eval(), result.metrics[-1]
    with torch.no_grad():
        outputs = [module(torch.rot90(x, q, (2, 3)).contiguous()) for q in (-1, 0, 1)]
    right = [float((output.argmax(1) == y).float().mean()) for output in outputs]
    losses = [float(F.cross_entropy(output, y)) for output in outputs]
    assert last["domain_accuracy"] == pytest.approx(right)
    assert last["domain_loss"] == pytest.approx(losses, rel=1e-4)
    assert len(set(losses)) == 3
    assert last["accuracy"] == pytest.approx(np.mean(right[seen])), "of the domains that are seen"
    assert last["loss"] == pytest.approx(np.mean(losses[seen]), rel=1e-4)
    assert last["domain_accuracy_worst"] == pytest.approx(min(right[seen]))
    assert last["domain_accuracy_unseen"] == pytest.approx(right[unseen])
    assert last["n"] == 2 * samples and sum(last["class_total"]) == 2 * samples


def test_nobody_trains_on_an_unseen_domain() -> None:
    """What an unseen domain would have looked like is nowhere in the clients' data."""
    clients = fr.split(X, Y, "iid", clients=5, seed=1, shift=SHIFT)
    plain = fr.split(X, Y, "iid", clients=5, seed=1)
    for client in range(5):
        quarters = -1 if client % 2 == 0 else 0
        there, before = clients[client][0], plain[client][0]
        assert there.numpy() == pytest.approx(np.rot90(before, quarters, (2, 3)), abs=1e-5)


def test_what_clients_test_on_is_in_the_domain_they_train_on() -> None:
    clients = fr.split(X, Y, "iid", clients=5, seed=1, shift=SHIFT, test=0.25)
    plain = fr.split(X, Y, "iid", clients=5, seed=1, test=0.25)
    assert clients.test is not None and plain.test is not None
    for client in range(5):
        quarters = -1 if client % 2 == 0 else 0
        expected = np.rot90(plain.test[client][0], quarters, (2, 3))
        assert clients.test[client][0].numpy() == pytest.approx(expected, abs=1e-5)


def test_the_frame_has_a_row_for_each_domain_and_round(tmp_path: Path) -> None:
    result = run(own=0.25, eval_clients="every=2", out=tmp_path / "run")
    frame = result.domain_frame()
    assert len(frame) == 4 * 3 and frame.name.tolist()[:3] == ["−90°", "0°", "+90°"]
    assert frame.seen.tolist()[:3] == [True, True, False]
    last = frame[frame["round"] == 4]
    assert last.accuracy.tolist() == result.metrics[-1]["domain_accuracy"]
    own = result.client_frame()
    own = own[own["round"] == 4].set_index("client").accuracy
    assert last.client_accuracy.tolist()[:2] == pytest.approx(
        [own[[0, 2, 4]].mean(), own[[1, 3]].mean()]
    )
    assert np.isnan(last.client_accuracy.tolist()[2]), "no client is there to ask"
    saved = fr.load(tmp_path / "run")
    assert isinstance(saved, fr.SavedRun) and saved.domain_frame().equals(frame)


def test_models_of_the_clients_own_are_judged_at_the_clients_of_each_domain() -> None:
    result = run("finetune(fedavg):steps=2", own=0.25)
    row = result.metrics[-1]
    assert row["accuracy"] == row["client_accuracy"]
    assert row["global_accuracy"] == pytest.approx(np.mean(row["domain_accuracy"][:2]))
    alone = run("localonly", own=0.25)
    assert "domain_accuracy" not in alone.metrics[-1]
    assert alone.domain_frame().client_accuracy.notna().sum() == 2 * 4


def test_own_metrics_are_of_the_domains_that_are_seen() -> None:
    def share(output: Tensor, target: Tensor) -> float:
        return float((output.argmax(1) == target).float().mean())

    row = run(metrics={"share": share}).metrics[-1]
    assert row["share"] == pytest.approx(row["accuracy"])


@pytest.mark.parametrize("place", [{"workers": 2}, {"backend": "wire"}])
def test_the_same_bits_wherever_it_is_evaluated(place: dict[str, Any]) -> None:
    """370 samples in each domain: no chunk of 250 reaches from one into the next."""
    many = tuple(np.concatenate([t] * 5)[:370] for t in TEST)
    here, there = run(test=many), run(test=many, **place)
    assert here.fingerprint == there.fingerprint
    assert here.metrics[-1]["domain_loss"] == there.metrics[-1]["domain_loss"]


def test_a_run_goes_on_where_it_stood(tmp_path: Path) -> None:
    """Two rounds more of a finished run, bit for bit as in one go; the ledger does not know it."""
    whole = run()
    run(rounds=2, out=tmp_path / "run")
    longer = run(out=tmp_path / "run")
    assert longer.fingerprint == whole.fingerprint
    assert whole.ledger.total == run(shift="rotation:90").ledger.total


@pytest.mark.parametrize("other", ["rotation:90,domains=3,unseen=0", "rotation:90,domains=3"])
def test_other_domains_are_another_run(other: str, tmp_path: Path) -> None:
    run(out=tmp_path / "run")
    with pytest.raises(fr.InputError, match="holds another run"):
        run(shift=other, out=tmp_path / "run")


def test_only_what_is_evaluated_differs_is_another_run_too(tmp_path: Path) -> None:
    run(shift="rotation:90", out=tmp_path / "run")
    with pytest.raises(fr.InputError, match="holds another run"):
        run(shift="rotation:90,domains=clients", out=tmp_path / "run")


NAMED: dict[str, Any] = {
    "data": "digits:train=120,test=60",
    "clients": 5,
    "model": "logistic",
    "rounds": 2,
    "workers": 0,
    "shift": "rotation:50+noise:0.2,domains=4,unseen=0",
}


def test_named_data_from_a_spec(tmp_path: Path) -> None:
    spec = Spec.of({**NAMED, "client_test": 0.2, "eval_clients": "every=1"})
    assert Spec.from_toml(_written(tmp_path, spec)).shift == spec.shift
    result = run_spec(replace(spec, out=str(tmp_path / "run")))
    record = load_run(tmp_path / "run")
    assert record.clients["domains"]["unseen"] == [0]
    assert record.clients["domains"]["of"] == [1, 2, 3, 1, 2]
    assert len(record.rounds[-1]["domain_accuracy"]) == 4
    assert result.summary()["domains"][0] == {
        "name": "−50°, noise 0",
        "accuracy": result.metrics[-1]["domain_accuracy"][0],
        "seen": False,
    }
    one, other = (
        task_from_spec(replace(spec, seed=s), prepare(replace(spec, seed=s))) for s in (0, 1)
    )
    assert one.domains is not None and other.domains is not None
    assert torch.equal(one.domains.x, other.domains.x), "a test set is the same for every seed"


def _written(folder: Path, spec: Spec) -> Path:
    (folder / "spec.toml").write_text(spec.to_toml())
    return folder / "spec.toml"


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    run_spec(Spec.of({**NAMED, "out": str(tmp_path / "run")}))

    def forge(change: Callable[[dict[str, Any]], None], name: str) -> None:
        path = tmp_path / "run" / name
        text = path.read_text()
        lines = (
            [json.loads(line) for line in text.splitlines()]
            if name.endswith("l")
            else [json.loads(text)]
        )
        change(lines[0])
        path.write_text("\n".join(map(json.dumps, lines)) + "\n")
        with pytest.raises(fr.InputError, match="is damaged"):
            load_run(tmp_path / "run")
        path.write_text(text)

    forge(lambda row: row.update(domain_accuracy=[0.5]), "rounds.jsonl")
    forge(lambda row: row.update(domain_accuracy="all"), "rounds.jsonl")
    forge(lambda about: about["domains"].update(of=[9] * 5), "clients.json")
    forge(lambda about: about.update(domains=["a"]), "clients.json")
    load_run(tmp_path / "run")


def test_a_test_set_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(fr.InputError, match="one tensor of images"):
        run(test=({"a": TEST[0]}, TEST[1]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rotation:50,domains=12", "12 domains are to be seen, but there are only 10 clients"),
        ("rotation:50,unseen=1", "say domains=D too"),
        ("rotation:50,test=domains", "unknown option of shift"),
        ("rotation:50,domains=4,unseen=4", "at most 3, not '4'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(text: str, says: str) -> None:
    command = [sys.executable, "-m", "fedrift", "run", "fedavg", "--shift", text]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr


def test_the_report_has_a_section_with_every_domain(tmp_path: Path) -> None:
    clients = fr.split(X, Y, "iid", clients=5, seed=1, shift=SHIFT, test=0.25)
    options: dict[str, Any] = {"model": Small, "test": TEST, "rounds": 2, "lr": 0.1, "workers": 0}
    made = fr.compare(
        ["fedavg", "localonly"], clients=clients, seeds=[1, 2], out=tmp_path / "all", **options
    )
    page = fr.report(made, tmp_path / "page.html").files[0].read_text()
    section = page[page.index('<section id="domains"') :].partition("</section>")[0]
    assert section.count("<figure>") == 2, "the server's test set, and the clients' own"
    assert "+90° (unseen)" in section and 'class="empty"' in section
    rows = [row for row in section.split("<tr>")[1:] if "clients&#x27; own" in row]
    assert len(rows) == 2 and all(row.count("–") == 2 for row in rows), "nobody is asked at +90°"
    plain = fr.report(run(shift="rotation:90"), tmp_path / "plain.html").files[0].read_text()
    assert '<section id="domains"' not in plain
