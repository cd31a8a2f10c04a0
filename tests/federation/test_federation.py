"""A federation whose post is in this process: the same bits as a simulation, and bad company."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrift as fr
from fedrift import api
from fedrift.algorithms import NAMES
from fedrift.backends.codec import Piece
from fedrift.config.algorithms import algorithms as catalogue
from fedrift.core.isolation import borrowed_generators, seed_all
from fedrift.engine import task
from fedrift.federation import membership, remote
from fedrift.federation.config import FederationConfig
from fedrift.federation.protocol import ABOUT, VISIT, Envelope
from fedrift.federation.sources import site_samples
from fedrift.federation.task import make_node, make_server_task
from tests.support.federations import Federation, Meddle, Office
from tests.support.product import Spec, load_run, prepare

SMALL: dict[str, Any] = {
    "data": "digits:train=100,test=60",
    "clients": 4,
    "model": "mlp:hidden=4",
    "rounds": 3,
    "per_round": 3,
    "batch_size": 8,
    "lr": 0.05,
}
WRAPPERS = {name for name, entry in catalogue().items() if entry.is_wrapper}


def spec(algorithm: str = "scaffold", **changes: Any) -> Spec:
    return Spec.of({"algorithm": algorithm, **SMALL, **changes})


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "PAUSE", 0.0)
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    monkeypatch.setattr(remote, "LOOK", 0.0)
    monkeypatch.setattr(membership, "PATIENCE", 0.05)


def same(one: fr.Result, other: fr.Result) -> bool:
    assert one.fingerprint == other.fingerprint
    assert one.ledger.entries == other.ledger.entries
    return torch.equal(one.weights, other.weights)


def simulated(what: Spec) -> fr.Result:
    return api.run_spec(replace(what, workers=0))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "mimemom", "fed3r:features=6", "fedgf"])
def test_the_same_bits_as_a_simulation(name: str, tmp_path: Path) -> None:
    what = spec(name)
    here, there = simulated(what), Federation(what, tmp_path).everybody().run()
    assert same(here, there)
    assert here.training == there.training
    told = [8 * len(row["client"]) * (len(row) - 1) for row in there.training]
    assert [e.reported for e in there.ledger.entries if e.steps] == told, "a weight for each, too"
    assert not any(e.reported for e in here.ledger.entries)


@pytest.mark.parametrize(
    "name", ["fedavg", "scaffold", "tests.backends.test_personal:Tuned", "fedper", "localonly"]
)
def test_nodes_evaluate_on_test_data_of_their_own(name: str, tmp_path: Path) -> None:
    what = spec(name, client_test=0.3, eval_clients="every=2")
    here = simulated(what)
    there = Federation(what, tmp_path).everybody().run(out=tmp_path / "run")
    assert same(here, there)
    assert len(here.client_rounds) == 2 and here.client_rounds == there.client_rounds
    assert load_run(tmp_path / "run").client_rounds == here.client_rounds


def test_the_server_of_a_federation_evaluates_in_every_domain(tmp_path: Path) -> None:
    what = spec("fedavg", shift="rotation:60,domains=4,unseen=3", client_test=0.3, eval_clients=1)
    here = simulated(what)
    there = Federation(what, tmp_path).everybody().run(out=tmp_path / "run")
    assert same(here, there) and here.client_rounds == there.client_rounds
    assert len(there.metrics[-1]["domain_accuracy"]) == 4
    assert there.domain_frame().equals(here.domain_frame())


def test_what_a_site_tests_on_is_shifted_as_what_it_trains_on(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((12, 1, 6, 6), np.float32)
    y, users = np.arange(12) % 3, np.repeat([0, 1, 2], 4)
    arrays: Any = {"x": x, "y": y, "users": users, "x_test": x, "y_test": y, "users_test": users}
    np.savez(tmp_path / "own.npz", **arrays)
    named = {"data": f"npz:{tmp_path / 'own.npz'}", "partition": "natural", "model": "logistic"}
    what = Spec.of({**named, "client_test": "own", "shift": "rotation:45"})
    config = FederationConfig.of(what, prepare(what))
    train, _, test, _ = site_samples(config, {"partition-id": 2})
    assert np.array_equal(train, test) and not np.array_equal(train, x[8:])


def test_masks_and_figures_of_single_clients_do_not_go_together(tmp_path: Path) -> None:
    there = Federation(spec("fedavg", client_test=0.3, eval_clients=1), tmp_path).everybody()
    with pytest.raises(fr.InputError, match="each client's figures would be seen by themselves"):
        there.run(around=lambda remote, phases: remote)


def test_a_site_brings_its_own_test_data(tmp_path: Path) -> None:
    what = spec("fedavg", client_test="own")
    config = replace(Federation(spec("fedavg"), tmp_path).config, spec=what, named=False)
    x = np.random.default_rng(0).random((12, 1, 8, 8), np.float32)
    np.savez(tmp_path / "site.npz", x=x[:8], y=np.arange(8), x_test=x[8:], y_test=np.arange(4))
    x, y, *own = site_samples(config, {"data": str(tmp_path / "site.npz")})
    assert len(y) == 8 and len(own[1]) == 4
    make_node(config, 0, x, y, tmp_path, (own[0], own[1]))
    with pytest.raises(fr.InputError, match="this site gives no test data"):
        make_node(config, 0, x, y, tmp_path)


def test_running_statistics_travel_both_ways(tmp_path: Path) -> None:
    what = spec("scaffold", model="tests.support.federations:Normed")
    made = Federation(what, tmp_path).everybody().run()
    assert same(simulated(what), made)
    assert made.ledger.entries[0].up["buffers"].total > 0


def test_a_model_is_told_how_samples_were_normalised(tmp_path: Path) -> None:
    """MobileNetV2 undoes it before it does its own: at server and nodes as in a simulation."""
    what = spec("fedavg", data="mnist5k:train=40,test=20", model="mobilenet-v2:size=32")
    ready = prepare(what)
    (tmp_path / "fedrift.toml").write_text(FederationConfig.of(what, ready).to_toml())
    there = make_server_task(FederationConfig.read(tmp_path / "fedrift.toml")).problem.rest
    here = task.task_from_spec(what, ready).problem.rest
    for name in ("prepared.scale", "prepared.shift"):
        assert torch.equal(there[name], here[name]), name


@pytest.mark.parametrize("said", ["mean = [0.1]", "mean = [0.1]\nstd = [0.0]", "mean = 1\nstd = 2"])
def test_a_config_with_a_wrong_scale_is_refused(said: str, tmp_path: Path) -> None:
    text = f"[task]\nshape = [1, 8, 8]\nclasses = 10\nclients = 4\n{said}\n"
    (tmp_path / "fedrift.toml").write_text(text)
    with pytest.raises(fr.InputError, match="mean and std"):
        FederationConfig.read(tmp_path / "fedrift.toml")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_algorithm_has_the_same_bits(tmp_path: Path) -> None:
    waits = [name for name in NAMES if name not in ("fedasync", "fedbuff")]
    inner = [f"{name}(scaffold)" if name in WRAPPERS else name for name in waits]
    for name in (*inner, "fed3rft(fedavg):train=head", "fed3rft(fedavg):train=features"):
        what = spec(name, rounds=5)
        there = Federation(what, tmp_path / name).everybody().run()
        assert same(simulated(what), there), name


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"algorithm": "fedbuff"}, "algorithm 'fedbuff'"), ({"devices": "uniform"}, "devices: needs")],
)
def test_a_federation_has_no_simulated_clock(
    changes: dict[str, str], words: str, tmp_path: Path
) -> None:
    what = replace(spec("fedavg"), **changes)  # type: ignore[arg-type]
    with pytest.raises(fr.InputError, match=words):
        Federation(what, tmp_path).everybody().run()


def test_the_ledger_is_what_was_sent(tmp_path: Path) -> None:
    federation = Federation(spec("fed3r:features=6", rounds=2), tmp_path).everybody()
    made = federation.run()
    assert federation.office.sent == made.ledger.bytes_down


PACKED = "up=topk:0.1,up.dc=qsgd:4,down=float16"


def test_packed_messages_have_the_bits_and_bytes_of_a_simulation(tmp_path: Path) -> None:
    what = spec("scaffold", compress=PACKED)
    federation = Federation(what, tmp_path).everybody()
    made = federation.run()
    assert same(simulated(what), made)
    assert federation.office.sent == made.ledger.bytes_down
    exact = simulated(spec("scaffold")).ledger
    assert made.ledger.bytes_up < exact.bytes_up / 5
    assert made.ledger.bytes_down == exact.bytes_down / 2


def test_bytes_that_cannot_be_unpacked_are_refused(tmp_path: Path) -> None:
    def meddle(kind: str, envelope: Envelope, honest: Envelope) -> Envelope:
        up = dict(honest.part("up"))
        if "delta~" in up:
            size = len(up["delta~"].data)
            up["delta~"] = Piece("uint8", (size,), b"\xff" * size)
        return replace(honest, parts={**honest.parts, "up": up})

    federation = Federation(spec("fedavg", compress="up=topk:0.01", per_round=4), tmp_path)
    federation.everybody()
    federation.office.desks[max(federation.office.desks)].meddle = meddle
    assert federation.run().status == "done"
    assert any("cannot be unpacked" in note for note in federation.notes), federation.notes


def test_masks_and_packed_replies_do_not_go_together(tmp_path: Path) -> None:
    there = Federation(spec("fedavg", compress="up=sign"), tmp_path).everybody()
    with pytest.raises(fr.InputError, match="masked replies are added up as they are"):
        there.run(around=lambda remote, phases: remote)


def test_a_finished_node_keeps_one_state_and_the_last_saved(tmp_path: Path) -> None:
    Federation(spec("scaffold", per_round=4), tmp_path).everybody().run(out=tmp_path / "run")
    for client in range(4):
        files = list((tmp_path / f"site {client}").rglob("*.safetensors"))
        assert 1 <= len(files) <= 3, files


class Killed(BaseException):
    """Ends the server without a chance to tidy up."""


def test_a_killed_server_goes_on_and_applies_no_round_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedrift.engine import loop, recorder

    turn = itertools.count()
    monkeypatch.setattr(recorder.RunRecorder, "is_due", lambda self: next(turn) % 2 == 1)
    what = spec("scaffold", rounds=6, per_round=4)
    visits: list[int] = []

    def kill(office: Office, kind: str, envelopes: Mapping[int, Envelope]) -> None:
        if kind == VISIT:
            visits.append(int(next(iter(envelopes.values())).header["round"]))
            if len(visits) in (4, 8):
                federation.run_after(envelopes)
                raise Killed

    class Half(Federation):
        def run_after(self, envelopes: Mapping[int, Envelope]) -> None:
            """The nodes have done the round already when the server dies."""
            for node, envelope in envelopes.items():
                self.office.desks[node].answer(VISIT, envelope)

    federation = Half(what, tmp_path)
    federation.everybody()
    federation.office.before = kill
    monkeypatch.setattr(loop.Engine, "interrupted", lambda self, alone: None)  # killed, not asked
    for _ in range(2):
        with pytest.raises(Killed):
            federation.run(out=tmp_path / "run")
    assert same(simulated(what), federation.run(out=tmp_path / "run"))
    assert visits[:4] == [0, 1, 2, 3] and visits[4] == 2, "from the checkpoint after two rounds"


def test_a_node_that_lost_its_state_is_not_believed(tmp_path: Path) -> None:
    import shutil

    federation = Federation(spec("scaffold", rounds=4, per_round=4), tmp_path).everybody()

    def lose(office: Office, kind: str, envelopes: Mapping[int, Envelope]) -> None:
        if any(envelope.header.get("round") == 2 for envelope in envelopes.values()):
            shutil.rmtree(tmp_path / "site 1", ignore_errors=True)

    federation.office.before = lose
    made = federation.run()
    assert [e.replied for e in made.ledger.entries] == [(0, 1, 2, 3)] * 2 + [(0, 2, 3)] * 2
    assert any("client 1 refused: by the node: the state" in note for note in federation.notes)


def test_a_round_that_breaks_off_half_way_leaves_the_states_before_it(tmp_path: Path) -> None:
    """Mime's second exchange finds nobody: the next round starts from what the last one left."""
    federation = Federation(spec("mimemom", rounds=4, per_round=4), tmp_path).everybody()
    broken = ("train", 1)

    def meddle(kind: str, envelope: Envelope, honest: Envelope) -> Envelope | str:
        at = envelope.header.get("phase"), envelope.header.get("round")
        return "gone" if at == broken else honest

    for desk in federation.office.desks.values():
        desk.meddle = meddle
    made = federation.run()
    replied = [len(e.replied) for e in made.ledger.entries]
    assert replied == [4, 4, 4, 0, 4, 4, 4, 4], federation.notes


