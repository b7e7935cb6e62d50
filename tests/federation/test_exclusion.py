"""A client whose values are refused again and again is excluded; nobody else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fuels.federation.refusals import Refusals
from fuels.federation.transport import Reply
from fuels.methods.messages import Upload
from fuels.runs.build import Job
from helpers.small_federation import job_of, small_panel


def poisoned(limit: int, rounds: int = 4) -> tuple[Job, list[tuple[str, ...]]]:
    """A federation whose client c1 sends NaN; also returns who was asked in each round."""
    job = job_of("fedavg", small_panel(), rounds, defence={"refusals": limit})
    original, asked = job.loop.transport.train, []

    def train(number: int, clients: Any, download: Any) -> Any:
        asked.append(tuple(clients))
        [reply], failures = original(number, clients, download)
        if "c1" in clients:
            reply.upload.arrays["encoder"][clients.index("c1")] = np.nan
        return [reply], failures

    job.loop.transport.train = train  # type: ignore[method-assign]
    return job, asked


def test_beyond_the_limit_a_client_is_not_asked_again() -> None:
    job, asked = poisoned(limit=2)
    first, second, third = (job.loop.step() for _ in range(3))
    assert "excluded" not in first.failures[0].reason
    assert "excluded from the run after 2 refusals" in second.failures[0].reason
    assert third.failures == [] and third.clients == 2
    assert [len(clients) for clients in asked] == [3, 3, 2]
    assert job.loop.refused.excluded == {"c1"}


def test_without_a_limit_nobody_is_excluded() -> None:
    job, asked = poisoned(limit=0)
    job.loop.run()
    assert [len(clients) for clients in asked] == [3] * 4


def test_an_exclusion_survives_a_restart() -> None:
    job, _ = poisoned(limit=2)
    job.loop.step()
    job.loop.step()
    later, asked = poisoned(limit=2)
    later.loop.load(*job.loop.state())
    later.loop.step()
    assert asked == [("c0", "c2")]


def test_nobody_can_have_another_sites_client_excluded() -> None:
    """A site names a client it was not asked for, with false values."""
    job = job_of("fedavg", small_panel(), 2, defence={"refusals": 1})
    sizes = job.method.facts.network.sizes
    arrays = {name: np.full((1, size), np.nan, np.float32) for name, size in sizes.items()}
    forged = Reply("other", Upload(("c0",), arrays, np.array([5])), None, asked=("z",))
    accepted, failures = job.loop._accept(forged, 1)
    assert accepted is None and "not asked" in failures[0].reason
    assert job.loop.refused.excluded == set()


def test_messages_refused_as_a_whole_do_not_exclude() -> None:
    refused = Refusals(limit=1)
    refused.add("site", 1, "upload", "stale: it is of round 1")
    assert refused.excluded == set() and refused.total == 1


@pytest.mark.filterwarnings("ignore")
def test_a_run_of_excluded_clients_ends_in_words() -> None:
    from fuels.errors import FuelsError

    job, _ = poisoned(limit=1)
    job.loop.refused.strikes = dict.fromkeys(job.loop.clients, 1)
    with pytest.raises(FuelsError, match="every client is excluded"):
        job.loop.step()
