"""States on disk: plain safetensors, checked against damage, mapped without harm to their file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fuels.errors import FuelsError
from fuels.storage.checkpoint import load_state, save_state


def test_damaged_states_are_refused(tmp_path: Path) -> None:
    """Whichever byte it is, of an array, of its name or of the facts."""
    path = tmp_path / "s"
    arrays = {"weights": np.arange(6, dtype=np.float32), "steps": np.array([1, 2])}
    save_state(path, arrays, {"round": 3})
    good = path.read_bytes()
    for at in (len(good) - 1, len(good) - 30, good.index(b"weights"), good.index(b": 3}") + 2):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        for mapped in (False, True):
            with pytest.raises(FuelsError, match="damaged, its content does not match its check"):
                load_state(path, mapped=mapped)
    save_file(arrays, path, {"facts": '{"round": 3}'})  # as before there was a checksum
    assert load_state(path)[1] == {"round": 3}


def test_states_are_plain_safetensors(tmp_path: Path) -> None:
    """Written without a copy of the arrays, and readable by the package that owns the format."""
    arrays = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "turned": np.arange(12.0).reshape(3, 4).T,
        "flags": np.array([True, False]),
        "none": np.zeros((0, 4), np.float32),
        "one": np.array(3.5),
        "bytes": np.frombuffer(b"abc", np.uint8),
    }
    save_state(tmp_path / "s", arrays, {"round": 3})
    official = load_file(tmp_path / "s")
    for mapped in (False, True):
        found, facts = load_state(tmp_path / "s", mapped=mapped)
        assert facts == {"round": 3}
        assert found.keys() == official.keys() == arrays.keys()
        for name, array in official.items():
            np.testing.assert_array_equal(array, arrays[name])
            np.testing.assert_array_equal(found[name], arrays[name])
            assert array.dtype == found[name].dtype == arrays[name].dtype


def test_writing_to_a_mapped_state_leaves_its_file_alone(tmp_path: Path) -> None:
    save_state(tmp_path / "s", {"x": np.zeros((3, 2), np.float32)}, {})
    found, _ = load_state(tmp_path / "s", mapped=True)
    found["x"][1] = 7.0
    assert found["x"].sum() == 14
    assert load_state(tmp_path / "s")[0]["x"].sum() == 0
    save_state(tmp_path / "s", {"x": np.ones((3, 2), np.float32)}, {})  # replaced while it is open
    assert found["x"].sum() == 14
