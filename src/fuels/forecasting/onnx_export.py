"""A personal model as an ONNX file: forecasts without Python and PyTorch.

Scaling, calendar and all steps ahead are part of the graph: it takes values in the data's unit and
returns forecasts in it. Inputs, for any number of rows:

    window [row, lag]         the known values at the lags that the metadata list, oldest first
    phase [row]               position in the period of the first step ahead, such as the hour
    free [row, step ahead]    1 on days off, else 0
    weekday [row, step ahead] 0 for Monday

    inputs [row, step ahead, input, 3]
                             external inputs in their own units: at the step itself, at the step of
                             the newest value, and one period before (or the whole periods that
                             reach back to a known value); NaN where one is unknown

The last four are there only if the model uses them. Output: forecast [row, step ahead]. The
metadata say what the model is: client, lags, period, step, time zone, holidays, scale, unit and the
names of the external inputs.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.arrays import Floats32
from fuels.data.calendar import MOST_SLOTS
from fuels.data.files import writing
from fuels.errors import FuelsError
from fuels.experts.input_weights import COLUMNS
from fuels.model.network import Network
from fuels.storage.models import InputWeights, PersonalModels
from fuels.version import __version__, not_installed

OPSET = 17
IR_VERSION = 8  # of opset 17: read by runtimes since 2022


def export_onnx(models: PersonalModels, client: str, path: Path) -> None:
    """Write one client's model."""
    graph = _Graph(models, client)
    with writing(path) as temporary:
        temporary.write_bytes(graph.model().SerializeToString())


def file_names(ids: Sequence[str]) -> dict[str, str]:
    """A file name for each client, all different."""
    names: dict[str, str] = {}
    used: set[str] = set()  # in lower case: some file systems do not tell them apart
    for client in ids:
        stem = name = re.sub(r"[^A-Za-z0-9._-]+", "-", client).strip(".") or "client"
        number = 1
        while name.lower() in used:
            number += 1
            name = f"{stem}-{number}"
        used.add(name.lower())
        names[client] = f"{name}.onnx"
    return names


def onnx_package() -> Any:
    """The package onnx, or how to install it."""
    try:
        return importlib.import_module("onnx")
    except ImportError:
        raise FuelsError(f"ONNX files: {not_installed('the package onnx', 'onnx')}") from None


