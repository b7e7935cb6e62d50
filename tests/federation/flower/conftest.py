"""What tests share that run Flower's apps in their own process."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The apps run in this process: they neither watch its parent nor keep its log."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("run_id", "node_id", "task_id"):  # Flower gives a process these at its start
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    monkeypatch.setattr("fuels.federation.flower.app.end_with_parent", lambda: None)
    log = logging.getLogger("fuels")
    before = log.handlers, log.propagate
    yield
    log.handlers, log.propagate = before
