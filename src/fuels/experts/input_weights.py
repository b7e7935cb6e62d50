"""What the heads of a personal model make of external inputs.

A network is trained on the series only. Each client then gives every head further weights: of the
inputs at the step that the head forecasts, and of their changes since the newest value and since a
period ago, because the values of those times contain the effect of the inputs. The weights are a
ridge regression of the head's errors on the client's training part:

    forecast h steps ahead = head h of the network + weights of h . inputs

So training sends what it would send without inputs, bit by bit, and the weights stay with the
client. An input that is missing at a step adds nothing there, as if it had its mean.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fuels.arrays import Floats
from fuels.experts.groups import by_groups
from fuels.experts.history import History
from fuels.experts.input_mixture import best_share
from fuels.experts.linear import season_lag
from fuels.experts.ridge import SHRINKAGES, fit_ridge
from fuels.storage.models import InputWeights

COLUMNS = 3  # of an input: its value, and its changes since the newest value and a period ago
PARTS = 4  # of the training part, each forecast by weights that are fitted on the others


def fit_input_weights(
    history: History, heads: Iterable[Floats], first: int, end: int
) -> InputWeights:
    """Weights for the inputs of a history, from the steps first..end-1.

    `heads` are forecasts [client, step] 1, 2, ... steps ahead, made before those steps.
    """
    names = tuple(history.inputs)
    scales, weights = history.input_scales(names, end), []
    for h, forecasts in enumerate(heads, start=1):
        since = first + h - 1
        errors = history.observed[:, since:end] - forecasts[:, : max(end - since, 0)]

        def fit(rows: slice, h: int = h, since: int = since, errors: Floats = errors) -> Floats:
            x = np.stack(_columns(history.take(rows), names, scales[rows], h, since, end), axis=2)
            return _certain_weights(x, errors[rows])

        weights.append(np.concatenate(by_groups(history.clients, fit)))
    return InputWeights(names, scales, np.stack(weights, axis=1))


def _certain_weights(x: Floats, errors: Floats) -> Floats:
    """Weights [client, column] that forecast errors [client, step] from x [client, step, column].

    Inputs that say nothing fit the errors a little, by chance. The share of the weights that counts
    is therefore the best for weights fitted on other parts of the steps (input_mixture.py).
    """
    known, made = ~np.isnan(errors), np.zeros(errors.shape)
    for held in np.array_split(np.arange(errors.shape[1]), PARTS):
        others = known.copy()
        others[:, held] = False
        weights = fit_ridge(x, errors, others, SHRINKAGES).weights
        made[:, held] = (x[:, held] * weights[:, None, :]).sum(axis=2)
    product = np.where(known, made * errors, 0.0)
    before = np.pad(product, ((0, 0), (1, 0)))[:, :-1]
    sums = [product, np.where(known, made**2, 0.0), product**2, product * before]
    share = best_share(known.sum(axis=1), *(one.sum(axis=1) for one in sums))
    return share[:, None] * fit_ridge(x, errors, known, SHRINKAGES).weights


def added_by_inputs(
    inputs: InputWeights, history: History, head: int, first: int, last: int
) -> Floats:
    """What the inputs add to forecasts of the steps first..last-1, `head` ahead, [client, step]."""
    weights = inputs.heads[:, head - 1]
    total = np.zeros((history.clients, last - first))
    columns = _columns(history, inputs.names, inputs.scales, head, first, last)
    for i, column in enumerate(columns):  # in order: the bits must not depend on other steps
        total += weights[:, i, None] * column
    return total


def _columns(
    history: History, names: tuple[str, ...], scales: Floats, head: int, first: int, last: int
) -> list[Floats]:
    """COLUMNS for each input, [client, step] each; 0 where one of them is unknown."""
    since = (0, head, season_lag(history.period, head))
    wanted = [(name, lag) for name in names for lag in since]
    made = history.input_columns(wanted, scales, first, last)
    result = []
    for i in range(0, len(made), COLUMNS):
        own = np.stack(made[i : i + COLUMNS])
        result += [*np.where(np.isnan(own).any(axis=0), 0.0, own)]
    return result
