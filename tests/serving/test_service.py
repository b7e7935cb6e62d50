"""The HTTP interface: what it answers and refuses, concurrent posts, a full disk, other writers."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from starlette.testclient import TestClient

from fuels.forecasting.folder import LEARNED
from fuels.forecasting.issued import read_issued
from fuels.forecasting.saved_run import SavedRun
from fuels.forecasting.table import long_frame
from fuels.serving.app import create_app
from fuels.serving.live import LiveRun
from fuels.serving.posted import panel_from_csv
from helpers.live import NOW, as_json, copied, follow, hours, whole_panel

JSON, CSV = {"content-type": "application/json"}, {"content-type": "text/csv"}
VALUES = "live/values.safetensors"
Serve = Callable[..., TestClient]


@pytest.fixture
def folder(small_run: Path, tmp_path: Path) -> Path:
    return copied(small_run, tmp_path / "run")


@pytest.fixture
def serve(folder: Path) -> Iterator[Serve]:
    """Starts the service in this process."""
    with ExitStack() as stack:

        def start(
            token: str | None = None, most_bytes: int = 100_000, horizon: int = 2
        ) -> TestClient:
            live = LiveRun(folder, horizon, lambda text: None)
            worker = stack.enter_context(ThreadPoolExecutor(1))
            app = create_app(live, worker, token=token, most_bytes=most_bytes)
            return TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)

        yield start


def post(client: TestClient, body: str | bytes, headers: dict[str, str] = JSON) -> tuple[int, Any]:
    answer = client.post("/values", content=body, headers=headers)
    return answer.status_code, answer.json()


def test_values_in_and_forecasts_out(serve: Serve, folder: Path, tmp_path: Path) -> None:
    client, panel = serve(), whole_panel()
    assert client.get("/health").json()["status"] == "failing"  # there is none yet
    before = client.get("/forecasts").json()
    assert before["newest_value"] == "2013-11-21T23:00:00+01:00"
    code, answer = post(client, as_json(hours(panel, NOW, NOW + 1)))
    assert (code, answer) == (200, {"values": 6, "clients": 6, "notes": []})
    code, answer = post(client, long_frame(hours(panel, NOW + 1, NOW + 2)).write_csv(), CSV)
    assert code == 200, answer
    found = client.get("/forecasts").json()
    assert found["newest_value"] == "2013-11-22T01:00:00+01:00" and found["problem"] == ""
    other = copied(folder.parent / "run", tmp_path / "other")
    made, _ = SavedRun.load(other).forecast(None, 2)
    rows = {row["client"]: row["steps"] for row in found["forecasts"]}
    assert made.lower is not None and made.upper is not None
    for i, name in enumerate(made.ids):
        steps = rows[name]
        assert [step["forecast"] for step in steps] == made.values[i].tolist()
        bounds = [steps[1]["intervals"]["95"], [made.lower[1, i, 1], made.upper[1, i, 1]]]
        np.testing.assert_array_equal(*bounds)
    one = client.get("/forecasts/cell-0003?horizon=1&level=80").json()["forecasts"]
    assert len(one) == 1 and list(one[0]["steps"][0]["intervals"]) == ["80"]
    assert client.get("/health").json() == {
        "status": "ok",
        "newest_value": found["newest_value"],
        "problem": "",
    }
    issued = read_issued(folder)
    assert issued is not None and issued.horizon == 2
    assert client.get("/monitor").json()["forecasts"]["steps_forecast"] >= 1
    text = client.get("/metrics").text
    assert "fuels_serve_posts_total 2" in text and 'fuels_drift{what="errors"} 0' in text
    assert client.get("/openapi.json").json()["paths"].keys() >= {"/values", "/forecasts"}


@pytest.mark.parametrize(
    ("body", "headers", "code", "said"),
    [
        ("{}", JSON, 400, "posted values: values: field required"),
        ("[", JSON, 400, "invalid JSON"),
        ('{"values": []}', JSON, 400, "at least 1 item"),
        ('{"values": [{"client": "a", "time": "x", "value": 1}]}', JSON, 400, "'x' is not a time"),
        (
            '{"values": [{"client": "a", "time": "2013-11-22T00:00", "value": "1"}]}',
            JSON,
            400,
            "values.0.value: input should be a valid number",
        ),
        (
            '{"values": [{"client": "a", "time": "2013-11-22T00:00", "value": NaN}]}',
            JSON,
            400,
            "values",
        ),
        (
            '{"values": [{"client": "cell-0001", "time": "2043-11-22T00:00", "value": 1}]}',
            JSON,
            400,
            "is a date wrong?",
        ),
        (
            '{"values": [{"client": "cell-0001", "time": "2013-11-22T00:17", "value": 1}]}',
            JSON,
            400,
            "its times",
        ),
        ("a,b\n1,2\n", CSV, 400, "data.time_column in config.toml"),
        ("", CSV, 400, "posted values.csv: the file is empty"),
        ("\x00\x01", CSV, 400, "posted values"),
        ("x", {"content-type": "text/plain"}, 415, "the Content-Type must be"),
        ("x" * 100_001, CSV, 413, "the body is larger than 0.1 MB"),
    ],
)
def test_a_wrong_post_changes_nothing(
    body: str, headers: dict[str, str], code: int, said: str, serve: Serve, folder: Path
) -> None:
    client = serve()
    before = client.get("/forecasts").content
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found, answer = post(client, body, headers)
    assert found == code and said in answer["error"] and "\n" not in answer["error"]
    assert client.get("/forecasts").content == before
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files
    assert "fuels_serve_posts_refused_total 1" in client.get("/metrics").text


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("/forecasts/nobody", 404, "no forecast for client nobody: the run has 6 clients"),
        ("/forecasts?horizon=3", 400, "horizon 3 is not served: choose 1 to 2"),
        ("/forecasts?horizon=0", 400, "choose 1 to 2"),
        ("/forecasts?horizon=one", 422, "query.horizon: input should be a valid integer"),
        ("/forecasts?level=50", 400, "level 50 is not served: the run has 80, 95"),
        ("/nothing", 404, "no such page: see /openapi.json"),
    ],
)
def test_a_wrong_question(path: str, code: int, said: str, serve: Serve) -> None:
    answer = serve().get(path)
    assert answer.status_code == code and said in answer.json()["error"]


def test_only_with_the_token(serve: Serve) -> None:
    token = "0123456789abcdef"
    client = serve(token=token)
    for headers in ({}, {"authorization": token}, {"authorization": f"Bearer {token}x"}):
        for path in ("/forecasts", "/metrics", "/openapi.json", "/monitor"):
            answer = client.get(path, headers=headers)
            assert answer.status_code == 401 and "token" in answer.json()["error"], path
        assert post(client, "{}", JSON | headers)[0] == 401
    right = {"authorization": f"Bearer {token}", "host": "forecasts.example.org"}
    assert client.get("/forecasts", headers=right).status_code == 200
    shown = client.get("/health")  # how it is, and nothing about the data
    assert shown.status_code == 200
    assert shown.json() == {"status": "ok", "newest_value": None, "problem": ""}
    assert client.get("/health", headers=right).json()["newest_value"] is not None


def test_without_a_token_only_as_this_machine(serve: Serve) -> None:
    client = serve()
    for host, code in (("evil.example", 403), ("localhost:8000", 200), ("[::1]:8000", 200)):
        assert client.get("/forecasts", headers={"host": host}).status_code == code


def test_concurrent_posts_learn_what_one_call_would(
    serve: Serve, folder: Path, small_run: Path, tmp_path: Path
) -> None:
    """Each client posts its own hours, all at once, with late and repeated ones."""
    client, panel, count = serve(horizon=1), whole_panel(), 4
    client.get("/forecasts")

    def give(name: str) -> list[int]:
        order = [0, 2, 1, 2, 3]  # late and repeated
        parts = [hours(panel, NOW + hour, NOW + hour + 1).select([name]) for hour in order]
        return [post(client, as_json(part))[0] for part in parts]

    with ThreadPoolExecutor(len(panel.ids)) as pool:
        codes = list(pool.map(give, panel.ids))
    assert codes == [[200] * 5] * len(panel.ids)
    found = client.get("/forecasts").json()
    other = copied(small_run, tmp_path / "other")
    made, _ = SavedRun.load(other).forecast(hours(panel, NOW, NOW + count))
    assert [row["steps"][0]["forecast"] for row in found["forecasts"]] == made.values[:, 0].tolist()
    for name in (LEARNED, VALUES):
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name


def test_late_implausible_and_unknown_values_are_reported(serve: Serve) -> None:
    client, panel = serve(), whole_panel()
    new = hours(panel, NOW, NOW + 2)
    new.values[0, 1] = np.nan
    late = hours(panel, NOW, NOW + 1).select(["cell-0002"])
    assert post(client, as_json(new).replace("NaN", "null"))[0] == 200
    _, answer = post(client, as_json(late))
    assert any("1 late value of 1 client (cell-0002)" in note for note in answer["notes"])
    wild = hours(panel, NOW + 2, NOW + 3)
    wild.values[0, 0] = 1e6
    _, answer = post(client, as_json(wild))
    assert any("implausible" in note for note in answer["notes"])
    _, answer = post(client, '{"values": [{"client": 7, "time": "2013-11-22T03:00", "value": 1}]}')
    assert "no model for 1 client (7)" in answer["notes"]


def test_a_full_disk_is_reported_and_nothing_is_accepted(
    serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, panel = serve(), whole_panel()
    client.get("/forecasts")
    body = as_json(hours(panel, NOW, NOW + 1))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("fuels.storage.panels.replace_state", full)
        code, answer = post(client, body)
        assert code == 507 and "No space left" in answer["error"]
        assert "give the new values again later" in answer["error"]
    assert client.get("/forecasts").json()["newest_value"] == "2013-11-21T23:00:00+01:00"
    assert post(client, body)[0] == 200
    assert client.get("/forecasts").json()["newest_value"] == "2013-11-22T00:00:00+01:00"
    with monkeypatch.context() as patched:  # what is learned cannot be stored: it is learned later
        patched.setattr("fuels.forecasting.saved_run.replace_state", full)
        assert post(client, as_json(hours(panel, NOW + 1, NOW + 2)))[0] == 200
        found = client.get("/forecasts").json()
        assert found["newest_value"] == "2013-11-22T01:00:00+01:00"
        assert "No space left" in found["problem"] and client.get("/health").status_code == 503


def test_another_process_may_use_the_same_run(serve: Serve, folder: Path) -> None:
    client, panel = serve(), whole_panel()
    assert client.get("/forecasts").status_code == 200
    follow(folder, panel, NOW, NOW + 2)  # as `fuels forecast` does
    assert client.get("/forecasts").json()["newest_value"] == "2013-11-22T01:00:00+01:00"
    assert json.loads(client.get("/health").text)["status"] == "ok"
    assert post(client, as_json(hours(panel, NOW + 2, NOW + 3)))[0] == 200
    made, _ = SavedRun.load(folder).forecast(None, 1)
    found = client.get("/forecasts?horizon=1").json()["forecasts"]
    assert [row["steps"][0]["forecast"] for row in found] == made.values[:, 0].tolist()


def test_external_inputs_come_with_a_csv_file(folder: Path) -> None:
    """Also those of steps ahead, whose values are empty."""
    live, panel = LiveRun(folder, 1, lambda text: None), whole_panel()
    data = replace(live.settings.data, inputs=("event",))
    settings = replace(live.settings, data=data)
    table = long_frame(hours(panel, NOW, NOW + 3)).with_columns(event=pl.lit(1.0))
    later = pl.col("ds") > table["ds"].min()
    csv = table.with_columns(y=pl.when(~later).then(pl.col("y"))).write_csv().encode()
    taken = live.take(panel_from_csv(csv, settings, live.models))
    assert (taken.values, taken.clients) == (6, 6)
    known = SavedRun.load(folder).memory().panel
    assert known.length == NOW + 1 and list(known.inputs) == ["event"]
    assert live.take(panel_from_csv(csv, settings, live.models)).notes == []  # once more
