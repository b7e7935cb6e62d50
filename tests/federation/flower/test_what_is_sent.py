"""What leaves a site, and what reaches it: every message of a run, as Flower sends it.

The messages take Flower's own way: the ServerApp's post packs them, they are cut into the objects
that Flower puts on the wire, put together again and handed to the ClientApp, and back. Only the
network between is missing. What they hold is compared with what the method declares, and their
bytes are searched for values of the data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import PRESETS, Engine, Settings, merge
from fuels.errors import FuelsError
from fuels.federation.flower import worker
from fuels.federation.flower.folders import SiteFolder
from fuels.federation.flower.inbox import Time
from fuels.federation.flower.server import serve
from fuels.federation.flower.sum_server import wanted
from fuels.federation.site import Site
from fuels.methods.base import Method
from fuels.methods.messages import Upload
from fuels.methods.registry import EXTENSIONS, METHODS
from fuels.runs.build import build, method_for, train_periods
from fuels.runs.settings import resolve
from helpers.flower_world import SITES, World, settings, write_panel
from helpers.wire import Seen, Wire

pytest.importorskip("flwr")
pytestmark = pytest.mark.usefixtures("quiet")

FIGURES = {"val_mse", "val_mae", "loss/prediction", "loss/intra", "loss/inter"}


def run(
    root: Path, chosen: Settings, *consent: tuple[str, str], days: int = 12
) -> tuple[World, list[Seen]]:
    """A run through Flower's messages, with changes to all sites' config files."""
    from fuels.federation.flower.app import GridNetwork

    # The clock below stands still, that of a message does not, and kernels may have to be compiled.
    world = World(root, chosen, deadline=3600.0)
    write_panel(root / "panel.csv", sorted(c for ids in SITES.values() for c in ids), days)
    for file in root.glob("sites/*/site.toml"):
        for old, new in consent:
            assert old in file.read_text()
            file.write_text(file.read_text().replace(old, new))
    wire = Wire(root, chosen)
    time = Time(lambda: 0.0, lambda seconds: None)
    serve(GridNetwork(wire, world.server), world.server, "run", chosen, time)  # type: ignore[arg-type]
    return world, wire.seen


# -- what it must be -------------------------------------------------------------------------------


def declared(method: Method, seen: Seen) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """The arrays with their shapes, and the facts, that this message may have."""
    envelope = seen.envelope
    kind, number, facts = envelope.kind, envelope.round, envelope.facts
    if seen.way == "down":
        count, down = len(facts["having"]), method.downloads()
        shapes = {f"shared/{name}": sent.shape for name, sent in down.items()}
        shapes |= {f"personal/{name}": (count, *sent.shape) for name, sent in down.items()}
        best = {"best_round"} & set(facts) if kind == "finish" else set()
        return shapes, {"asked", "having"} | best
    count = len(facts["clients"])
    shapes = {}
    if kind == "train":
        shapes = {f"upload/{n}": (count, *sent.shape) for n, sent in method.uploads(number).items()}
        shapes |= {"samples": (count,)} if method.counts(number) else {}
    if kind in ("train", "evaluate"):
        shapes |= dict.fromkeys(FIGURES, (count,))
    return shapes, {"clients", "train_periods"} if kind == "hello" else {"clients"}


def patterns(world: World) -> tuple[set[bytes], list[bytes]]:
    """Raw values as they could stand in bytes: binary of eight bytes, and as text.

    One value in double precision or two that follow each other in single, as they are in the file
    and as they are trained on.
    """
    source = {"data": {"source": str(world.root / "panel.csv")}}
    dataset = build(merge(world.settings, source, "test"), Engine(threads=1)).dataset
    raw = dataset.panel.values.T  # [client, step]
    found: set[bytes] = set()
    for series in (*raw, *dataset.series):
        found |= {value.tobytes() for value in series.astype("<f8")}
        single = series.astype("<f4").tobytes()
        found |= {single[at : at + 8] for at in range(0, len(single) - 4, 4)}
    return found, [f"{value:.4f}".encode() for value in raw.ravel()]


def values_in(content: bytes, binary: set[bytes], text: list[bytes]) -> int:
    """How many values of the data stand in these bytes, at whatever position."""
    windows = {content[at : at + 8] for at in range(len(content) - 7)}
    return len(windows & binary) + sum(value in content for value in text)


@dataclass(frozen=True)
class Case:
    """What is run, for how many rounds, with which options, and who sends sample counts."""

    method: str
    rounds: int = 2
    options: dict[str, Any] = field(default_factory=dict)
    counts: bool = False
    consent: bool = False  # to what is made from raw values or has rows for every period


RUNS = {
    "fuels": Case("fuels", 4),
    "fuels with noise": Case("fuels", options={"noise": "gaussian"}),
    "fuels, concatenated": Case("fuels", options={"periodic": False}, consent=True),
    "preset best": Case("fuels"),
    "fuels-start": Case("fuels-start", 3, {"lend": 2}, counts=True),
    "solo": Case("solo"),
    "fedavg": Case("fedavg", 3, counts=True),
    "fedprox": Case("fedprox", counts=True),
    "fedrep": Case("fedrep", counts=True),
    "perfedavg": Case("perfedavg", counts=True),
    "pfedme": Case("pfedme", counts=True),
    "fedda": Case("fedda", options={"week": 1}, consent=True),
}


def chosen_for(name: str) -> Settings:
    case = RUNS[name]
    if name != "preset best":
        chosen = settings(case.method, rounds=case.rounds, selection=1.0)
        return replace(chosen, options=case.options)
    preset = merge(settings(), {"preset": "best", **PRESETS["best"]}, "test")
    changes = {"training": {"rounds": case.rounds}, "windows": {"split": "20/5/5"}}
    return merge(preset, changes, "test")


def test_every_method_is_looked_at() -> None:
    assert {case.method for case in RUNS.values()} == set(METHODS | EXTENSIONS)


@pytest.mark.parametrize("name", RUNS)
def test_only_what_is_declared_travels_and_no_raw_value(tmp_path: Path, name: str) -> None:
    chosen, case = chosen_for(name), RUNS[name]
    consent = [("raw_derived = false", "raw_derived = true")] if case.consent else []
    world, seen = run(tmp_path / "fed", chosen, *consent, days=sum(split(chosen)))
    source = {"data": {"source": str(world.root / "panel.csv")}}
    job = build(merge(chosen, source, "test"), Engine(threads=1))
    method = method_for(resolve(chosen), train_periods(job.dataset))
    kinds = {(message.way, message.envelope.kind) for message in seen}
    evaluated = {"evaluate"} if method.evaluate_after_aggregation else set()
    asked = {"hello", "train", "finish"} | evaluated
    assert kinds == {(way, kind) for way in ("up", "down") for kind in asked}
    binary, text = patterns(world)
    used: set[str] = set()
    for message in seen:
        envelope = message.envelope
        shapes, facts = declared(method, message)
        assert set(envelope.arrays) <= set(shapes)
        if message.way == "up":
            assert set(envelope.arrays) - FIGURES == set(shapes) - FIGURES
            used |= set(envelope.arrays)
        if message.way == "down" and envelope.kind == "finish" and wanted(resolve(chosen)):
            facts = facts | {"sums"}  # here: that there are none, because there is no roster
        assert set(envelope.facts) == facts and envelope.site == message.site
        for array_name, array in envelope.arrays.items():
            assert array.shape == shapes[array_name], array_name
        for clients in (envelope.facts.get(key, []) for key in ("clients", "asked", "having")):
            assert set(clients) <= set(SITES[message.site])
        assert message.content in message.wire
        assert len(message.wire) - len(message.content) < 1500  # Flower's own: ids, times, types
        if not any(sent.raw for sent in method.uploads(envelope.round).values()):
            assert values_in(message.wire, binary, text) == 0
    assert {f"upload/{n}" for r in range(1, case.rounds + 1) for n in method.uploads(r)} <= used
    assert ("samples" in used) == case.counts
    assert {f"loss/{loss}" for loss in method.losses} | {"val_mse", "val_mae"} >= used & FIGURES


def split(chosen: Settings) -> list[int]:
    return [int(days) for days in chosen.windows.split.split("/")]


def test_counts_leave_in_the_rounds_that_need_them_alone(tmp_path: Path) -> None:
    _, seen = run(tmp_path / "fed", chosen_for("fuels-start"))
    sent = [m.envelope for m in seen if (m.way, m.envelope.kind) == ("up", "train")]
    assert {e.round for e in sent if "samples" in e.arrays} == {2}
    assert {e.round for e in sent} == {1, 2, 3}


def test_the_search_finds_values_of_the_data(tmp_path: Path) -> None:
    """It would see what the test above says is not there, whatever stands before it."""
    world, seen = run(tmp_path / "fed", settings(rounds=1))
    binary, text = patterns(world)
    values = np.loadtxt(world.root / "panel.csv", delimiter=",", skiprows=1, usecols=2)
    some, wire = values[40:43], seen[-1].wire
    for planted in (some.astype("<f4").tobytes(), some.astype("<f8").tobytes(), b"%.4f" % some[0]):
        assert values_in(wire + b"x" + planted, binary, text) > 0
    z = (values - values.mean()) / values.std()
    assert values_in(z[40:43].tobytes(), binary, text) == 0  # not on the scale of any client


# -- what a site enforces --------------------------------------------------------------------------


def test_metrics_stay_at_sites_that_do_not_allow_them(tmp_path: Path) -> None:
    chosen = settings("fedavg", rounds=2)
    _, seen = run(tmp_path / "fed", chosen, ("metrics = true", "metrics = false"))
    sent = {name for message in seen if message.way == "up" for name in message.envelope.arrays}
    assert sent == {"upload/encoder", "upload/decoder", "samples"}


def test_a_method_that_would_send_more_than_it_declares_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "fed", settings(rounds=1))
    original = worker.check_upload

    def more(method: Method, number: int, upload: Upload, asked: tuple[str, ...]) -> Any:
        arrays = upload.arrays | {"series": np.zeros((len(upload.clients), 3), np.float32)}
        return original(method, number, replace(upload, arrays=arrays), asked)

    monkeypatch.setattr(worker, "check_upload", more)
    with pytest.raises(FuelsError, match="round 1: 0 of 3 sites replied"):
        world.run()
    assert {kind for _, kind, *_ in world.network.got} == {"hello"}


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("fedda", {"week": 1}, "sends augmented, which is computed from raw values"),
        ("fuels", {"periodic": False}, "prototype, which has rows for every training period"),
    ],
)
def test_what_says_more_of_the_data_needs_consent(
    tmp_path: Path, name: str, options: dict[str, Any], reason: str
) -> None:
    chosen = replace(settings(name, rounds=2), options=options)
    world = World(tmp_path / "fed", chosen)
    with pytest.raises(FuelsError, match=reason):
        world.run()
    assert world.network.got == []
    for site in ("north", "south"):
        file = SiteFolder(world.root / "sites" / site).config_file
        file.write_text(file.read_text().replace("raw_derived = false", "raw_derived = true"))
    world.run("second")
    assert {site for site, *_ in world.network.got} == {"north", "south"}


# -- what an error says ----------------------------------------------------------------------------


def no_data(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.root / "sites" / "north" / "own.csv").unlink()


def damaged_data(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader names the line that it cannot read."""
    file = world.root / "sites" / "north" / "own.csv"
    lines = file.read_text().splitlines()
    lines[40] += "-oops"
    file.write_text("\n".join(lines))


