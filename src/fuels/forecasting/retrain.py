"""Training again, with the settings of a run, on everything it remembers and newer values."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from fuels.config import Data, Settings
from fuels.data.files import make_folder
from fuels.data.inputs import Adding
from fuels.data.joining import describe_gap
from fuels.data.panel import Panel
from fuels.data.windows import split_periods
from fuels.data.writers import write_inputs, write_panel
from fuels.errors import FuelsError
from fuels.forecasting.saved_run import SavedRun
from fuels.storage.run_folder import DATA, INPUTS, RunFolder, free_folder


def remembered(
    saved: SavedRun, new: Panel | None, inputs: Adding = None
) -> tuple[Panel, list[str]]:
    """All values that a run remembers and those of `new`, and notes for the user.

    `inputs` adds external inputs to a panel.
    """
    new = None if new is None else saved.useful(new)
    memory = saved.memory(new)
    memory.take_inputs(inputs)
    notes = saved.notes
    if new is not None:
        notes += describe_gap(memory.panel, new)
        merged = memory.add(new)
        if revised := int(merged.revised.sum()):
            notes.append(
                f"{new.name}: {revised} values differ from earlier ones; the new ones are used"
            )
    panel = memory.panel
    of = f"{panel.length} steps of {len(panel.ids)} clients {panel.span}"
    dropped = ", without the values that the run has dropped" if memory.past else ""
    return panel, [*notes, f"training on {of}{dropped}"]


def grown_split(settings: Settings, panel: Panel) -> tuple[str, str]:
    """The split of a run with a training part that takes all additional periods, and a note."""
    split, period = settings.windows.split, settings.windows.period
    if not split:
        return "", "split 40:11:11 in proportion, as in the run"
    try:
        _, val, test = (int(part) for part in split.split("/"))
    except ValueError:
        split_periods(split, 0)  # says what is wrong
        raise
    periods = -(-(panel.length + int(panel.phases(period)[0])) // period)
    if periods - val - test < 1:
        raise FuelsError(
            f"{panel.name}: {periods} periods are too few for windows.split {split}: give older"
            " values as well"
        )
    grown = f"{periods - val - test}/{val}/{test}"
    return grown, f"split {grown} in place of {split}: validation and test are as long as before"


def prepare(saved: SavedRun, panel: Panel, out: Path) -> tuple[Settings, str]:
    """Write the data of the new run to its folder; returns its settings and a note."""
    split, note = grown_split(saved.settings, panel)
    RunFolder(out).refuse_used()
    make_folder(out)
    file = out / DATA
    write_panel(panel, file, overwrite=True)
    # The file is a panel: how the data of the run were read no longer matters.
    data = Data(source=str(file.resolve()), coordinates=saved.settings.data.coordinates)
    if panel.inputs:
        write_inputs(panel, out / INPUTS)
        names = tuple(name for name in saved.settings.data.inputs if name in panel.inputs)
        data = replace(data, inputs=names, inputs_file=str((out / INPUTS).resolve()))
    windows = replace(saved.settings.windows, split=split)
    return replace(saved.settings, data=data, windows=windows), note


def next_folder(run: Path) -> Path:
    """A new folder next to a run's: first-001 for first, first-002 for first-001."""
    run = run if run.is_dir() else run.parent
    return free_folder(run.parent, re.sub(r"-\d{3}$", "", run.resolve().name))
