"""The compiled arithmetic of the mixture, all in one file so that its cache is never stale.

Three learners hold weights over the same experts (w >= 0, sum 1), a fourth mixes the learners:

- steady: BOA, Bernstein online aggregation (Wintenberger 2017). Each expert has its own learning
  rate from the squares of its regrets; nothing is forgotten.
- switching: fixed share (Herbster and Warmuth 1998). Exponential weights, after which every expert
  gets back a share of the total, so that its weight can recover within a few steps.
- tracking: the best weights in hindsight over recent steps: they minimise the discounted squared
  error of the combination, with a penalty towards equal weights.
- top: ML-Poly (Gaillard, Stoltz and van Erven 2014) over the three, with slow forgetting and a
  prior for the steady one: if nothing can be learned, the quick ones only chase noise.

Everything is scale-free: multiplying all values by a constant changes no weight. The two quick
learners see the actual value clipped to within `clip` usual errors of the median forecast, because
a single spike would mislead them; steady and top see the actual value, with which they are
evaluated. Forecasts are clipped to within `limit` usual errors of their median, because each
expert's echo of a spike (an hour, a day, a week later) would cost more than the spike. An expert is
exempt from clipping if, outside this range, it was right at least twice more often than wrong.

An expert without a forecast (NaN) is asleep: the others share its weight in proportion, and it is
scored as if its forecast were that of the learner, which leaves its weight unchanged.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fuels.arrays import Floats
from fuels.kernels.jit import ABSENT, compiled

if ABSENT:
    from fuels.kernels.tracking import best_lately, median
else:
    from fuels.kernels.tracking_simd import best_lately, median

from fuels.kernels.tracking import TINY

STEADY, SWITCHING, TRACKING, LEARNERS = 0, 1, 2, 3
SLOW = 0.998  # memory of the usual error: a step's weight halves in about 350 steps
CLIP_FROM = 10  # steps before the usual error is used
EARNED = -1.5  # an outlying expert that was right twice is no longer clipped; once may be chance
NOISE = 1e-9  # relative: a smaller gain is rounding error


class Constants(NamedTuple):
    """The constants, chosen by experiment; compiled code takes them as a plain tuple."""

    rate: float = 0.2  # switching: learning rate, in units of one over its own mean squared error
    share: float = 0.05  # switching: share given back at every step
    memory: float = 0.9  # tracking: a step's weight halves in about 7 steps
    pull: float = 0.3  # tracking: penalty, in units of the least squared error
    pull_early: float = 10.0  # tracking: additional penalty, divided by the number of steps
    top: float = 0.995  # top: a step's weight halves in about 140 steps
    prior: float = 3.0  # top: weight of the steady learner at equal regrets; the others have 1
    clip: float = 3.0  # of values for the quick learners: usual errors from the median forecast
    surprise: float = 0.9  # factor on the memory of the usual error after a clipped error
    limit: float = 8.0  # of forecasts: usual errors from their median


# Several steps ahead, actual values arrive late and errors of neighbouring steps are similar: the
# quick learners look further back, and the top forgets faster.
AHEAD = Constants(
    share=0.02, memory=0.97, top=0.99, prior=1.0, clip=2.5, surprise=1.0, limit=np.inf
)


def first_learner_weights(prior: float) -> Floats:
    """The weights of the learners before any actual value is known."""
    trust = np.full(LEARNERS, 1.0 / (prior + LEARNERS - 1.0))
    trust[STEADY] *= prior
    return trust


@compiled()
def awake_weights(weights: Floats, forecasts: Floats, out: Floats) -> float:
    """Write `weights`, shared among the awake experts, to out; returns their combination."""
    total, awake = 0.0, 0
    for i in range(len(weights)):
        if not np.isnan(forecasts[i]):
            total += weights[i]
            awake += 1
    value = 0.0 if awake else np.nan
    for i in range(len(weights)):
        out[i] = 0.0
        if not np.isnan(forecasts[i]):
            out[i] = weights[i] / total if total > NOISE else 1.0 / awake
            value += out[i] * forecasts[i]
    return value


@compiled()
def boa(forecasts: Floats, said: float, truth: float, sums: Floats, weights: Floats) -> None:
    """One step of BOA on the gradient of the squared error; updates `weights`.

    `sums` is [3, expert]: regret, sum of squared gains, largest gain.
    """
    experts = len(weights)
    for i in range(experts):
        if not np.isnan(forecasts[i]):
            gain = 2 * (said - truth) * (said - forecasts[i])
            sums[1, i] += gain * gain
            sums[2, i] = max(sums[2, i], abs(gain))
    highest = np.max(sums[2])
    most = -np.inf
    for i in range(experts):
        # An expert without any forecast counts as uncertain as the worst: abstaining must not win.
        peak = sums[2, i] if sums[2, i] > 0 else highest
        rate = min(0.5 / (peak + TINY), np.sqrt(np.log(experts + 1.0) / (sums[1, i] + TINY)))
        if not np.isnan(forecasts[i]):
            gain = 2 * (said - truth) * (said - forecasts[i])
            sums[0, i] += gain - rate * gain * gain
        weights[i] = np.log(rate) + rate * sums[0, i]
        most = max(most, weights[i])
    total = 0.0
    for i in range(experts):
        weights[i] = np.exp(weights[i] - most)
        total += weights[i]
    for i in range(experts):
        weights[i] /= total


@compiled()
def fixed_share(
    forecasts: Floats,
    said: float,
    truth: float,
    error: Floats,
    weights: Floats,
    relative: float,
    share: float,
) -> None:
    """One step of fixed share; `error` is [sum of squared errors, count]."""
    own = (said - truth) ** 2
    error[0] += own
    error[1] += 1.0
    rate = relative / (error[0] / error[1] + TINY)
    experts, total = len(weights), 0.0
    for i in range(experts):
        lost = own if np.isnan(forecasts[i]) else (forecasts[i] - truth) ** 2
        # An expert far behind keeps e^-50, one far ahead gains e^50: enough either way.
        weights[i] *= np.exp(min(max(rate * (own - lost), -50.0), 50.0))
        total += weights[i]
    for i in range(experts):
        weights[i] = (1.0 - share) * weights[i] / total + share / experts


@compiled()
def ml_poly(
    forecasts: Floats,
    said: float,
    truth: float,
    sums: Floats,
    weights: Floats,
    memory: float,
    prior: float,
) -> None:
    """One step of ML-Poly with forgetting and a prior for the first; updates `weights`.

    `sums` is [3, learner]: regret, sum of squared gains, largest squared gain of all.
    """
    total = 0.0
    for i in range(len(weights)):
        gain = 2 * (said - truth) * (said - forecasts[i])
        if abs(gain) <= NOISE * (said - truth) ** 2:  # before the first value all agree
            gain = 0.0
        sums[0, i] = memory * sums[0, i] + gain
        sums[1, i] = memory * sums[1, i] + gain * gain
        sums[2, :] = max(sums[2, 0], gain * gain)
    for i in range(len(weights)):
        weights[i] = max(sums[0, i], 0.0) / (sums[2, i] + sums[1, i] + TINY)
        if i == STEADY:
            weights[i] *= prior
        total += weights[i]
    for i in range(len(weights)):
        before = (prior if i == STEADY else 1.0) / (prior + len(weights) - 1.0)
        weights[i] = weights[i] / total if total > 0 else before


@compiled()
def usual_error(scale: Floats) -> float:
    """Root of the recent mean squared error, spikes clipped; infinite before it is known."""
    if scale[1] < CLIP_FROM or scale[0] == 0:
        return np.inf
    return float(np.sqrt(scale[0] / scale[1]))


@compiled()
def limited(forecasts: Floats, reach: float, echo: Floats, out: Floats) -> None:
    """Forecasts clipped to within `reach` of their median, except those of exempt experts.

    After a spike many experts repeat it, each in its own hour.
    """
    out[:] = forecasts
    if reach == np.inf:
        return
    middle = median(forecasts)
    for i in range(len(forecasts)):
        if echo[i] > EARNED and abs(forecasts[i] - middle) > reach:  # not where an expert sleeps
            out[i] = middle + np.sign(forecasts[i] - middle) * reach


@compiled()
def earned(forecasts: Floats, reach: float, truth: float, echo: Floats) -> None:
    """Update `echo`: how often limiting an expert was right (+1) or would have been wrong (-1).

    It is negative for the only expert that foresees an event, such as a weekly one.
    """
    if reach == np.inf:
        return
    middle = median(forecasts)
    for i in range(len(forecasts)):
        if abs(forecasts[i] - middle) > reach:
            tame = middle + np.sign(forecasts[i] - middle) * reach
            echo[i] = SLOW * echo[i] + np.sign(abs(forecasts[i] - truth) - abs(tame - truth))


@compiled()
def clipped(forecasts: Floats, truth: float, scale: Floats, clip: float, surprise: float) -> float:
    """The actual value clipped to within `clip` usual errors of the median forecast.

    Updates `scale`. Several clipped errors in a row indicate a change, so past errors soon lose
    their weight.
    """
    middle = median(forecasts)
    error = truth - middle
    reach = clip * usual_error(scale)
    if abs(error) > reach:
        error = np.sign(error) * reach
        scale *= surprise
    scale[0] = SLOW * scale[0] + error * error
    scale[1] = SLOW * scale[1] + 1.0
    return float(middle + error)


# The state in the order of Mixture.state: compiled code takes it as a tuple.
Parts = tuple[Floats, ...]

# The same for the compiler, and what `run` takes.
_PARTS = (
    "Tuple((f8[:, :, ::1], f8[:, ::1], f8[:, :, ::1], f8[:, ::1], f8[:, :, ::1], f8[:, ::1],"
    " f8[:, :, ::1], f8[:, ::1], f8[:, ::1], f8[:, :, ::1], f8[::1]))"
)
_CONSTANTS = f"UniTuple(f8, {len(Constants())})"
_DETAILS = ", f8[:, :, ::1]" * 3
_RUN = f"(f8[:, ::1], f8[:, :, ::1], i8, {_CONSTANTS}, {_PARTS}, f8[:, ::1]{_DETAILS}, b1)"


@compiled()
def _learn(entry: Floats, c: int, constants: tuple[float, ...], parts: Parts) -> None:
    """Update the state of client c with one past step, if its actual value is known.

    The entry holds the experts' forecasts after limiting, the learners' forecasts, the experts'
    original forecasts, the limit, the mixture's forecast, and the actual value.
    """
    weights, trust, steady, switching, moments, count, top, scale, echo, _, _ = parts
    rate, share, memory, pull, pull_early, top_memory, prior, clip, surprise, _ = constants
    experts = weights.shape[2]
    forecasts = entry[:experts]
    said = entry[experts : experts + LEARNERS]
    mixed, truth = entry[-2], entry[-1]
    if np.isnan(truth) or np.isnan(mixed):
        return
    earned(entry[experts + LEARNERS : -3], entry[-3], truth, echo[c])
    tame = clipped(forecasts, truth, scale[c], clip, surprise)
    boa(forecasts, said[STEADY], truth, steady[c], weights[c, STEADY])
    quick, lately = weights[c, SWITCHING], weights[c, TRACKING]
    fixed_share(forecasts, said[SWITCHING], tame, switching[c], quick, rate, share)
    pulls = (pull, pull_early)
    best_lately(forecasts, said[TRACKING], tame, moments[c], count[c], lately, memory, pulls)
    ml_poly(said, mixed, truth, top[c], trust[c], top_memory, prior)


@compiled()
def _combine(
    forecasts: Floats,
    weights: Floats,
    trust: Floats,
    reach: float,
    echo: Floats,
    entry: Floats,
    mixed_weights: Floats,
) -> None:
    """Write one client's forecasts to `entry`, and the mixture's weights to `mixed_weights`."""
    experts = weights.shape[1]
    own = np.empty(experts)
    mixed_weights[:] = 0.0
    tame = entry[:experts]
    limited(forecasts, reach, echo, tame)
    entry[experts + LEARNERS : -3] = forecasts
    entry[-3] = reach
    mixed = 0.0
    for learner in range(LEARNERS):
        said = awake_weights(weights[learner], tame, own)  # NaN if every expert sleeps
        entry[experts + learner] = said
        mixed += trust[learner] * said
        for i in range(experts):
            mixed_weights[i] += trust[learner] * own[i]
    entry[-2] = mixed


@compiled(ahead=_RUN)
def run(
    truth: Floats,
    forecasts: Floats,
    delay: int,
    constants: tuple[float, ...],
    parts: Parts,
    out: Floats,
    out_weights: Floats,
    out_learners: Floats,
    out_trust: Floats,
    ahead: bool,
) -> None:
    """All clients over all steps; a step is learned just before the forecast `delay` later.

    `out` has all steps. The other results may have room for one step, and then hold the last one.
    `ahead`: before each forecast all queued steps are learned, oldest first, as for one more step
    whose value is not known; works on a copy of the state.
    """
    weights, trust, _, _, _, _, _, scale, echo, queue, steps = parts
    experts = weights.shape[2]
    for c in range(len(truth)):
        for k in range(truth.shape[1]):
            first = int(steps[0]) + k
            for i in range(delay if ahead else 1):
                _learn(queue[c, (first + i) % delay], c, constants, parts)
            entry = queue[c, first % delay]  # held step k - delay
            reach = constants[-1] * usual_error(scale[c])
            at = k if out_weights.shape[1] > 1 else 0
            said = out_weights[c, at]
            _combine(forecasts[c, k], weights[c], trust[c], reach, echo[c], entry, said)
            entry[-1] = truth[c, k]
            out[c, k] = entry[-2]
            out_learners[c, at] = entry[experts : experts + LEARNERS]
            out_trust[c, at] = trust[c]
