"""The worker of a site: reads a request, checks it, trains, replies.

Requests arrive through a socket in the site's folder, from the dispatcher. This process stays
loaded, with PyTorch, the compiled kernels and the last job with its data, while nothing the job was
built from changes. A SuperNode of Flower's own without a worker computes replies itself.

A process may be killed at any moment, so everything that matters is in the site's folder: models,
optimiser state, W_n, the round, and the reply to it, in one file that is replaced as a whole. A
request for a round that was already trained gets the same reply again, and nothing is trained
twice. If it names other clients, because the server has drawn again, those are trained. One process
at a time works on a run: others wait for its lock, which the system releases even if the process is
killed.

When training is over, a site has the same files as the folder of a run on one machine, so that
`fuels forecast` works on it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from fuels.config import Engine, Settings
from fuels.data.sources import find_files
from fuels.errors import FuelsError
from fuels.experts.run_sums import ReceivedSums
from fuels.federation.codec import Envelope, decode, encode
from fuels.federation.flower import live_messages
from fuels.federation.flower.child_process import end_with_parent
from fuels.federation.flower.flower_app import settings_of
from fuels.federation.flower.folders import (
    RefusalError,
    SiteFolder,
    log,
    set_up_log,
)
from fuels.federation.flower.live_site import LiveRuns, answer_live
from fuels.federation.flower.masked_site import CHECK, MaskedRound
from fuels.federation.flower.messages import (
    check_consent,
    check_declaration,
    read_best_round,
    read_request,
    reply,
    without_figures,
)
from fuels.federation.flower.outbox import check_upload, keep_copy
from fuels.federation.flower.private_sum_site import answer_sums, sums_received
from fuels.federation.flower.progress import Progress
from fuels.federation.flower.protection import (
    Secrets,
    check_protection,
    digest_of,
    read_secrets,
)
from fuels.federation.flower.records import SiteRecords
from fuels.federation.guard import download_refusal
from fuels.methods.messages import Download
from fuels.report.run.report import write_run_report
from fuels.runs.build import Job, build, train_periods
from fuels.runs.run import essentials, evaluate_job, kept_models, write_evaluation, write_models
from fuels.storage.config_file import write_toml
from fuels.storage.run_folder import RunFolder

RUN = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class JobCache:
    """The last job, reused while its settings, engine, secret and data files are unchanged."""

    def __init__(self) -> None:
        self.key: tuple[Any, ...] | None = None
        self.job: Job | None = None
        self.clean = False  # its clients are as built: no state was loaded, nothing was trained
        self.live = LiveRuns()

    def get(self, settings: Settings, engine: Engine, secrets: Secrets, progress: Progress) -> Job:
        """A job at the point that `progress` has reached."""
        data = settings.data
        # Taken before the files are read: a change in between invalidates the job next time.
        read = data.source, data.coordinates, data.inputs_file
        key = settings, engine, secrets, *map(stamps, read)
        if self.job is None or key != self.key or not (progress.facts or self.clean):
            self.close()
            self.job = build(
                settings, engine, secret=secrets.noise, shared=secrets.shared, federated=True
            )
            self.key, self.clean = key, True
        if progress.facts:
            self.clean = False
            progress.restore(self.job)
        return self.job

    def close(self) -> None:
        if self.job is not None:
            self.job.sites.close()
        self.job = None


def stamps(source: str) -> list[tuple[str, int, int]]:
    """Name, time of change and size of every file of a data source."""
    try:
        named = find_files(source) if source else []
    except FuelsError:  # missing, or synthetic
        named = []
    files = [f for path in named for f in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    found = [(file, file.stat()) for file in files]
    return [(str(file), stat.st_mtime_ns, stat.st_size) for file, stat in found]


class Worker:
    """Answers requests of one run at one site."""

    def __init__(
        self,
        folder: SiteFolder,
        settings: Settings,
        data: str = "",
        jobs: JobCache | None = None,
    ) -> None:
        self.folder, self.config = folder, folder.config_for(data)
        try:
            self.settings = replace(settings, data=self.config.data)
        except FuelsError as error:  # such as a run with a guarantee at a site that drops values
            raise RefusalError(f"the data section of its site.toml does not fit: {error}") from None
        self.jobs, self.records = jobs or JobCache(), SiteRecords(folder)

    def answer(self, request: bytes, *, made: float, expires: float = float("inf")) -> bytes:
        """The reply to a request; a FuelsError says why there is none.

        `made` and `expires`, in the server's seconds since 1970: an expired request is refused, and
        so is a request to train that is older than another that was already trained.
        """
        try:
            envelope = decode(request, self.config.consent.largest_message_mb * 2**20)
        except FuelsError as error:  # it quotes only the server's message
            raise RefusalError(f"the server's message is refused: {error}") from None
        if envelope.site != self.config.name:
            raise RefusalError(f"the message is for another site, {envelope.site!r}")
        if not RUN.fullmatch(envelope.run):
            raise RefusalError("the name of the run is not acceptable")
        self.records.consent(self.config.consent)
        if envelope.kind in live_messages.KINDS:
            parties = self.folder, self.config, self.records, self.jobs.live
            return answer_live(*parties, envelope, len(request), expires)
        check_consent(self.settings.method, self.config)
        run = self.folder.runs / envelope.run
        run.mkdir(parents=True, exist_ok=True)
        with exclusive(run / "lock"):
            if time.time() > expires:
                raise RefusalError(f"the request of round {envelope.round} came too late")
            answer = self._handle(envelope, Progress(run / "state.safetensors"), made)
            # As configured now, even if computed before; no guarantee covers error figures.
            if not self.config.consent.metrics or self.settings.privacy.epsilon:
                answer = without_figures(answer)
            content = encode(answer)
            if self.config.consent.keep_copies:
                keep_copy(content, run / "sent", f"{envelope.kind}-{envelope.round:05d}")
            self.records.sent(envelope.run, envelope.kind, envelope.round, content, len(request))
            return content

    def _handle(self, envelope: Envelope, progress: Progress, made: float) -> Envelope:
        secrets = read_secrets(self.folder, self.settings)
        job = self.jobs.get(self.settings, self.config.engine, secrets, progress)
        check_declaration(job.method, self.config.consent, envelope.round)
        check_protection(job, self.config.consent, envelope.round)
        try:
            asked, download = read_request(envelope)
            best_round = read_best_round(envelope)
        except FuelsError as error:
            raise RefusalError(f"the server's message is refused: {error}") from None
        everyone = job.dataset.ids
        unknown = sorted(set(asked) - set(everyone))
        if unknown:
            raise RefusalError(
                f"the server asks for {unknown[0]!r}, which is not a client of this site"
            )
        expected = asked if envelope.kind in ("train", CHECK) else everyone
        reason = download_refusal(download, job.method.downloads(), expected)
        if reason:
            raise RefusalError(
                f"the server's message of round {envelope.round} is refused: {reason}"
            )
        if envelope.kind == "sum":
            return answer_sums(self.folder, self.config, job, envelope, self.records)
        if envelope.kind == "hello":
            facts = {"clients": list(everyone), "train_periods": train_periods(job.dataset)}
            if digest := digest_of(secrets.shared, envelope.run):
                facts |= {"secret": digest}
            return replace(reply(envelope, None, None), facts=facts)
        self.jobs.clean = False
        if envelope.kind in ("train", CHECK):
            return self._train(job, envelope, asked, download, progress, made)
        if envelope.kind == "evaluate":
            return self._evaluate(job, envelope, download, progress)
        path = progress.path.parent
        sums = sums_received(self.folder, self.config, job, envelope)
        # A newcomer's personal models are as they were drawn.
        untrained = () if progress.facts else everyone
        parties = self.config.engine, best_round, sums, untrained
        write_results(job, path, download, envelope.round, *parties)
        return reply(envelope, None, None)

    def _train(
        self,
        job: Job,
        envelope: Envelope,
        asked: tuple[str, ...],
        download: Download,
        progress: Progress,
        made: float,
    ) -> Envelope:
        if not asked:
            raise RefusalError(f"round {envelope.round}: the server asked for no clients")
        if job.settings.privacy.masked or envelope.kind == CHECK:
            masked = MaskedRound(self.folder, self.config, job, envelope)
            return masked.answer(asked, download, progress, made, self.records)
        if progress.round == envelope.round and progress.trained.intersection(asked):
            log.info("round %d was already trained: repeating the reply", envelope.round)
            return decode(progress.answer, len(progress.answer))
        progress.need_newer(made, envelope.round)
        log.info("run %s, round %d: %d clients train", envelope.run, envelope.round, len(asked))
        upload, report = job.site.train(envelope.round, asked, download)
        good, withheld = check_upload(job.method, envelope.round, upload, asked)
        answer = reply(envelope, good, report.of(good.clients))
        if withheld:
            answer = replace(answer, facts={**answer.facts, "withheld": withheld})
        progress.save(job, envelope.round, encode(answer), made)
        return answer

    def _evaluate(
        self, job: Job, envelope: Envelope, download: Download, progress: Progress
    ) -> Envelope:
        report = job.site.evaluate(envelope.round, download)
        if job.site.best:  # evaluation may have found better models
            progress.save(job, progress.round, progress.answer, progress.made)
        return reply(envelope, None, report)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Wait for and hold a lock that the system releases when this process ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_results(
    job: Job,
    path: Path,
    download: Download,
    rounds: int,
    engine: Engine,
    best_round: int = 0,
    sums: ReceivedSums | None = None,
    untrained: Collection[str] = (),
) -> None:
    """The run's folder: models, forecasts, mixture, weights, config.toml, report, summary.json.

    `best_round`: the round of the model in `download`, if the server kept its best one.
    `sums`: what the experts use of other sites. `untrained`: clients that never trained.
    """
    folder, dataset = RunFolder(path), job.dataset
    write_toml(folder.config, job.settings, engine)
    models = write_models(job, folder, download)
    if sums is not None:
        sums.save(path)
    evaluated = evaluate_job(job, models, received=sums)
    write_evaluation(dataset, folder, evaluated)
    kept = kept_models(job, shared_best=best_round > 0, untrained=untrained)
    if kept.last and job.method.one_model and job.settings.training.keep == "best":
        # The server chose the model, by the validation errors that sites report.
        kept = replace(kept, reason="because the server named no best round")
    summary = essentials(job, evaluated, rounds=rounds, kept=kept)
    write_run_report(path, summary)  # forecasts beyond the data come later: the server is waiting
    folder.finish(summary)


def reply_to(
    folder: SiteFolder,
    content: bytes,
    *,
    run_config: Mapping[str, Any],
    data: str,
    made: float,
    expires: float,
    jobs: JobCache | None = None,
) -> bytes:
    """The reply to a request; a RefusalError says why there is none, and quotes no data.

    `data`: the data source given when the site was started, if any.
    """
    try:
        worker = Worker(folder, settings_of(run_config), data, jobs)
        return worker.answer(content, made=made, expires=expires)
    except RefusalError as refusal:
        log.error("%s", refusal)
        SiteRecords(folder).refused(str(refusal))
        raise
    except Exception:
        # Of any kind, on purpose: Flower sends the text of the error to the server, and an error
        # in reading or training may quote data. Only refusals are written to be sent.
        log.exception("this request could not be answered")
        raise RefusalError("it could not answer; see the log in the site's folder") from None


def serve_connection(folder: SiteFolder, connection: Connection, jobs: JobCache) -> None:
    """Answer the request that arrives on a connection."""
    try:
        facts, content = json.loads(connection.recv_bytes()), connection.recv_bytes()
        try:
            reply = (b"", reply_to(folder, content, jobs=jobs, **facts))
        except RefusalError as refusal:
            reply = (str(refusal).encode(), b"")
        for part in reply:
            connection.send_bytes(part)
    except (EOFError, OSError):  # the process that asked was killed; the reply is on disk
        log.warning("the process that asked for this reply has ended")


def main() -> None:
    end_with_parent()
    folder = SiteFolder(Path(sys.argv[1]))
    set_up_log(folder.state / "site.log")
    os.chdir(folder.state)
    Path(folder.socket).unlink(missing_ok=True)
    jobs = JobCache()
    with Listener(folder.socket, "AF_UNIX") as listener:
        while True:
            with listener.accept() as connection:
                serve_connection(folder, connection, jobs)


if __name__ == "__main__":
    main()