def test_nodes_leave_and_return_under_another_id(tmp_path: Path) -> None:
    federation = Federation(spec("scaffold", rounds=5, per_round=4), tmp_path).everybody()
    gone = sorted(federation.office.desks)[2]

    def come_and_go(office: Office, kind: str, envelopes: Mapping[int, Envelope]) -> None:
        now = max((int(x.header.get("round", -1)) for x in envelopes.values()), default=-1)
        if now == 1:
            office.desks.pop(gone, None)  # in the middle of the round
        if now == 2 and len(office.desks) == 3:
            office.join(federation.maker(2))

    federation.office.before = come_and_go
    made = federation.run(least=3, deadline=5.0)
    asked = [e.asked for e in made.ledger.entries]
    replied = [e.replied for e in made.ledger.entries]
    assert asked == [(0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 3), (0, 1, 2, 3), (0, 1, 2, 3)]
    assert replied[1] == (0, 1, 3) and replied[3] == (0, 1, 2, 3)
    assert "round 2: client 2 has left" in federation.notes


def test_who_joins_late_is_known_by_size(tmp_path: Path) -> None:
    """In the run's folder, in what the algorithm is told, and after the server's restart."""

    federation = Federation(spec("scaffold", rounds=4, per_round=4), tmp_path)
    for client in range(3):
        federation.office.join(federation.maker(client))
    sizes = [len(part) for part in federation.ready.partition.parts]

    def late(office: Office, kind: str, envelopes: Mapping[int, Envelope]) -> None:
        if any(x.header.get("round") == 1 for x in envelopes.values()) and len(office.desks) == 3:
            office.join(federation.maker(3))

    class Stopping(fr.Callback):
        def on_round(self, report: fr.RoundReport) -> None:
            if report.round == 3:
                raise Killed

    federation.office.before = late
    run = tmp_path / "run"
    with pytest.raises(Killed):
        federation.run(least=3, out=run, callbacks=[Stopping()])
    assert load_run(run).clients["sizes"] == sizes
    federation.office.desks.pop(max(federation.office.desks))  # the one that had joined late
    federation.office.before = None
    made = federation.run(least=3, out=run)
    assert load_run(run).clients["sizes"] == made.clients["sizes"] == sizes
    assert [len(e.asked) for e in made.ledger.entries] == [3, 3, 4, 3]


