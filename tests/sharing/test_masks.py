"""Masks: totals are exact, single views are noise, and no mask serves two sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import chi2_contingency
from tests.helpers.secure import FEDERATION, NAMES, private_key

from fuels.errors import FuelsError
from fuels.sharing.fixed_point import from_words, to_words
from fuels.sharing.masks import SumId, masked, public_key, total

Words = np.ndarray
KEYS = {site: public_key(private_key(site)) for site in NAMES}


def asked(numbers: int, count: int = 3, **changes: object) -> SumId:
    facts = {"federation": FEDERATION, "serial": 1, "series": "run", "name": "test", "step": 0}
    facts |= {"sites": NAMES[:count], "shape": (numbers,), **changes}
    return SumId(**facts)  # type: ignore[arg-type]


def send(site: str, which: SumId, words: Words) -> Words:
    return masked(words, which, site, private_key(site), KEYS)


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7])
def test_the_total_of_masked_words_is_that_of_the_plain_ones(count: int) -> None:
    which = asked(6, count, shape=(2, 3))
    plain = {s: to_words([np.random.default_rng(ord(s[0])).normal(0, 9, 6)], count, "") for s in
             which.sites}  # fmt: skip
    found = total(which, {site: send(site, which, words) for site, words in plain.items()})
    expected = from_words(np.sum(list(plain.values()), axis=0, dtype=np.uint64))
    np.testing.assert_array_equal(found, expected.reshape(2, 3))


def test_a_missing_site_makes_the_sum_undecodable() -> None:
    which = asked(4)
    words = {site: send(site, which, np.zeros(4, np.uint64)) for site in which.sites}
    with pytest.raises(FuelsError, match="test, step 0: no sum without north"):
        total(which, {site: w for site, w in words.items() if site != "north"})
    rest = words["east"] + words["south"]  # what a curious server can do anyway
    assert (np.abs(from_words(rest)) > 1e4).all()
    with pytest.raises(FuelsError, match="masks of east, north, south do not cancel"):
        total(which, words | {"north": send("north", asked(4, step=1), np.zeros(4, np.uint64))})
    with pytest.raises(FuelsError, match="north sent 3 numbers of 5"):
        total(which, words | {"north": np.zeros(3, np.uint64)})


def test_every_part_of_a_sums_identity_changes_the_masks() -> None:
    first = asked(4)
    others = [
        asked(4, step=1), asked(4, name="other"), asked(4, series="run-2"), asked(4, serial=2),
        asked(4, federation="other"), asked(4, 4), asked(4, shape=(2, 2)), asked(4, shape=(4, 1)),
        asked(4, terms="one"), asked(4, terms="two"),
    ]  # fmt: skip
    seen = {send("east", which, np.zeros(4, np.uint64)).tobytes() for which in [first, *others]}
    assert len(seen) == 1 + len(others)
    assert send("east", first, np.zeros(4, np.uint64)).tobytes() in seen  # and nothing else does


def p_value(view: Callable[[int, Words], Words]) -> float:
    """How likely it is that bytes at the server are equally distributed for two inputs."""
    inputs = [to_words([np.full(8, value)], 3, "") for value in (0.25, -3.0)]
    steps = range(300)
    counts = [
        np.bincount(
            np.concatenate([view(1000 * i + step, words) for step in steps]).view(np.uint8),
            minlength=256,
        )
        for i, words in enumerate(inputs)
    ]
    table = np.array(counts)
    return float(chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue)


def test_views_of_two_inputs_cannot_be_told_apart() -> None:
    def at_the_server(step: int, words: Words) -> Words:
        return send("north", asked(8, step=step), words)

    def with_one_mask_for_all_steps(step: int, words: Words) -> Words:
        return send("north", asked(8), words)

    assert p_value(at_the_server) > 0.01
    assert p_value(with_one_mask_for_all_steps) < 1e-12


def test_unusable_keys_and_sets_are_refused() -> None:
    with pytest.raises(FuelsError, match="the key of site south is not a usable X25519 key"):
        masked(np.zeros(4, np.uint64), asked(4), "east", private_key("east"),
               KEYS | {"south": bytes(32)})  # fmt: skip
    with pytest.raises(FuelsError, match="must be sorted"):
        asked(4, sites=("south", "east", "north"))
    with pytest.raises(FuelsError, match="3 numbers do not fit"):
        send("east", asked(4), np.zeros(3, np.uint64))
