"""Groups of clients with similar mean days, formed from noised ones only.

    days = own_days(values, slot, 24)          # sums [client, slot], released with noise
    group = grouped(noised, 2, least=10)       # of each client, a function of what was released
    nearest(centres(noised, group), days)      # the group that a client's exact mean day resembles

Similar means the same shape: a day is compared after its mean is subtracted and its length is made
one, so that neither the level and scale of a client matter, nor how many of its values are missing.
"""

from __future__ import annotations

import numpy as np

from fuels.arrays import Floats, Integers
from fuels.randomness import GROUPS, generator
from fuels.sharing.private_statistics import CLIP

TRIES, STEPS = 20, 30  # of k-means


def own_days(values: Floats, slot: Integers, slots: int) -> Floats:
    """What clients with values [client, step] release, [client, slot]: sums of clipped values."""
    clipped = np.nan_to_num(np.clip(values, -CLIP, CLIP), nan=0.0)
    return np.stack([np.bincount(slot, own, slots) for own in clipped])


def grouped(days: Floats, groups: int, least: int) -> Integers:
    """The group of each client by k-means, each of `least` clients or more; else one group.

    Groups are numbered by their first client, so that the numbers do not depend on the tries.
    """
    shapes, rng = _shapes(days), generator(0, GROUPS)
    best, found = np.inf, np.zeros(len(days), dtype=np.int64)
    for _ in range(TRIES if 1 < groups <= len(days) // least else 0):
        at = shapes[rng.choice(len(days), groups, replace=False)]
        for _ in range(STEPS):
            group = nearest(at, days)
            if np.bincount(group, minlength=groups).min() < least:
                break
            at = centres(days, group)
        else:
            spread = float(((shapes - at[group]) ** 2).sum())
            if spread < best:
                best, found = spread, group
    _, first, inverse = np.unique(found, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def centres(days: Floats, group: Integers) -> Floats:
    """The mean shape of each group, [group, slot]."""
    shapes = _shapes(days)
    return np.stack([shapes[group == g].mean(axis=0) for g in range(group.max() + 1)])


def nearest(centre: Floats, days: Floats) -> Integers:
    """The group whose centre each day resembles most."""
    distance = ((_shapes(days)[:, None] - centre) ** 2).sum(axis=2)
    return np.asarray(distance.argmin(axis=1))


def placed(part: Floats, group: int, groups: int) -> Floats:
    """What a client adds to the sums of all groups: its part in its own group's, else zeros."""
    whole = np.zeros((groups, *part.shape))
    whole[group] = part
    return whole.reshape(groups * part.shape[0], *part.shape[1:])


def _shapes(days: Floats) -> Floats:
    centred = days - days.mean(axis=1, keepdims=True)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(centred / np.where(length > 0, length, 1.0))
