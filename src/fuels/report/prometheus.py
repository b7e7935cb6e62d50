"""The text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

TEXT = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[Mapping[str, str], float]


class Metrics:
    """The text format of Prometheus, one metric at a time."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, name: str, kind: str, help_: str, samples: Iterable[Sample]) -> None:
        self.lines += [f"# HELP fuels_{name} {help_}", f"# TYPE fuels_{name} {kind}"]
        for labels, value in samples:
            shown = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
            labelled = f"fuels_{name}{{{shown}}}" if shown else f"fuels_{name}"
            self.lines.append(f"{labelled} {repr(float(value)).removesuffix('.0')}")

    def gauge(self, name: str, help_: str, value: float | None) -> None:
        self.add(name, "gauge", help_, [] if value is None else [({}, value)])

    def counter(self, name: str, help_: str, value: float) -> None:
        self.add(name, "counter", help_, [({}, value)])

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