class _Graph:
    """The nodes of one client's model, added in the order of the computation."""

    def __init__(self, models: PersonalModels, client: str) -> None:
        self.onnx, self.models, self.client = onnx_package(), models, client
        self.network, self.sample = models.network, models.sample
        if self.network.encoder.gru is None:
            raise FuelsError(
                f"client {client}: only models with the encoder gru can be exported, not"
                f" {models.encoder}"
            )
        self.row = models.ids.index(client)
        self.weights = {name: tensor.numpy() for name, tensor in models.tensors(client).items()}
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []

    # -- the model -----------------------------------------------------------------------------

    def model(self) -> Any:
        helper, sample = self.onnx.helper, self.sample
        self._input("window", np.float32, len(sample.lags))
        mean, std = (float(scale[self.row]) for scale in (self.models.mean, self.models.std))
        z = self._node("Div", self._node("Sub", "window", self._number(mean)), self._number(std))
        if sample.change:  # as the model: relative to the last value, which is added at the end
            level = self._node("Gather", z, self._whole([sample.newest]), axis=1)  # [row, 1]
            made = self._heads(self._encoded(self._node("Sub", z, level)))
            made = self._node("Add", made, level)
        else:
            made = self._heads(self._encoded(z))
        if self.models.inputs is not None:
            made = self._node("Add", made, self._from_inputs(self.models.inputs))
        scaled = self._node("Mul", made, self._number(std))
        self._node("Add", scaled, self._number(mean), name="forecast")
        output = helper.make_tensor_value_info(
            "forecast", self.onnx.TensorProto.FLOAT, ["row", sample.horizon]
        )
        name = f"fuels {self.models.method}"
        graph = helper.make_graph(self.nodes, name, self.inputs, [output], self.constants)
        model = helper.make_model(
            graph,
            producer_name="fuels",
            producer_version=__version__,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
        helper.set_model_props(model, self._metadata(mean, std))
        self.onnx.checker.check_model(model)
        return model

    def _metadata(self, mean: float, std: float) -> dict[str, str]:
        models, sample = self.models, self.sample
        facts = {
            "client": self.client,
            "method": models.method,
            "lags": ",".join(map(str, sample.lags)),
            "steps_ahead": sample.horizon,
            "period": sample.period,
            "step_seconds": models.step_seconds,
            "timezone": models.timezone or "",
            "calendar": ",".join(sample.calendar),
            "holidays": ",".join(sorted(str(day) for day in models.calendar.holidays)),
            "mean": repr(mean),
            "std": repr(std),
            "unit": models.unit,
            "inputs": "" if models.inputs is None else ",".join(models.inputs.names),
        }
        return {name: str(value) for name, value in facts.items()}

    # -- calendar ------------------------------------------------------------------------------

    def _calendar(self) -> dict[str, str]:
        """The calendar's inputs, and the phase of each step ahead [row, H]."""
        wanted, found = self.sample.calendar, {}
        if "time" in wanted or "free" in wanted:
            self._input("phase", np.int64)
            rows = self._node("Unsqueeze", "phase", self._whole([1]))
            later = self._whole([list(range(self.sample.horizon))])
            period = self._whole([self.sample.period])
            found["time"] = self._node("Mod", self._node("Add", rows, later), period)
        for name in ("free", "weekday"):
            if name in wanted:
                self._input(name, np.int64, self.sample.horizon)
                found[name] = name
        return found

    def _signs(self, calendar: dict[str, str]) -> list[str]:
        """What the encoder reads of the calendar, [row, column] each: that of the first step."""
        first = self._whole(0)
        now = {name: self._node("Gather", each, first, axis=1) for name, each in calendar.items()}
        angle = 2 * np.pi * np.arange(self.sample.period) / self.sample.period
        waves = np.stack([np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)], 1)
        tables = {"time": waves, "free": np.array([[0.0], [1.0]]), "weekday": np.eye(7)}
        return [
            self._node("Gather", self._numbers(tables[name]), now[name], axis=0)
            for name in self.sample.calendar
        ]

    # -- encoder and heads ---------------------------------------------------------------------

    def _encoded(self, seen: str) -> str:
        """r [row, width], and the calendar for the heads."""
        self.calendar = self._calendar()
        signs = self._signs(self.calendar)
        states, start = [], 0
        for branch, lags in enumerate(self.sample.branches):
            steps = self._whole(list(range(start, start + len(lags))))
            start += len(lags)
            x = self._node("Gather", seen, steps, axis=1)
            x = self._node("Unsqueeze", self._node("Transpose", x, perm=[1, 0]), self._whole([2]))
            for sign in signs:  # the same at every step of the window
                flat = self._node("Unsqueeze", sign, self._whole([0]))
                again = self._node("Concat", *[flat] * len(lags), axis=0)
                x = self._node("Concat", x, again, axis=2)
            states.append(self._gru(x, branch))
        return self._node("Concat", *states, axis=1) if len(states) > 1 else states[0]

    def _gru(self, x: str, branch: int) -> str:
        """The final state [row, hidden] of a branch; ONNX orders the gates z, r, n."""
        parts = {
            key: self._gates(self.weights[f"encoder.gru.{branch}.{key}_l0"])
            for key in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        biases = np.concatenate([parts["bias_ih"], parts["bias_hh"]])
        arrays = (parts["weight_ih"], parts["weight_hh"], biases)
        last = self._name()
        self.nodes.append(
            self.onnx.helper.make_node(
                "GRU",
                [x, *(self._numbers(array[None]) for array in arrays)],
                ["", last],
                hidden_size=self.models.hidden,
                linear_before_reset=1,
            )
        )
        return self._node("Squeeze", last, self._whole([0]))

    @staticmethod
    def _gates(array: Floats32) -> Floats32:
        r, z, n = np.split(array, 3)
        return np.concatenate([z, r, n])

    def _heads(self, r: str) -> str:
        """The heads' outputs [row, H]."""
        network, weights = self.network, self.weights["decoder.weight"]  # [H, columns]
        reads = weights[:, : network.reads]
        if network.summed:
            reads = np.tile(reads, (1, network.width // network.reads))
        made = self._node("MatMul", r, self._numbers(reads.T))
        made = self._node("Add", made, self._numbers(self.weights["decoder.bias"][None]))
        for name, clock in self._clock_weights(network, weights).items():
            made = self._node("Add", made, self._from_calendar(name, clock))
        return made

    def _clock_weights(self, network: Network, weights: Floats32) -> dict[str, Floats32]:
        """The heads' weights of each kind of calendar column, [H, column]."""
        found, start = {}, network.reads
        slots = min(self.sample.period, MOST_SLOTS)
        for name in self.sample.calendar:
            width = 7 if name == "weekday" else slots
            found[name] = weights[:, start : start + width]
            start += width
        return found

    def _from_calendar(self, name: str, clock: Floats32) -> str:
        """What one kind of calendar column adds to the heads, [row, H]."""
        period = self.sample.period
        if name == "weekday":
            index = self.calendar["weekday"]
        else:
            index, slots = self.calendar["time"], clock.shape[1]
            clock = clock[:, np.arange(period) * slots // period]  # by phase
        # Entry [h, index] of a table, as one flat table: every head has its own part.
        parts = self._whole([[h * clock.shape[1] for h in range(len(clock))]])
        flat = self._node("Add", index, parts)
        added = self._node("Gather", self._numbers(clock.ravel()), flat, axis=0)
        if name != "free":
            return added
        day_off = self._node("Cast", self.calendar["free"], to=self.onnx.TensorProto.FLOAT)
        return self._node("Mul", added, day_off)

    # -- external inputs -----------------------------------------------------------------------

    def _from_inputs(self, inputs: InputWeights) -> str:
        """What external inputs add to the heads, [row, H]: `added_by_inputs`."""
        horizon, count = self.sample.horizon, len(inputs.names)
        self._input("inputs", np.float32, horizon, count, COLUMNS)
        mean, std, low, high = (
            self._numbers(scale[:, None]) for scale in inputs.scales[self.row].T
        )
        z = self._node("Div", self._node("Sub", "inputs", mean), std)
        unknown = self._node("Cast", self._node("IsNaN", z), to=self.onnx.TensorProto.FLOAT)
        some = self._node("ReduceMax", unknown, axes=[3])  # of an input at a step
        z = self._node("Min", self._node("Max", z, low), high)
        now = self._node("Gather", z, self._whole([0]), axis=3)
        before = self._node("Gather", z, self._whole(list(range(1, COLUMNS))), axis=3)
        columns = self._node("Concat", now, self._node("Sub", now, before), axis=3)
        missing = self._node("Cast", some, to=self.onnx.TensorProto.BOOL)
        known = self._node("Where", missing, self._number(0.0), columns)
        weights = inputs.heads[self.row].reshape(horizon, count, COLUMNS)
        added = self._node("Mul", known, self._numbers(weights))
        return self._node("ReduceSum", added, self._whole([2, 3]), keepdims=0)

    # -- building blocks -----------------------------------------------------------------------

    def _name(self) -> str:
        return f"n{len(self.nodes)}"

    def _node(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        name = name or self._name()
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def _constant(self, array: NDArray[Any]) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.array(array, order="C"), name))
        return name

    def _number(self, value: float) -> str:
        return self._constant(np.array([value], dtype=np.float32))

    def _numbers(self, array: NDArray[Any]) -> str:
        return self._constant(array.astype(np.float32))

    def _whole(self, values: int | Sequence[Any]) -> str:
        return self._constant(np.array(values, dtype=np.int64))

    def _input(self, name: str, kind: type, *more: int) -> None:
        helper = self.onnx.helper
        element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        self.inputs.append(helper.make_tensor_value_info(name, element, ["row", *more]))
