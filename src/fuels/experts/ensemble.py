"""The personal model and the local experts, combined online and saved between calls.

    ensemble = new_ensemble(models, history, end, title="FUELS")  # training ends before step `end`
    ensemble.fit(history, (1, 2))                                 # the experts of these horizons
    backtest = ensemble.run(history)                              # learn all steps since training
    value, weights, bands = ensemble.next(history, horizon)       # forecast beyond the history

The personal model is an external expert next to those of experts/pool.py. It has seen the training
part, so it abstains there and joins from `end` on. Each horizon has its own mixture, fitted once:
by `fit`, or when it is first needed. Without `sharing`, everything is local to the client; with it,
some experts use sums over all clients (experts/shared.py).

Steps are identified by their time, so a saved ensemble continues with whatever data come next, as
long as they cover the models' windows. Steps that it never saw are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats
from fuels.config import Mixture, Sharing
from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.experts.chosen import restored_experts, shared_experts
from fuels.experts.history import History
from fuels.experts.horizon import (
    Backtest,
    HorizonEnsemble,
    PooledArrays,
    first_out_of_sample,
    fit_horizon,
    untrained,
)
from fuels.experts.input_experts import using_inputs, with_inputs
from fuels.experts.intervals import Bands, from_format_4
from fuels.experts.limits import NO_LIMITS, Limits
from fuels.experts.personal_model import (
    Forecast,
    ModelForecasts,
    OneChain,
    check_horizon,
    clients_with_model,
    denormalised,
    history_for,
    on_model_clock,
    warn_no_recent_values,
)
from fuels.experts.pool import Pool
from fuels.experts.shared import SharedExperts, saved_pool
from fuels.sharing.protection import Protection
from fuels.storage.checkpoint import load_state, prefixed, save_state, unprefixed
from fuels.storage.models import PersonalModels

FORMAT = 5
READABLE = (4, FORMAT)  # 4: other intervals, and no limits
CHOSEN = Mixture()  # default levels and limits


@dataclass
class Ensemble:
    """The mixtures of some clients, one per horizon."""

    models: PersonalModels
    title: str  # the personal model's name among the experts
    since: np.datetime64  # local standard time of the first step of training
    trained: np.datetime64  # and of the first step after it
    levels: tuple[float, ...] = CHOSEN.levels
    horizons: dict[int, HorizonEnsemble] = field(default_factory=dict)
    learned_until: dict[int, np.datetime64] = field(default_factory=dict)  # first step not learned
    sharing: SharedExperts | None = None  # None: local experts only
    limits: Limits = NO_LIMITS
    block: int = 0  # of the chain
    chain: OneChain = field(default_factory=OneChain)
    inputs: tuple[str, ...] = ()  # external ones that experts use

    @property
    def pool(self) -> Pool:
        """The experts before fitting."""
        return with_inputs(Pool() if self.sharing is None else self.sharing.pool, self.inputs)

    @property
    def model_names(self) -> list[str]:
        """The personal model among the experts and, if it reads inputs, a second time with them."""
        reads = self.inputs and self.models.inputs
        return [self.title, *([using_inputs(self.title)] if reads else [])]

    def fit(self, history: History, horizons: Iterable[int], keep: bool = True) -> None:
        """Fit the experts for the horizons that have none yet, on the training part."""
        for horizon in horizons:
            if horizon in self.horizons:
                continue
            end = self._step(history, self.trained)
            if history.start > self.since or end > history.length:
                raise FuelsError(
                    f"the experts for {horizon} steps ahead are not fitted yet; fitting them needs"
                    f" the training data, from {self.since} to {self.trained}: give a file that"
                    " includes them, or train with as many steps (--horizon) as you forecast"
                )
            history = self.with_live_mean(history)
            self.horizons[horizon] = fit_horizon(
                self.pool,
                history,
                end,
                horizon=horizon,
                levels=self.levels,
                external=self.model_names,
                pooled=self._coefficients(history, horizon),
                limits=self._normalised_limits(),
                keep=keep,
            )
            self.learned_until[horizon] = self._first(horizon)

    def run(
        self,
        history: History,
        last: int | None = None,
        horizon: int = 1,
        model: ModelForecasts | None = None,
        keep: bool = True,
    ) -> Backtest | None:
        """Forecast and learn the steps not learned yet, up to `last`; None if there are none.

        `model` gives the personal model's forecasts if they are already computed. Without `keep`,
        nothing is returned, which takes less memory.
        """
        history = self.with_live_mean(history)
        self.fit(history, [horizon], keep)
        last = history.length if last is None else last
        first = self._step(history, self.learned_until[horizon])
        if first < 0:  # the data begin later
            self.horizons[horizon].skip(-first)
            first = 0
        if first >= last:
            return None
        self.limits.warn_outside(history.observed[:, first:last], self._normalised_limits())
        model = model or self._model(history, horizon, last)
        online, external = self.horizons[horizon], model(first, last)
        backtest = online.run(history, first, last, external) if keep else None
        if not keep:
            online.advance(history, first, last, external)
        self.learned_until[horizon] = history.times(last, last + 1)[0]
        return backtest

    def learn(self, history: History, horizon: int) -> None:
        """Learn all steps of a history, 1 to `horizon` steps ahead."""
        for h, model in self.model_forecasts(history, horizon, history.length):
            self.run(history, horizon=h, model=model, keep=False)

    def next(
        self, history: History, horizon: int = 1, model: ModelForecasts | None = None
    ) -> tuple[Floats, Floats, Bands]:
        """The value `horizon` steps after the history's last one: [client], weights, intervals."""
        newest = history.times(history.length - 1, history.length)[0]
        if self.ends_in_training(history):
            raise FuelsError(
                f"the data end with {newest} (standard time), before the end of the training at"
                f" {self.trained}: the experts were fitted on the values to be forecast"
            )
        if self.has_learned_beyond(history, horizon):
            raise FuelsError(
                f"the data end with {newest} (standard time), and the experts have learned from"
                " later values: the forecast would leak future data"
            )
        history = self.with_live_mean(history)
        model = model or self._model(history, horizon, history.length + 1)
        self.run(history, horizon=horizon, model=model, keep=False)
        target = history.length + horizon - 1
        return self.horizons[horizon].next(history, model(target, target + 1))

    def model_forecasts(
        self, history: History, horizon: int, last: int
    ) -> Iterator[tuple[int, ModelForecasts]]:
        """The personal model's forecasts made before step `last`, 1 to `horizon` steps ahead.

        They form one chain: each horizon continues from the one before.
        """
        ahead = range(1, horizon + 1)
        until = {h: self.learned_until.get(h, self._first(h)) for h in ahead}
        begins = [max(self._step(history, time), 0) - (h - 1) for h, time in until.items()]
        start = min(*begins, last - 1)
        chain = self.chain(self.models, self.model_names, history, start, last, self.block)
        yield from zip(ahead, chain, strict=False)

    def history(self, panel: Panel) -> History:
        """The history of a panel from the start of training on."""
        return history_for(self.models, self.since_training(panel))

    def since_training(self, panel: Panel) -> Panel:
        """The panel from the start of training on.

        Earlier data are left out, so that a forecast does not depend on how far back they reach.
        """
        before = int((self.since - panel.start - panel.standard_offset) // panel.step)
        if 0 < before < panel.length:
            panel = replace(panel, values=panel.values[before:], start=panel.times[before])
        return panel

    def with_live_mean(self, history: History) -> History:
        """The history with the live mean, if the experts use one."""
        shared = self.sharing
        return history if shared is None else shared.with_live_mean(history, self.models.ids)

    def has_learned_beyond(self, history: History, horizon: int) -> bool:
        """Whether a mixture up to this horizon has learned from steps after a history's end."""
        return any(
            self._step(history, time) > history.length and time > self._first(h)
            for h, time in self.learned_until.items()
            if h <= horizon
        )

    def ends_in_training(self, history: History) -> bool:
        """Whether a history ends before the training does."""
        return self._step(history, self.trained) > history.length

    def unfitted(self) -> Ensemble:
        """The same models without any fitted expert."""
        return replace(self, horizons={}, learned_until={})

    def as_fitted(self) -> Ensemble:
        """Only the horizons that have learned nothing since they were fitted."""
        until = {h: time for h, time in self.learned_until.items() if time == self._first(h)}
        return replace(self, horizons={h: self.horizons[h] for h in until}, learned_until=until)

    def copy(self) -> Ensemble:
        """A copy that learns independently."""
        horizons = {h: fitted.copy() for h, fitted in self.horizons.items()}
        return replace(self, horizons=horizons, learned_until=dict(self.learned_until))

    def with_levels(self, history: History, levels: tuple[float, ...]) -> Ensemble:
        """An independent copy as fitted, with intervals for other levels.

        A horizon whose warm-up is not at hand is left out; it will be fitted again.
        """
        if levels == self.levels:
            return self.copy()
        end = self._step(history, self.trained)
        made = {h: fitted.with_levels(history, end, levels) for h, fitted in self.horizons.items()}
        horizons = {h: fitted for h, fitted in made.items() if fitted is not None}
        until = {h: self._first(h) for h in horizons}
        return replace(self, levels=levels, horizons=horizons, learned_until=until)

    def covers_training(self, panel: Panel) -> bool:
        """Whether a panel spans the training and has some of every client's values there."""
        history = self.history(panel)
        known = ~np.isnan(history.observed[:, : max(self._step(history, self.trained), 0)])
        spans = history.start <= self.since and not self.ends_in_training(history)
        return bool(spans and known.any(axis=1).all())

    def confined_to(self, limits: Limits) -> None:
        """Confine forecasts and intervals to another range from now on."""
        self.limits = limits
        for fitted in self.horizons.values():
            fitted.intervals.limits = self._normalised_limits()

    # -- on disk -------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write everything but the models, which have their own file."""
        save_state(path, *self.state())

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        arrays: dict[str, NDArray[Any]] = {}
        for horizon, fitted in self.horizons.items():
            arrays |= prefixed(f"{horizon}.online", fitted.arrays(copy=False))
            arrays |= prefixed(f"{horizon}.pool", fitted.pool.arrays())
        facts = {
            "format": FORMAT,
            "ids": list(self.models.ids),
            "title": self.title,
            "since": str(self.since),
            "trained": str(self.trained),
            "levels": list(self.levels),
            "limits": self.limits.facts(),
            **({} if self.sharing is None else {"sharing": self.sharing.facts()}),
            **({"inputs": list(self.inputs)} if self.inputs else {}),
            "experts": {str(h): list(fitted.pool.names) for h, fitted in self.horizons.items()},
            "seen": {str(horizon): str(time) for horizon, time in self.learned_until.items()},
        }
        return arrays, facts

    @classmethod
    def load(cls, path: Path, models: PersonalModels) -> Ensemble:
        arrays, facts = load_state(path, mapped=True)
        if facts.get("format") not in READABLE:
            raise FuelsError(
                f"{path}: the mixture has format {facts.get('format')}, written by another version"
                f" of fuels (this one reads {FORMAT}); train again: fuels run --config"
                f" {path.parent / 'config.toml'}"
            )
        if tuple(facts["ids"]) != models.ids:
            raise FuelsError(f"{path}: the mixture belongs to other models")
        since, trained = (np.datetime64(facts[name]) for name in ("since", "trained"))
        ensemble = cls(models, facts["title"], since, trained, tuple(facts["levels"]))
        ensemble.inputs = tuple(facts.get("inputs", ()))
        if "limits" in facts:
            ensemble.limits = Limits.from_facts(facts["limits"])
        if "sharing" in facts:
            ensemble.sharing = restored_experts(facts["sharing"], path.parent, models)
        for text, time in facts["seen"].items():
            horizon = int(text)
            own = unprefixed(f"{text}.pool", arrays)
            experts = saved_pool(horizon, own, facts.get("experts", {}).get(text), ensemble.inputs)
            pool = experts.load(own, len(models.ids), horizon)
            limits = ensemble._normalised_limits()
            online, names = unprefixed(f"{text}.online", arrays), ensemble.model_names
            fitted = untrained(pool, models.period, ensemble.levels, names, limits, online)
            if facts["format"] == 4:
                online |= prefixed("intervals", from_format_4(unprefixed("intervals", online)))
            fitted.load(online)
            ensemble.horizons[horizon] = fitted
            ensemble.learned_until[horizon] = np.datetime64(time)
        return ensemble

    # -- inside --------------------------------------------------------------------------------

    def _model(self, history: History, horizon: int, last: int) -> ModelForecasts:
        return dict(self.model_forecasts(history, horizon, last))[horizon]

    def _coefficients(self, history: History, horizon: int) -> PooledArrays | None:
        """Where the arrays of the pooled experts come from."""
        if (shared := self.sharing) is None:
            return None
        fresh = replace(shared, totals={})  # these are of one history
        return lambda end: fresh.coefficients(history, self.models.ids, end, horizon)

    def _normalised_limits(self) -> Floats:
        return self.limits.normalised(self.models.mean, self.models.std)

    def _first(self, horizon: int) -> np.datetime64:
        """The time of the first step that is out of sample `horizon` steps ahead."""
        step = np.timedelta64(self.models.step_seconds, "s")
        return self.trained + first_out_of_sample(0, horizon) * step

    def _step(self, history: History, time: np.datetime64) -> int:
        return int((time - history.start) // history.step)


def new_ensemble(
    models: PersonalModels,
    history: History,
    end: int,
    *,
    title: str,
    chosen: Mixture = CHOSEN,
    sharing: Sharing | None = None,
    seed: int = 0,
    protection: Protection | None = None,
    received: SharedExperts | None = None,
) -> Ensemble:
    """An ensemble whose experts will be fitted on the steps of a history before `end`.

    With `sharing` and enough clients, they also use what these share, or what was `received`.
    """
    trained = history.times(end, end + 1)[0]
    levels = tuple(float(level) for level in chosen.levels)
    limits = Limits.of(chosen, history.observed[:, :end], models.mean, models.std)
    shared = received or shared_experts(sharing, seed, protection, trained, models)
    began, inputs = history.start, tuple(history.inputs)
    return Ensemble(models, title, began, trained, levels, {}, {}, shared, limits, inputs=inputs)


def forecast_ensemble(
    ensemble: Ensemble,
    panel: Panel,
    horizon: int = 1,
    progress: Callable[[int], None] = lambda steps: None,
    history: History | None = None,
    steps: Collection[int] | None = None,
) -> Forecast:
    """The `horizon` values after the end of the panel with their intervals; learns on the way.

    The panel's clients are forecast; `history` may hold more data, up to the same end. `progress`
    is called after each step ahead with the number of steps completed. `steps`: only these.
    """
    check_horizon(horizon)
    panel = on_model_clock(ensemble.models, panel)
    known = clients_with_model(ensemble.models, panel)
    history = ensemble.with_live_mean(ensemble.history(panel) if history is None else history)
    made: dict[int, tuple[Floats, Floats, Bands]] = {}
    for h, model in ensemble.model_forecasts(history, horizon, history.length + 1):
        if steps is None or h in steps:
            made[h] = ensemble.next(history, h, model)
        progress(h)
    ensemble.chain.forget()
    warn_no_recent_values(ensemble.models, history, known)
    rows = [i for i, client in enumerate(ensemble.models.ids) if client in set(known)]
    values = np.stack([value[rows] for value, _, _ in made.values()], axis=1)
    lower = np.concatenate([bands.lower[:, rows] for _, _, bands in made.values()], axis=2)
    upper = np.concatenate([bands.upper[:, rows] for _, _, bands in made.values()], axis=2)
    models, bands = ensemble.models.take(known), (lower, upper)
    made_for = denormalised(models, panel, values, ensemble.levels, bands, tuple(made))
    return ensemble.limits.confined(made_for)
