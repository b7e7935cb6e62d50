"""How what a method declares to send depends on the training part of a site and on the period.

Most arrays have one size whatever the data. Those that grow with the training part are of one size
at all sites only if their training parts are equally long, and say more of the data than a summary.
Those that grow with the period are a summary of as many periods as the training part has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fuels.errors import FuelsError
from fuels.methods.base import Method, Sent

ROUNDS = (1, 2)  # methods declare the same for all later ones, or lend models once


def sized(method: Method, periods: int) -> Method:
    """The method as a site with so many training periods has it."""
    return type(method)(method.options, replace(method.facts, train_periods=periods))


def declared(method: Method, periods: int) -> tuple[dict[str, Sent], ...]:
    """What a site with so many training periods declares to upload, in round 1 and later."""
    there = sized(method, periods)
    return tuple(there.uploads(number) for number in ROUNDS)


def agreed(method: Method, periods: Mapping[str, int]) -> Method:
    """The method in the size that most sites have; one site alone cannot decide it for the others.

    `periods`: site: its training part. Most methods have one size whatever it is.
    """
    for count in sorted(set(periods.values()), reverse=True):
        alike = [site for site, other in periods.items() if _same(method, count, other)]
        if 2 * len(alike) > len(periods):
            return sized(method, count)
    told = ", ".join(f"{site} {count}" for site, count in sorted(periods.items()))
    raise FuelsError(
        f"{method.title} with these options sends {', '.join(growing(method))}, whose size follows"
        f" the training part, and no length of it is that of most sites (periods: {told}); give all"
        " sites the same windows.split"
    )


def growing(method: Method) -> list[str]:
    """The uploaded arrays that are larger the longer the training part is."""
    return _resized(method, sized(method, 2 * method.facts.train_periods))


def of_a_period(method: Method) -> list[str]:
    """The uploaded arrays with rows for the steps of a period: means over the training periods."""
    sample = replace(method.facts.sample, period=2 * method.facts.period)
    return _resized(method, type(method)(method.options, replace(method.facts, sample=sample)))


def _resized(method: Method, other: Method) -> list[str]:
    """The uploaded arrays that have another shape in another size of the method."""
    pairs = [(method.uploads(number), other.uploads(number)) for number in ROUNDS]
    return sorted({name for a, b in pairs for name in a if a[name].shape != b[name].shape})


def _same(method: Method, count: int, other: int) -> bool:
    try:
        return declared(method, count) == declared(method, other)
    except FuelsError:  # no run of this method can have such a length
        return False


def need_equal(method: Method, periods: Mapping[str, int]) -> None:
    """Refuse sites whose uploads would be of another size than those of this run."""
    own = method.facts.train_periods
    for site, count in periods.items():
        if declared(method, count) != declared(method, own):
            raise FuelsError(
                f"the training part of site {site} has {count} periods with samples, this run's has"
                f" {own}: {method.title} with these options sends {', '.join(growing(method))},"
                " whose size follows it; give all sites the same windows.split"
            )