def test_the_newest_node_of_a_client_wins(tmp_path: Path) -> None:
    federation = Federation(spec("fedavg", rounds=4, per_round=4), tmp_path).everybody()
    old = sorted(federation.office.desks)[0]

    def again(office: Office, kind: str, envelopes: Mapping[int, Envelope]) -> None:
        now = max((int(x.header.get("round", -1)) for x in envelopes.values()), default=-1)
        if now == 1 and len(office.desks) == 4:
            office.desks[old].meddle = lambda kind, envelope, honest: None  # dead, but still listed
            office.join(federation.maker(0))

    federation.office.before = again
    made = federation.run(deadline=0.2)
    assert [e.replied for e in made.ledger.entries][2:] == [(0, 1, 2, 3)] * 2
    assert "client 0 is now at a newer node" in federation.notes


def test_late_replies_are_ignored_and_told(tmp_path: Path) -> None:
    federation = Federation(spec("scaffold", rounds=3, per_round=4), tmp_path).everybody()
    held: dict[str, Envelope] = {}
    slow = sorted(federation.office.desks)[1]
    collect = federation.office.collect

    def late(kind: str, envelope: Envelope, honest: Envelope) -> Envelope | None:
        if envelope.header.get("round") == 0:
            held["reply"] = honest
            return None
        return honest

    def collect_late(tickets: set[str]) -> dict[str, Envelope | str]:
        missing = sorted(t for t in tickets if t not in federation.office._replies)
        if "reply" in held and len(tickets) > 4 and missing:
            federation.office._replies[missing[0]] = held.pop("reply")
        return collect(tickets)

    federation.office.desks[slow].meddle = late
    federation.office.collect = collect_late  # type: ignore[method-assign]
    made = federation.run(deadline=0.3)
    assert [e.replied for e in made.ledger.entries] == [(0, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)]
    assert "round 1: client 1 missed the deadline" in federation.notes
    assert "round 1: client 1 answered too late; ignored" in federation.notes


