"""The mean of masked uploads equals the plain one, and bounds are applied by the sites."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency
from tests.helpers.secure import FEDERATION, NAMES, private_key

from fuels.errors import FuelsError
from fuels.methods.aggregation import update_norms
from fuels.methods.base import Sent, weighted_mean
from fuels.methods.messages import Upload
from fuels.sharing.fixed_point import Words
from fuels.sharing.masked_uploads import NAME, Mean, Terms, mean_of, shape_of, words_of
from fuels.sharing.masks import SumId, masked, public_key, total

SITES = NAMES[:3]
DECLARED = {"encoder": Sent((5,)), "decoder": Sent((2,))}
BEFORE = {name: np.ones(sent.shape, np.float32) for name, sent in DECLARED.items()}


def upload(site: str, clients: int = 2, scale: float = 1.0) -> Upload:
    rng = np.random.default_rng(len(site))
    arrays = {
        name: (1 + rng.normal(0, scale, (clients, *sent.shape))).astype(np.float32)
        for name, sent in DECLARED.items()
    }
    samples = rng.integers(1, 900, clients)
    return Upload(tuple(f"{site}{i}" for i in range(clients)), arrays, samples)


def exchanged(uploads: dict[str, Upload], terms: Terms) -> Mean:
    which = asked()
    keys = {site: public_key(private_key(site)) for site in SITES}
    replies = {
        site: masked(words_of(own, BEFORE, terms, 3)[0], which, site, private_key(site), keys)
        for site, own in uploads.items()
    }
    return mean_of(total(which, replies), DECLARED)


def asked(step: int = 1) -> SumId:
    return SumId(FEDERATION, 1, "run", NAME, step, SITES, shape_of(DECLARED))


def test_the_mean_is_weighted_by_samples() -> None:
    uploads = {site: upload(site, clients) for clients, site in enumerate(SITES, 1)}
    found = exchanged(uploads, Terms(960))
    samples = np.concatenate([u.weights for u in uploads.values()])
    for name in DECLARED:
        rows = np.concatenate([u.arrays[name] for u in uploads.values()])
        np.testing.assert_allclose(found.parts[name], weighted_mean(rows, samples), atol=2e-7)
    lengths = np.concatenate([update_norms(u.arrays, BEFORE) for u in uploads.values()])
    assert found.length == pytest.approx(np.average(lengths, weights=samples), abs=1e-8)


def test_a_site_shortens_updates_to_the_bound() -> None:
    own = upload("north", 1, scale=50.0)
    bound = 0.5
    shorter = exchanged(dict.fromkeys(SITES, own), Terms(960, clip=2.0, bound=bound))
    update = {name: part - BEFORE[name] for name, part in shorter.parts.items()}
    assert np.sqrt(sum(np.square(u).sum() for u in update.values())) == pytest.approx(bound)
    whole = np.concatenate([own.arrays[name][0] - BEFORE[name] for name in DECLARED])
    np.testing.assert_allclose(
        np.concatenate(list(update.values())) / bound, whole / np.linalg.norm(whole), atol=1e-5
    )
    # However long an update is, the bound of the next round, clip x length, only doubles.
    assert 2.0 * shorter.length == pytest.approx(2 * bound)


def test_a_client_for_which_there_is_no_room_is_left_out() -> None:
    own = upload("north")
    own.arrays["decoder"][1] = 1e30
    words, large = words_of(own, BEFORE, Terms(960), 3)
    assert large == ["north1"]
    np.testing.assert_array_equal(words, words_of(own.take([0]), BEFORE, Terms(960), 3)[0])
    nothing, _ = words_of(own.take([]), BEFORE, Terms(960), 3)
    assert not nothing.any() and nothing.shape == (9,)
    with pytest.raises(FuelsError, match="no client contributed"):
        exchanged({site: own.take([]) for site in SITES}, Terms(960))


def test_terms_that_cannot_be_are_refused() -> None:
    for most in (0, 2**32 + 1):
        with pytest.raises(FuelsError, match="must be between 1 and"):
            Terms(most)
    for bound in (-1.0, float("nan"), float("inf")):
        with pytest.raises(FuelsError, match="the bound on updates"):
            Terms(960, bound=bound)
    with pytest.raises(FuelsError, match="has more than 10 samples"):
        words_of(upload("north"), BEFORE, Terms(10), 3)


def p_value(fixed: bool) -> float:
    """How likely it is that bytes at the server are equally distributed for two uploads."""
    keys = {site: public_key(private_key(site)) for site in SITES}
    counts = []
    for i, scale in enumerate((0.01, 3.0)):
        words = words_of(upload("north", scale=scale), BEFORE, Terms(960), 3)[0]
        seen: list[Words] = [
            masked(words, asked(0 if fixed else 1000 * i + n), "north", private_key("north"), keys)
            for n in range(300)
        ]
        counts.append(np.bincount(np.concatenate(seen).view(np.uint8), minlength=256))
    table = np.array(counts)
    return float(chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue)


def test_uploads_cannot_be_told_apart_at_the_server() -> None:
    assert p_value(fixed=False) > 0.01
    assert p_value(fixed=True) < 1e-12
