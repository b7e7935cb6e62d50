"""The guard: what is refused, with which reason, and that nobody else is touched by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fuels.federation.codec import Envelope
from fuels.federation.guard import EnvelopeGuard, download_refusal, refusals, size_limit
from fuels.methods.base import Sent
from fuels.methods.messages import Download, Upload
from helpers.tripwires import nothing_executed

DECLARED = {"prototype": Sent((2, 3), bound=1.0)}
CLIENTS = ("a", "b", "c")


def good() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.full((3, 2, 3), 0.5, np.float32)


def upload(array: Any = None, **changes: Any) -> Upload:
    values = {
        "clients": CLIENTS,
        "arrays": {"prototype": good() if array is None else array},
    }
    return Upload(**{**values, **changes})


def changed(value: float) -> Any:
    array = good()
    array[1, 0, 0] = value
    return array


def test_a_good_upload_passes() -> None:
    assert refusals(upload(), DECLARED, CLIENTS) == ({}, "")
    counted = upload(samples=np.array([10, 1, 10]))
    assert refusals(counted, DECLARED, CLIENTS, counted=True, most_samples=10) == ({}, "")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.nan, "not finite"),
        (np.inf, "not finite"),
        (-np.inf, "not finite"),
        (1.01, "at most 1"),
        (1000.0, "at most 1"),
    ],
)
def test_one_bad_number_refuses_its_client_alone(value: float, reason: str) -> None:
    reasons, whole = refusals(upload(changed(value)), DECLARED, CLIENTS)
    assert whole == "" and set(reasons) == {"b"} and reason in reasons["b"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (upload(good()[:, :1]), "shape"),
        (upload(np.full((1,), 0.5, np.float32)), "shape"),  # would be broadcast over everybody
        (upload(good()[:1]), "shape"),
        (upload(good().astype(np.float64)), "float64"),
        (upload(good().astype(np.int64)), "int64"),
        (upload(arrays={}), "missing arrays"),
        (upload(arrays={"prototype": good(), "extra": good()}), "undeclared arrays"),
        (upload(arrays={"model": good()}), "missing arrays"),
        (upload(clients=("a", "b", "b")), "twice"),
        (upload(samples=np.array([10, 10, 10])), "undeclared sample counts"),
    ],
)
def test_a_malformed_upload_is_refused_as_a_whole(bad: Upload, reason: str) -> None:
    reasons, whole = refusals(bad, DECLARED, CLIENTS)
    assert reasons == {} and reason in whole


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (None, "sample counts are missing"),
        (np.array([10, 10]), "sample counts do not match"),
        (np.array([10.0, 10.0, 10.0]), "sample counts do not match"),
    ],
)
def test_declared_counts_must_be_there_and_fit(samples: Any, reason: str) -> None:
    reasons, whole = refusals(upload(samples=samples), DECLARED, CLIENTS, counted=True)
    assert reasons == {} and reason in whole


def test_a_client_of_another_site_is_refused() -> None:
    reasons, whole = refusals(upload(), DECLARED, ("a", "c"))
    assert whole == "" and reasons == {"b": "not asked for in this round"}


def test_nobody_claims_more_samples_than_there_are() -> None:
    claimed = upload(samples=np.array([10, 10**12, 0]))
    reasons, _ = refusals(claimed, DECLARED, CLIENTS, counted=True, most_samples=888)
    assert set(reasons) == {"b", "c"}


def test_arrays_without_a_bound_need_only_be_finite() -> None:
    declared = {"prototype": Sent((2, 3))}
    assert refusals(upload(changed(1e30)), declared, CLIENTS) == ({}, "")
    assert set(refusals(upload(changed(np.inf)), declared, CLIENTS)[0]) == {"b"}


@settings(max_examples=250, deadline=None)
@given(
    array=st.sampled_from([np.float32, np.float64, np.int64]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, max_side=3))
    ),
    names=st.lists(st.sampled_from(["prototype", "model", ""]), max_size=2, unique=True),
    clients=st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=4),
    samples=st.none() | hnp.arrays(np.int64, st.integers(0, 4)),
    counted=st.booleans(),
)
def test_whatever_passes_is_what_was_declared(
    array: Any, names: list[str], clients: list[str], samples: Any, counted: bool
) -> None:
    """No crash; and an accepted row is finite, bounded, of an asked client, and comes once."""
    sent = Upload(tuple(clients), dict.fromkeys(names, array), samples)
    with nothing_executed():
        reasons, whole = refusals(sent, DECLARED, {"a", "b"}, counted=counted, most_samples=100)
    if whole:
        return
    assert counted == (samples is not None)
    kept = [i for i, client in enumerate(clients) if client not in reasons]
    assert len(set(clients)) == len(clients)
    for row in kept:
        value = sent.arrays["prototype"][row]
        assert clients[row] in ("a", "b") and (not counted or 1 <= samples[row] <= 100)
        assert value.shape == (2, 3) and value.dtype == np.float32
        assert np.isfinite(value).all() and np.abs(value).max() <= 1.001


@settings(max_examples=150, deadline=None)
@given(hnp.arrays(np.float32, (3, 2, 3)))
def test_refusing_some_leaves_the_others_as_they_were(array: Any) -> None:
    before = array.copy()
    with nothing_executed():
        reasons, whole = refusals(upload(array), DECLARED, CLIENTS)
    bad = {
        client
        for client, row in zip(CLIENTS, before, strict=True)
        if not np.isfinite(row).all() or np.abs(row).max() > 1.0001
    }
    assert whole == "" and set(reasons) == bad
    assert array.tobytes() == before.tobytes()


# -- what a site receives --------------------------------------------------------------------------

GETS = {"positive": Sent((2, 3), 1.0), "model": Sent((4,))}


def pair(**arrays: Any) -> Download:
    return Download(personal=arrays, clients=("a", "b"))


@pytest.mark.parametrize(
    ("download", "reason"),
    [
        (Download(), ""),
        (Download(shared={"model": np.zeros(4, np.float32)}), ""),
        (pair(positive=np.zeros((2, 2, 3), np.float32)), ""),
        (Download(shared={"model": np.zeros(1, np.float32)}), "shape"),
        (Download(shared={"model": np.zeros(4)}), "float64"),
        (Download(shared={"model": np.full(4, np.nan, np.float32)}), "not finite"),
        (Download(shared={"model": np.full(4, 1e9, np.float32)}), ""),
        (Download(shared={"code": np.zeros(4, np.float32)}), "undeclared"),
        (pair(positive=np.full((2, 2, 3), 3, np.float32)), "at most 1"),
        (pair(positive=np.zeros((1, 2, 3), np.float32)), "shape"),
        (Download(clients=("a", "z")), "'z', which is not asked"),
        (Download(clients=("a", "a")), "twice"),
    ],
)
def test_a_site_checks_what_it_gets(download: Download, reason: str) -> None:
    found = download_refusal(download, GETS, ("a", "b"))
    assert (found == "") == (reason == "") and reason in found


@settings(max_examples=150, deadline=None)
@given(
    names=st.lists(st.sampled_from(["positive", "model", "code"]), max_size=2, unique=True),
    clients=st.lists(st.sampled_from(["a", "b", "z"]), max_size=3),
    array=hnp.arrays(np.float32, st.sampled_from([(4,), (2, 2, 3), (1, 2, 3), (0, 2, 3)])),
    shared=st.booleans(),
)
def test_whatever_a_site_takes_is_what_was_declared(
    names: list[str], clients: list[str], array: Any, shared: bool
) -> None:
    arrays = dict.fromkeys(names, array)
    download = Download(
        shared=arrays if shared else {}, personal={} if shared else arrays, clients=tuple(clients)
    )
    with nothing_executed():
        reason = download_refusal(download, GETS, ("a", "b"))
    if reason:
        return
    assert len(set(clients)) == len(clients) and set(clients) <= {"a", "b"}
    for name in names:
        count = () if shared else (len(clients),)
        assert array.shape == (*count, *GETS[name].shape)
        assert np.isfinite(array).all() and np.abs(array).max(initial=0) <= 1.1e6
        assert name == "model" or np.abs(array).max(initial=0) <= 1.001


# -- who may speak, and when -----------------------------------------------------------------------


def letter(**changes: Any) -> Envelope:
    return Envelope(**{"kind": "train", "run": "r", "round": 5, "site": "north", **changes})


@pytest.mark.parametrize(
    ("envelope", "reason"),
    [
        (letter(), ""),
        (letter(round=4), ""),  # one round late is accepted
        (letter(round=3), "stale"),
        (letter(round=6), "not started"),
        (letter(site="south"), "key is another site's"),
        (letter(run="other"), "belongs to run"),
        (letter(kind="hello"), "the request was 'train'"),
    ],
)
def test_the_gate(envelope: Envelope, reason: str) -> None:
    found = EnvelopeGuard("r", staleness=1).refusal(envelope, "north", "train", 5, envelope.round)
    assert (found == "") == (reason == "") and reason in found


def test_a_message_is_of_the_round_that_was_asked() -> None:
    guard = EnvelopeGuard("r", staleness=1)
    assert guard.refusal(letter(round=4), "north", "train", 5, 4) == ""
    for claimed, asked in ((4, 5), (5, 4)):
        found = guard.refusal(letter(round=claimed), "north", "train", 5, asked)
        assert found == f"it is from round {claimed}, but round {asked} was requested"


def test_the_same_round_is_used_once() -> None:
    guard = EnvelopeGuard("r")
    guard.use(letter(round=5))
    assert "duplicate" in guard.refusal(letter(round=5), "north", "train", 5, 5)
    assert "duplicate" in guard.refusal(letter(round=5), "north", "train", 6, 5)
    assert guard.refusal(letter(round=6), "north", "train", 6, 6) == ""
    assert guard.refusal(letter(site="south"), "south", "train", 5, 5) == ""


def test_the_size_limit_follows_the_declaration() -> None:
    limit = size_limit(25, {"prototype": Sent((24, 256))})
    assert 25 * 24576 < limit < 25 * 24576 * 1.2