def changed(envelope: Envelope, part: str, path: str, one: Piece) -> Envelope:
    parts = {name: dict(pieces) for name, pieces in envelope.parts.items()}
    parts.setdefault(part, {})[path] = one
    return Envelope(envelope.header, parts)


def headed(envelope: Envelope, **header: Any) -> Envelope:
    return Envelope({**envelope.header, **header}, envelope.parts)


def delta(reply: Envelope) -> Piece:
    return reply.parts["up"]["delta"]


NAN = torch.tensor([float("nan")]).numpy().tobytes()
HOSTILE: dict[str, Any] = {
    "nan": lambda r: changed(r, "up", "delta", replace(delta(r), data=NAN + delta(r).data[4:])),
    "wrong shape": lambda r: changed(r, "up", "delta", replace(delta(r), shape=(1,), data=NAN)),
    "wrong bytes": lambda r: changed(r, "up", "delta", replace(delta(r), data=NAN)),
    "oversized": lambda r: changed(
        r, "up", "delta", replace(delta(r), shape=(1 << 20,), data=bytes(4 << 20))
    ),
    "wrong dtype": lambda r: changed(r, "up", "delta", replace(delta(r), dtype="float64")),
    "more fields": lambda r: changed(r, "up", "w", delta(r)),
    "a field less": lambda r: Envelope(r.header, {"up": {}}),
    "buffers": lambda r: changed(r, "buffers", "0", delta(r)),
    "another client": lambda r: headed(r, client=0),
    "another visit": lambda r: headed(r, write=7),
    "work": lambda r: headed(r, gradients=1 << 80),
    "a report of half": lambda r: headed(r, train_accuracy=0.5, train_weight="4"),
    "a report of nothing": lambda r: headed(r, train_weight=0),
    "words for numbers": lambda r: headed(r, steps="many"),
    "unknown phase": lambda r: headed(r, phase="steal"),
    "no header": lambda r: Envelope({}, r.parts),
    "silence about finiteness": lambda r: headed(r, finite="yes"),
    "an exception": lambda r: "the app crashed",
    "nonsense": lambda r: Envelope({"refused": 3}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_reply_is_refused_and_the_run_goes_on(what: str, tmp_path: Path) -> None:
    """The run ends as one in which the hostile client never answers."""
    runs: list[fr.Result] = []
    for harm in (HOSTILE[what], lambda reply: "gone"):
        federation = Federation(spec("scaffold", per_round=4, rounds=2), tmp_path / str(len(runs)))
        federation.everybody()
        last = sorted(federation.office.desks)[3]

        def meddle(kind: str, envelope: Envelope, honest: Envelope, harm: Any = harm) -> Any:
            return honest if kind == ABOUT else harm(honest)

        federation.office.desks[last].meddle = meddle
        runs.append(federation.run())
        assert any("client 3" in n and "round 1" in n for n in federation.notes)
    assert runs[0].status == "done"
    assert torch.equal(runs[0].weights, runs[1].weights)
    assert all(e.replied == (0, 1, 2) for e in runs[0].ledger.entries)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"experiment": "another"}, "it runs another experiment"),
        ({"client": 9}, "client 9 is not one of 4"),
        ({"samples": -1}, "-1 samples"),
        ({"samples": "many"}, "header 'samples'"),
        ({"clients": 1000}, "is not one of 4"),
    ],
)
def test_a_node_of_another_federation_is_not_taken_in(
    header: dict[str, Any], says: str, tmp_path: Path
) -> None:
    federation = Federation(spec("fedavg"), tmp_path)
    for client in range(3):
        federation.office.join(federation.maker(client))
    meddle: Meddle = lambda kind, envelope, honest: headed(honest, **header)  # noqa: E731
    federation.office.join(federation.maker(3), meddle)
    made = federation.run(least=3)
    assert made.status == "done"
    assert any("not taken in" in note and says in note for note in federation.notes)


