"""Ridge regressions of many clients at once, with a penalty per client.

One eigendecomposition per client gives the fit for every penalty; generalised cross-validation
chooses the penalty. The constant is not penalised.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuels.arrays import Flags, Floats

PENALTIES = np.asarray(10.0 ** np.arange(-3, 5), np.float64)  # in units of one squared z-score
# Of corrections: the last removes them.
SHRINKAGES = np.asarray(10.0 ** np.arange(-1, 7), np.float64)


@dataclass(frozen=True)
class Ridge:
    """One linear forecast per client."""

    weights: Floats  # [client, feature]
    constant: Floats  # [client]

    def predict(self, x: Floats) -> Floats:
        """Forecasts [client, step] from features [client, step, feature]; NaN in, NaN out."""
        # Not a matrix product, whose last bits depend on the number of steps, and always in one
        # order in memory: a live forecast then equals that of a longer backtest exactly.
        weighted = np.ascontiguousarray(x) * self.weights[:, None, :]
        result: Floats = weighted.sum(axis=2) + self.constant[:, None]
        return result


def fit_ridge(x: Floats, y: Floats, used: Flags, penalties: Floats = PENALTIES) -> Ridge:
    """Fit y [client, step] on x [client, step, feature] over the `used` steps.

    A client without a used step gets the forecast 0, the mean of its training part.
    """
    mask = used.astype(np.float64)
    count = np.maximum(mask.sum(axis=1), 1.0)
    x = np.where(used[:, :, None], x, 0.0)
    y = np.where(used, y, 0.0)
    x_mean = x.sum(axis=1) / count[:, None]
    y_mean = y.sum(axis=1) / count
    x_centred = (x - x_mean[:, None, :]) * mask[:, :, None]
    y_centred = (y - y_mean[:, None]) * mask
    gram = x_centred.transpose(0, 2, 1) @ x_centred
    moment = (y_centred[:, None, :] @ x_centred)[:, 0]
    values, vectors = np.linalg.eigh(gram)  # gram = V diag(values) V'
    values = np.maximum(values, 0.0)
    rotated = (moment[:, None, :] @ vectors)[:, 0]
    total = (y_centred**2).sum(axis=1)

    scores = []
    for candidate in penalties:
        shrunk = rotated / (values + candidate)
        residual = total - 2 * (shrunk * rotated).sum(axis=1) + (shrunk**2 * values).sum(axis=1)
        freedom = 1 + (values / (values + candidate)).sum(axis=1)
        scores.append(residual / np.maximum(count - freedom, 1.0) ** 2)
    penalty = penalties[np.argmin(np.stack(scores), axis=0)]
    weights = (vectors @ (rotated / (values + penalty[:, None]))[:, :, None])[:, :, 0]
    constant = y_mean - (weights * x_mean).sum(axis=1)
    return Ridge(weights=weights, constant=constant)