def failing_training(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of training that quotes what is trained on, in full precision."""
    train = Site.train

    def fail(site: Site, number: int, clients: Any, download: Any) -> Any:
        if "a" in site.ids:
            raise ValueError(f"cannot train on {site.dataset.panel.values[:5].tolist()}")
        return train(site, number, clients, download)

    monkeypatch.setattr(Site, "train", fail)


def raw_upload(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload that the site does not let out, and whose largest entry is a raw value."""
    train = Site.train

    def leak(site: Site, number: int, clients: Any, download: Any) -> Any:
        upload, report = train(site, number, clients, download)
        if "a" in site.ids:
            largest = site.dataset.panel.values.max()
            upload.arrays["prototype"][:] = np.float32(largest)
        return upload, report

    monkeypatch.setattr(Site, "train", leak)


def no_state(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the site's state should be is a file; the system's error names the path."""
    (world.root / "sites" / "north" / "state").write_text("no folder")


def no_config(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.root / "sites" / "north" / "site.toml").write_text("data = 7.25 what")


TROUBLE = (no_data, damaged_data, failing_training, raw_upload, no_state, no_config)


@pytest.mark.parametrize("trouble", TROUBLE, ids=lambda trouble: trouble.__name__)
def test_an_error_tells_the_server_no_value_and_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Any
) -> None:
    from fuels.federation.flower.app import GridNetwork

    chosen = settings(rounds=1)
    world = World(tmp_path / "fed", chosen)
    world.give_data("north", days=12)
    values = np.loadtxt(
        world.root / "sites" / "north" / "own.csv", delimiter=",", skiprows=1, usecols=2
    )
    trouble(world, monkeypatch)
    wire, time = Wire(world.root, chosen), Time(lambda: 0.0, lambda seconds: None)
    post = GridNetwork(wire, world.server)  # type: ignore[arg-type]
    serve(post, world.server, "run", chosen, time)
    errors = [seen for seen in wire.seen if seen.reason]
    assert errors and {seen.site for seen in errors} == {"north"}
    assert world.history()[0]["clients"] == 4
    written = {f"{value:{form}}" for value in values for form in (".4f", ".6g", ".3g")}
    for seen in errors:
        assert "RefusalError" in seen.reason  # nothing else is made to be told
        told = seen.wire.decode("latin-1")
        numbers = set(re.findall(r"\d[\d.e+-]*", seen.reason))
        assert not numbers & written and not any("." in number for number in numbers), seen.reason
        for secret in (str(tmp_path), "own.csv", "north/", "-oops", "site.toml"):
            assert secret not in told, seen.reason
    # What the server keeps of it says as little.
    kept = " ".join(world.history()[0]["failures"])
    assert "north: " in kept and "own.csv" not in kept and str(tmp_path) not in kept
