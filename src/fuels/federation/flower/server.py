"""The server's side of a run: open its folder, admit the sites, run the rounds.

An interrupted run continues after its last finished round: the checkpoint holds the method's server
state (for FUELS the prototypes and their divergences), the members and the counters. Random numbers
derive from (seed, round, client), so no generator needs saving.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Sequence
from time import sleep
from typing import IO, Any

from fuels.config import Engine, Settings
from fuels.data.files import writing
from fuels.errors import FuelsError
from fuels.federation.flower.flower_app import write_run_config
from fuels.federation.flower.folders import ServerFolder, log
from fuels.federation.flower.inbox import Network, Time
from fuels.federation.flower.live import Live
from fuels.federation.flower.masked_server import MaskedTransport, at_the_server
from fuels.federation.flower.newcomers import hand_over, keep_end
from fuels.federation.flower.private_sum_server import PrivateRunSums
from fuels.federation.flower.records import Figures, audit
from fuels.federation.flower.runs import Current
from fuels.federation.flower.sum_server import RunSums
from fuels.federation.flower.transport import FlowerTransport
from fuels.federation.loop import Loop, Round
from fuels.federation.refusals import Refusals
from fuels.methods.messages import Download
from fuels.report.federation import write_federation_report
from fuels.runs.build import method_for
from fuels.runs.settings import ResolvedSettings
from fuels.storage.checkpoint import save_state, unprefixed
from fuels.storage.run_folder import RunFolder
from fuels.version import __version__


class StoppedError(FuelsError):
    """An operator stopped the run; it can be resumed."""


def refuse(folder: ServerFolder, run: str, reason: str) -> None:
    """Mark the current run as failed because its settings are refused: it is not resumed."""
    current = Current(folder)
    if current.read().get("run") == run:
        current.write(state="failed", reason=reason)


def serve(
    network: Network,
    folder: ServerFolder,
    run: str,
    settings: ResolvedSettings,
    time: Time | None = None,
    flower_run: str = "",
) -> None:
    """Start or resume the run of this name and continue until its last round.

    `flower_run` is Flower's number for it, by which it can be stopped. It is recorded here, because
    only this process knows it if the run was submitted with `flwr run`, and only once this run
    holds the lock, because another one may be in progress.
    """
    folder.state.mkdir(parents=True, exist_ok=True)
    current = Current(folder)
    with folder.busy.open("w") as lock:
        _hold(lock, folder)
        facts = {"run": run, "flower_run": flower_run, "reason": "", "unconfirmed": []}
        current.write(state="running", **facts)
        book = audit(folder)
        book.add("run begins", run=run, method=settings.method)
        try:
            time = _until_stopped(time or Time(), current)
            unconfirmed = _serve(network, folder, run, settings, time)
        except StoppedError:
            book.add("run stopped", run=run)
            raise
        except FuelsError as error:
            current.write(state="failed", reason=str(error))
            book.add("run failed", run=run, reason=str(error))
            raise
        book.add("run finished", run=run, unconfirmed=unconfirmed)
        current.write(state="finished", unconfirmed=unconfirmed)


def serve_live(
    network: Network,
    folder: ServerFolder,
    run: str,
    settings: ResolvedSettings,
    time: Time | None = None,
    flower_run: str = "",
) -> None:
    """Start or resume the live series of a finished run and continue until it is stopped."""
    current, book = Current(folder), audit(folder)
    with folder.busy.open("w") as lock:
        _hold(lock, folder)
        current.write(state="running", flower_run=flower_run, reason="")
        book.add("live series begins", run=run)
        try:
            time = _until_stopped(time or Time(), current)
            least = settings.sharing.min_clients
            Live(network, folder, run, min_clients=least, time=time).serve()
        except StoppedError:
            book.add("live series stopped", run=run)
            raise
        except FuelsError as error:
            current.write(state="failed", reason=str(error))
            book.add("live series failed", run=run, reason=str(error))
            raise


def _until_stopped(time: Time, current: Current) -> Time:
    """A clock that raises when the run is stopped; Flower would let it run for half a minute."""

    def pause(seconds: float) -> None:
        time.sleep(seconds)
        if current.read()["state"] == "stopped":
            raise StoppedError("the run was stopped")

    return Time(time.clock, pause)


def _hold(lock: IO[str], folder: ServerFolder) -> None:
    """Take the lock of the process that runs the rounds; `is_busy` may hold it for a moment."""
    for _ in range(20):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            sleep(0.25)
    raise FuelsError(f"{folder.path}: another run is in progress")


def _serve(
    network: Network, folder: ServerFolder, run: str, settings: ResolvedSettings, time: Time
) -> list[str]:
    """Train to the end; returns the sites that did not confirm that they saved their models."""
    config = folder.config
    path = folder.runs / run
    if not path.exists():  # submitted by Flower's own command: needed to resume it
        RunFolder(path).begin(settings, Engine())
        write_run_config(path / "flower.toml", run, settings)
    store = RunFolder(path)
    if store.finished and not store.checkpoint.exists():
        log.info("run %s is finished", run)
        hand_over(network, folder, run, time)
        return []
    restored, refused = store.restore(), Refusals(settings.defence.refusals)
    book = audit(folder)
    refused.note = lambda events: book.add_all([{**each, "run": run} for each in events])
    rounds = settings.training.rounds
    if settings.privacy.masked:
        transport: FlowerTransport = MaskedTransport(
            network, run, folder, settings, time, refused, book
        )
    else:
        transport = FlowerTransport(network, run, config.rules, rounds, time, refused)
    if restored is None:
        transport.join(set(config.sites))
    else:
        transport.load(unprefixed("transport", restored[0]))
        log.info("run %s continues after round %d", run, restored[1]["round"])
    method = transport.use(method_for(at_the_server(settings), transport.members.train_periods))
    loop = Loop(method, transport, settings.training, settings.seed, refused, transport.reachable)
    if restored is not None:
        loop.load(*restored)
        if not loop.finished:
            transport.rejoin(loop.round + 1)
    else:  # from now on a restart knows which sites joined, even if round 1 never ends
        save_state(store.checkpoint, *loop.state())
    kind = PrivateRunSums if settings.privacy.epsilon else RunSums
    sums = kind(folder, run, settings, transport, book)
    if loop.round == 0:
        sums.exchange()
    transport.requests.extra["finish"] = sums.message()
    loop.run([store, _Log(), Figures(folder, run, loop, transport)], saver=store)
    # Only members: a site that announces its clients from now on has nothing to write.
    sites = {site: len(transport.members.of(site)) for site in sorted(transport.members.sites)}
    waiting = set(sites)
    if store.finished:  # earlier, except that some sites did not confirm
        before = json.loads(store.summary.read_text(encoding="utf-8"))
        waiting &= set(before["unconfirmed"])
        refused.load({**refused.state(), "refused": before["refused"]})
        transport.count(before["counters"])
    # Personal models are complete at the sites; only an aggregated model is sent at the end.
    own = not method.evaluate_after_aggregation
    download = Download() if own else loop.final_download()
    best = 0 if loop.best_download is None else loop.best_round
    keep_end(path, loop.round, download, best, sums.message())
    waiting &= transport.allowed()
    unconfirmed = sorted(transport.finish(loop.round, waiting, download, best))
    save_state(store.server, loop.server.state(), {"clients": list(loop.clients)})
    summary = _summary(loop, transport, settings) | sums.summary()
    if settings.privacy.masked:
        summary["masked"] = {"rounds": loop.round}
    summary |= {"sites": sites, "unconfirmed": unconfirmed}
    write_federation_report(path, summary)
    if not unconfirmed:
        store.finish(summary)
        return []
    # The checkpoint stays until all sites have confirmed: a resumed run asks the others again.
    with writing(store.summary) as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    log.warning("%s", undelivered(unconfirmed, folder))
    return unconfirmed


def undelivered(sites: Sequence[str], folder: ServerFolder) -> str:
    """The message about sites that did not confirm the end of a run."""
    verb = "has" if len(sites) == 1 else "have"
    return (
        f"{', '.join(sites)} {verb} not confirmed that the models were saved: ask again with fuels"
        f" federation run {folder.path} --resume, or remove sites that will not return from"
        " server.toml"
    )


def _summary(loop: Loop, transport: FlowerTransport, settings: Settings) -> dict[str, Any]:
    return {
        "method": settings.method,
        "version": __version__,
        "rounds": loop.round,
        "best_round": loop.best_round,
        "best_val_mse": loop.best_score if loop.best_round else None,
        "counters": transport.requests.counters | {"refused": loop.refused.total},
        "refused": loop.refused.counts,
        "excluded": sorted(loop.refused.excluded),
        "excluded_sites": transport.exclusion.reasons,
        "unused_uploads": loop.left_out,
        "totals": loop.totals,
    }


class _Log:
    """One line per round; failures and refusals are logged as they happen."""

    def on_round(self, done: Round) -> None:
        log.info("round %d of %d: %d clients", done.number, done.of, done.clients)