DOWN: dict[str, Any] = {
    "unknown phase": lambda x: headed(x, phase="steal"),
    "a phase that is no client method": lambda x: headed(x, phase="server"),
    "a private phase": lambda x: headed(x, phase="__init__"),
    "a phase elsewhere": lambda x: headed(x, phase="local.optimizer.update_"),
    "another client": lambda x: headed(x, client=2),
    "another experiment": lambda x: headed(x, experiment="0" * 16),
    "a version outside": lambda x: headed(x, read=1 << 70),
    "a path for a hash": lambda x: headed(x, frozen="../../../../tmp/x"),
    "more arrays": lambda x: changed(x, "down", "spy", x.parts["down"]["w"]),
    "an array less": lambda x: Envelope(x.header, {}),
    "short": lambda x: changed(x, "down", "w", Piece("float32", (1,), bytes(4))),
    "a state that is not there": lambda x: headed(x, read=5),
}


@pytest.mark.parametrize("what", DOWN)
def test_a_node_refuses_what_was_not_declared(what: str, tmp_path: Path) -> None:
    federation = Federation(spec("scaffold", rounds=1), tmp_path).everybody()
    envelopes: list[Envelope] = []

    def note(office: Office, kind: str, sent: Mapping[int, Envelope]) -> None:
        envelopes.extend(x for x in sent.values() if kind == VISIT and x.header["client"] == 1)

    federation.config = replace(federation.config, spec=spec("scaffold", per_round=4, rounds=1))
    federation.office.before = note
    federation.run()
    node = federation.maker(1)()
    assert "refused" not in node.answer(envelopes[0]).header
    reply = node.answer(DOWN[what](envelopes[0]))
    assert "refused" in reply.header and not reply.parts


def test_a_visit_leaves_the_generators_of_its_node_alone(tmp_path: Path) -> None:
    """Masks are drawn after it: nobody may know from the run's seed what they are drawn from."""
    federation = Federation(spec("fedavg", rounds=2, per_round=4), tmp_path).everybody()
    known: list[bool] = []

    def draws() -> list[int]:
        with borrowed_generators():
            return np.random.randint(1 << 30, size=4).tolist()

    def look(kind: str, envelope: Envelope, honest: Envelope) -> Envelope:
        if kind == VISIT:
            left, seeded = draws(), list[list[int]]()
            for purpose in ("visit", "dropout"):
                with borrowed_generators():
                    header = {key: int(str(envelope.header[key])) for key in ("round", "client")}
                    seed_all(int(str(envelope.header["seed"])), purpose, **header)
                    seeded.append(draws())
            known.append(left in seeded)
        return honest

    for desk in federation.office.desks.values():
        desk.meddle = look
    federation.run()
    assert known == [False] * 8
