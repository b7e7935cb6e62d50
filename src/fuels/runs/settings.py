"""Resolved settings: checked, with every value that a run uses filled in.

An entry point (a command, a Forecaster, a study, a federation) calls `resolve` once. The code
behind it takes `ResolvedSettings`, so nothing has to be checked or completed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fuels.checks import check
from fuels.config import Settings, merge, to_dict
from fuels.data.sample import Sample, sample_of
from fuels.errors import FuelsError
from fuels.methods.base import Options
from fuels.methods.registry import find_method, method_options


@dataclass(frozen=True)
class ResolvedSettings(Settings):
    """Settings with the method's defaults filled in, its options, and the layout of a sample.

    To describe another method's run, change the plain settings: these hold this method's values.
    """

    sample: Sample = field(init=False, repr=False, compare=False)
    method_options: Options = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        given = method_options(self.method, self.options)
        derived = {
            "sample": sample_of(self.windows),
            "method_options": given,
            "options": asdict(given),
            "training": find_method(self.method).complete(self.training),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)  # the class is frozen


def same_settings(stored: Mapping[str, Any], settings: ResolvedSettings, ignore: str = "") -> bool:
    """Whether these are the settings that a run stored, perhaps under a version that knew fewer.

    `ignore` names a section that may differ.
    """
    try:
        earlier = to_dict(resolve(merge(Settings(), stored, "stored settings")))
    except FuelsError:
        return False
    now = to_dict(settings)
    return {**earlier, ignore: None} == {**now, ignore: None}


def resolve(settings: Settings) -> ResolvedSettings:
    """The settings, checked and completed; resolved settings are returned as they are."""
    if isinstance(settings, ResolvedSettings):
        return settings
    return ResolvedSettings(**vars(settings))
