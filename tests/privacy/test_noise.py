"""Noise on uploaded prototypes: its distributions, its independence of grouping, its bound."""

from __future__ import annotations

import numpy as np
import pytest

from fuels.config import Engine, Settings, merge
from fuels.errors import FuelsError
from fuels.privacy.noise import KINDS, add_noise, check_noise, reach
from fuels.runs.build import build, method_for
from fuels.runs.settings import resolve
from helpers.panels import make_panel

CLIENTS = ("a", "b", "c")


def drawn(kind: str, scale: float = 1.0, round_number: int = 1) -> np.ndarray:
    values = np.zeros((3, 200, 200), dtype=np.float32)
    return add_noise(values, CLIENTS, kind, scale, seed=0, round_number=round_number)


@pytest.mark.parametrize(
    ("kind", "mean", "absolute"),
    [
        ("laplace", 0.0, 1 / np.sqrt(2)),  # E|x| = b
        ("gaussian", 0.0, np.sqrt(2 / np.pi)),
        ("exponential", 1.0, 1.0),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_scale_is_the_standard_deviation(
    kind: str, mean: float, absolute: float, scale: float
) -> None:
    noise = drawn(kind, scale)
    assert noise.std() == pytest.approx(scale, rel=0.02)
    assert noise.mean() == pytest.approx(mean * scale, abs=0.02 * scale)
    assert np.abs(noise).mean() == pytest.approx(absolute * scale, rel=0.02)
    assert np.abs(noise).max() < reach(kind, scale)


def test_noise_belongs_to_seed_client_and_round_and_not_to_the_group() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    whole = add_noise(values, CLIENTS, "gaussian", 1.0, seed=5, round_number=2)
    alone = add_noise(values[1:2], ("b",), "gaussian", 1.0, seed=5, round_number=2)
    np.testing.assert_array_equal(whole[1:2], alone)
    later = add_noise(values, CLIENTS, "gaussian", 1.0, seed=5, round_number=3)
    other = add_noise(values, CLIENTS, "gaussian", 1.0, seed=6, round_number=2)
    assert not np.isclose(whole, later).any() and not np.isclose(whole, other).any()
    assert whole.dtype == np.float32


def test_no_noise_changes_nothing() -> None:
    values = np.ones((3, 2), dtype=np.float32)
    for kind, scale in (("none", 1.0), ("laplace", 0.0)):
        assert add_noise(values, CLIENTS, kind, scale, seed=0, round_number=1) is values


def test_refuses_what_means_nothing() -> None:
    with pytest.raises(FuelsError, match="did you mean laplace"):
        check_noise("laplas", 1.0)
    for scale in (-1.0, float("nan"), float("inf")):
        with pytest.raises(FuelsError, match="noise_scale"):
            check_noise("gaussian", scale)


def settings(**options: object) -> Settings:
    return merge(
        Settings(),
        {
            "windows": {"split": "7/2/3"},
            "training": {"rounds": 3},
            "model": {"hidden": 4},
            "options": options,
        },
        "test",
    )


def prototypes(**options: object) -> tuple[np.ndarray, list[str]]:
    """What the server holds after training, and what it refused."""
    refused: list[str] = []

    class Watch:
        def on_round(self, done: object) -> None:
            refused.extend(failure.reason for failure in done.failures)  # type: ignore[attr-defined]

    with build(settings(**options), Engine(threads=1), make_panel()) as job:
        job.loop.run([Watch()])
        return job.loop.server.state()["prototypes"], refused


@pytest.mark.parametrize("kind", list(KINDS))
def test_noised_prototypes_are_accepted_and_really_noisy(kind: str) -> None:
    plain, _ = prototypes()
    noised, refused = prototypes(noise=kind)
    assert refused == []
    assert np.abs(plain).max() <= 1
    assert np.std(noised) > 0.8


def test_the_declared_bound_is_widened_by_the_reach_of_the_noise() -> None:
    def bound(**options: object) -> float | None:
        return method_for(resolve(settings(**options)), periods=4).uploads(1)["prototype"].bound

    assert bound() == 1
    assert bound(noise="gaussian", noise_scale=2.0) == 21
    assert bound(noise="laplace") == pytest.approx(1 + 40 / np.sqrt(2))
    with pytest.raises(FuelsError, match=r"options\.noise uniform"):
        bound(noise="uniform")


# -- in a federation -------------------------------------------------------------------------------

PROTOTYPE = np.random.default_rng(3).uniform(-1, 1, (3, 24, 16)).astype(np.float32)


def hidden(
    secret: bytes, scale: float = 1.0, values: np.ndarray = PROTOTYPE, number: int = 2
) -> np.ndarray:
    return add_noise(values, CLIENTS, "gaussian", scale, seed=0, round_number=number, secret=secret)


def test_whoever_knows_all_but_the_secret_cannot_take_the_noise_off() -> None:
    mine, plain = hidden(b"mine"), hidden(b"")
    for guess in (plain, hidden(b"another")):
        left = mine - (guess - PROTOTYPE) - PROTOTYPE  # what remains over the prototype
        assert left.std() == pytest.approx(np.sqrt(2), rel=0.1)
    assert (mine - PROTOTYPE).std() == pytest.approx(1, rel=0.1)
    assert (
        np.abs(
            plain
            - (
                PROTOTYPE
                + add_noise(
                    np.zeros_like(PROTOTYPE), CLIENTS, "gaussian", 1.0, seed=0, round_number=2
                )
            )
        ).max()
        < 1e-6
    )  # fmt: skip  without a secret it comes off


def test_asking_twice_for_the_same_gives_the_same_and_for_another_scale_another_draw() -> None:
    once = hidden(b"mine")
    assert once.tobytes() == hidden(b"mine").tobytes()
    # Twice the scale of the same draw would give the prototype away: 2 (p + n) - (p + 2 n) = p.
    assert np.abs(2 * once - hidden(b"mine", scale=2.0) - PROTOTYPE).mean() > 1
    later = hidden(b"mine", number=3) - PROTOTYPE
    assert abs(np.corrcoef(later.ravel(), (once - PROTOTYPE).ravel())[0, 1]) < 0.1


def test_the_difference_of_two_uploads_is_noisy_too() -> None:
    """A server that has one day taken out of the average must not see that day without noise."""
    other = PROTOTYPE.copy()
    other[:, 0, 0] += 0.01
    difference = hidden(b"mine", values=other) - hidden(b"mine")
    assert (difference.reshape(3, -1).std(axis=1) > 1).all()


def test_the_secret_is_in_no_text_of_a_method() -> None:
    method = method_for(resolve(settings(noise="gaussian")), periods=4, secret=b"mine-alone")
    assert method.facts.secret == b"mine-alone" and "mine-alone" not in repr(method.facts)
