"""Experts that use external inputs: columns known in advance, such as a temperature or a price.

    pool = with_inputs(Pool(), ("temperature", "event"))

A regression sees each input at the target, and its change since the newest value and since a season
ago: those values contain the effect of the input at their own time. Nothing later than the target
is used. The scale comes from the steps that the regression is fitted on. A value far beyond them
counts as the end of their range, so that a wrong unit or a freak price cannot carry a forecast off.

Some experts use all inputs together and, if there are several, others one each. An expert abstains
where one of its inputs is missing, so a missing input costs only that input: the other experts go
on, and those that use no input always do. Nothing of this is shared with other clients.

An input that says nothing should cost nothing either: input_mixture.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuels.experts.linear import RidgeExpert, no_lags, period_lags, recent_lags, week_lags
from fuels.experts.pool import Pool

ALL = (
    RidgeExpert("ridge, calendar", no_lags, calendar=True),
    RidgeExpert("ridge, recent lags, calendar", recent_lags, calendar=True),
    RidgeExpert("ridge, period lags, change", period_lags, change=True),
    RidgeExpert("ridge, weekly lags, calendar", week_lags, calendar=True),
    RidgeExpert("ridge, weekly lags, calendar, change", week_lags, change=True, calendar=True),
)
SINGLE = ALL[-2:]


def input_experts(names: Sequence[str]) -> tuple[RidgeExpert, ...]:
    """The experts that use these inputs: all of them together, then one at a time."""
    if not names:
        return ()
    sets: list[tuple[Sequence[RidgeExpert], tuple[str, ...], str]] = [(ALL, tuple(names), "inputs")]
    if len(names) > 1:
        sets += [(SINGLE, (name,), f"input {name}") for name in names]
    return tuple(
        replace(expert, name=f"{expert.name}, {said}", inputs=chosen)
        for experts, chosen, said in sets
        for expert in experts
    )


def using_inputs(name: str) -> str:
    """The name of an expert that uses all inputs."""
    return f"{name}, inputs"


def uses_inputs(name: str) -> bool:
    """Whether an expert of this name uses external inputs."""
    return name.endswith(using_inputs("")) or ", input " in name


def with_inputs(pool: Pool, names: Sequence[str]) -> Pool:
    """A pool and the experts that use these inputs."""
    return Pool((*pool.experts, *input_experts(names))) if names else pool
