"""The server's side of a live series: the sum of each step over the sites that have its values.

A site is asked to wait for values of the next step, and says when it has some. Once three sites
have reached the step, the others have until the deadline. Those that are ready by then form the
set, which is written down and asked for its masked numbers; a site without a reply is asked again,
always with the same set. If one of the set has not replied by a second deadline, or fewer than
three sites were ready, the step is skipped and the next one begins. With the next request every
site gets the sums that it lacks.

A site that was not in the run gets its end first (newcomers.py) and then the sums, and is in no
set: the experts have learned from the mean of the others.

Steps follow the data, not the clock: a series that was interrupted catches up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, decode, encode
from fuels.federation.flower.folders import RefusalError, ServerFolder, log
from fuels.federation.flower.inbox import Network, Time, reading
from fuels.federation.flower.live_messages import (
    NAME,
    SUM,
    WAIT,
    State,
    Sum,
    Wait,
    series,
    words_of,
)
from fuels.federation.flower.live_record import LiveRecord, as_text
from fuels.federation.flower.newcomers import END, Newcomers
from fuels.federation.flower.records import audit
from fuels.federation.flower.sum_keys import read_server_roster
from fuels.federation.guard import OVERHEAD
from fuels.sharing import masks
from fuels.sharing.fixed_point import Words
from fuels.sharing.masks import LEAST_SITES, SumId
from fuels.sharing.roster import Roster

POLL = 0.05  # seconds between two looks for replies
CONNECTED = 1.0  # seconds between two looks at which sites are connected
HOLD = 10  # seconds that a site may hold a request
LOST = 10.0  # seconds after which a request or reply is taken for lost, besides `HOLD`
AGAIN = 8.0  # seconds until a site that has not sent its numbers is asked again
LONGEST = 600.0  # seconds before a site that goes on refusing is asked again
CATCH_UP = 200  # steps that an interrupted series goes back at most
MOST_SUMS = 2000  # in one message
ROOM = 30.0  # seconds that a message lives besides the time that a site may hold it


@dataclass(frozen=True)
class Asked:
    """A request without a reply."""

    site: str
    kind: str
    step: int | None
    at: float


class Live:
    """One live series; `look` is one turn of its loop."""

    def __init__(
        self,
        network: Network,
        folder: ServerFolder,
        run: str,
        *,
        min_clients: int,
        time: Time,
    ) -> None:
        self.network, self.folder, self.run = network, folder, run
        self.min_clients, self.deadline = min_clients, folder.config.rules.live_deadline
        self.time, self.clock = time, time.clock
        self.record = LiveRecord.load(folder.runs / run)
        self.newcomers = Newcomers(folder, run)
        self.audit = audit(folder)
        self.roster: tuple[Roster, bytes] | None = None  # as last read
        self.problem = ""  # with the file of the roster
        self.open: dict[str, Asked] = {}  # by ticket
        self.states: dict[str, State] = {}  # what each site said last
        self.retry: dict[str, float] = {}  # site: when it may be asked again after a refusal
        self.pause: dict[str, float] = {}  # and how long that took the last time
        self.connected: set[str] = set()
        self.looked = float("-inf")
        self.reached: list[tuple[int, float]] = []  # a step that three sites reached, and when
        self.words: dict[str, Words] = {}  # of the open sum
        self.opened = 0.0
        self.tried: dict[str, float] = {}  # when each site of the set was last asked
        self.why: dict[str, str] = {}  # why a site of the set has not sent its numbers
        self.never: dict[str, str] = {}  # and why it will not
        self.sent = 0  # number of the next message

    def serve(self) -> None:
        """Continue until the clock raises, because the series was stopped."""
        while True:
            self.look()
            self.time.sleep(POLL)

    def look(self) -> None:
        now = self.clock()
        roster, content = self.roster = self._roster()
        if now >= self.looked + CONNECTED or now < self.looked:
            self.looked = now
            self.connected = (
                self.network.connected() & self.network.allowed() & roster.members.keys()
            )
        self._collect()
        if self.record.asked:
            self._add_up(roster, content)
        else:
            self._decide(roster)
        self._ask()

    def _roster(self) -> tuple[Roster, bytes]:
        """The founder's roster, read again: it may change between two steps.

        While its file is being replaced, the former one counts.
        """
        try:
            found = read_server_roster(self.folder)
            if found is None:
                raise FuelsError(
                    f"{self.folder.roster}: there is no roster, which a live series needs: the"
                    " founder signs one with fuels federation roster"
                )
            self.problem = ""
        except FuelsError as error:
            if self.roster is None:
                raise
            if str(error) != self.problem:
                self.problem = str(error)
                log.error("%s; the former roster still counts", error)
            return self.roster
        content, roster = found
        if len(roster.members) < LEAST_SITES:
            raise FuelsError(
                f"{self.folder.roster}: a live series needs at least {LEAST_SITES} sites, and the"
                f" roster has {len(roster.members)}"
            )
        return roster, content

    # -- messages ------------------------------------------------------------------------------

    def _send(self, kind: str, step: int | None, contents: Mapping[str, Envelope]) -> None:
        if not contents:
            return
        encoded = {site: encode(envelope) for site, envelope in contents.items()}
        ttl = (HOLD if kind == WAIT else self._patience(kind)) + ROOM
        tickets = self.network.send(encoded, kind, self.sent, ttl)
        self.sent += 1
        for (site, content), ticket in zip(encoded.items(), tickets, strict=True):
            self.open[ticket] = Asked(site, kind, step, self.clock())
            self.record.count("messages")
            self.record.count("bytes_down", len(content))

    def _collect(self) -> None:
        replies = self.network.collect(list(self.open)) if self.open else {}
        for ticket, reply in replies.items():
            asked = self.open.pop(ticket, None)
            if asked is None:
                continue
            try:
                if isinstance(reply, FuelsError):
                    raise reply
                self.record.count("bytes_up", len(reply))
                self._take(asked, reply)
            except FuelsError as error:
                self._refused(asked, str(error), final=not isinstance(error, RefusalError))
        now = self.clock()
        self.open = {
            ticket: asked
            for ticket, asked in self.open.items()
            if now < asked.at + self._patience(asked.kind)
        }

    def _patience(self, kind: str) -> float:
        """Seconds after which a request is taken for lost."""
        rules = self.folder.config.rules
        return {WAIT: HOLD + LOST, END: rules.deadline}.get(kind, self.deadline)

    def _take(self, asked: Asked, reply: bytes) -> None:
        envelope = reading(lambda: decode(reply, OVERHEAD))
        said = (envelope.kind, envelope.run, envelope.site)
        if said != (asked.kind, self.run, asked.site):
            raise FuelsError("it does not answer the request")
        if asked.kind == END:
            self.newcomers.confirmed(asked.site)
        elif asked.kind == WAIT:
            state = reading(lambda: State.read(envelope.facts))
            if state.step != asked.step:
                raise FuelsError("it is for another step")
            self.states[asked.site] = state
            self.retry.pop(asked.site, None)
            self.pause.pop(asked.site, None)
            if self.record.refusals.pop(asked.site, None):
                log.info("%s takes part again", asked.site)
        elif self.record.asked and asked.step == self.record.next:
            if "refused" in envelope.facts:
                self.never[asked.site] = str(envelope.facts["refused"])[:300]
                return
            self.words.setdefault(asked.site, reading(lambda: words_of(envelope)))

    def _refused(self, asked: Asked, reason: str, *, final: bool) -> None:
        """A site that gives a reason, or a reply that cannot be used."""
        if asked.kind == SUM:
            self.why[asked.site] = reason
        else:
            self.states.pop(asked.site, None)
        if asked.kind != SUM or final:
            self.pause[asked.site] = min(2 * self.pause.get(asked.site, 0.5), LONGEST)
            self.retry[asked.site] = self.clock() + self.pause[asked.site]
            if self.record.refusals.get(asked.site) != reason:
                log.warning("%s: %s", asked.site, reason)
                self.audit.add("refused", run=self.run, site=asked.site, reason=reason)
                self.record.refusals[asked.site] = reason
                self._save()

    def _ask(self) -> None:
        """Ask each site that has nothing to do to wait for the next step."""
        step = self.record.next if self.record.seconds else None
        busy = {asked.site for asked in self.open.values()}
        contents: dict[str, Envelope] = {}
        paused = {site for site, until in self.retry.items() if self.clock() < until}
        free = self.connected - busy - set(self.record.asked) - paused
        new = self.newcomers.waiting(free)
        self._send(END, None, {site: self.newcomers.request(site) for site in sorted(new)})
        for site in sorted(free - new):
            state = self.states.get(site)
            if self._ready(site):
                continue
            after = None if state is None else state.after
            first, sums = self.record.since(after, MOST_SUMS)
            # The first reply is to come at once: it says what the site has already.
            hold = 0 if state is None or step is None else HOLD
            wait = Wait(step, hold, first, self.record.seconds, sums)
            contents[site] = Envelope(WAIT, self.run, 0, site, wait.facts(), {"sums": sums})
        self._send(WAIT, step, contents)

    # -- steps ---------------------------------------------------------------------------------

    def _ready(self, site: str) -> bool:
        """Whether a site has values of the next step."""
        state = self.states.get(site)
        at = self.record.next if self.record.seconds else None
        return state is not None and at is not None and state.step == at and state.values > 0

    def _decide(self, roster: Roster) -> None:
        """Choose the set of the next step, or skip it, when it is time."""
        members = self.connected - self.newcomers.among(self.connected)
        known = {s: state for s, state in self.states.items() if s in members}
        newest = sorted((state.newest for state in known.values()), reverse=True)
        if len(newest) < LEAST_SITES:
            return
        third, now = newest[LEAST_SITES - 1], self.clock()
        if not self.reached or third > self.reached[-1][0]:
            self.reached.append((third, now))
        asked = members - self.retry.keys()
        if not self.record.seconds:
            since = self.reached[0][1]
            if known.keys() >= asked or now >= since + self.deadline:
                self._begin(known, third)
            return
        step, seconds = self.record.next, self.record.seconds
        if third - step > CATCH_UP * seconds:
            self._skip("the series was interrupted", (third - step) // seconds - CATCH_UP)
            return
        since = next((at for moment, at in self.reached if moment >= step), float("inf"))
        late = now >= since + self.deadline
        ready = {site: known[site].values for site in sorted(known) if self._ready(site)}
        if not late and not ready.keys() >= asked:
            return
        values, clients = sum(ready.values()), roster.clients(tuple(ready))
        if len(ready) < LEAST_SITES:
            reason = f"only {len(ready)} sites had values" if ready else "no site had values"
        elif values < self.min_clients or clients < self.min_clients:
            reason = f"only {min(values, clients)} clients had values"
        else:
            self.words, self.why, self.never = {}, {}, {}
            self.tried, self.opened = {}, now
            self.record.ask(tuple(ready))
            return
        if late:
            self._skip(reason)

    def _begin(self, known: Mapping[str, State], third: int) -> None:
        """Where the series begins: after the sums that the sites know, or at the newest step."""
        found = [state.seconds for state in known.values()]
        seconds = max(set(found), key=found.count)
        after = [s.after for s in known.values() if s.after is not None]
        after = [moment for moment in after if moment <= third + seconds]
        begin = max([*after, third - CATCH_UP * seconds]) if after else third
        begin += -(begin - third) % seconds  # a step of the third site
        self.record.begin(begin, seconds)
        log.info("the live series of run %s begins at %s", self.run, as_text(begin))
        self._save()

    def _add_up(self, roster: Roster, content: bytes) -> None:
        """Ask the set for its numbers until all have sent them, at most until the deadline."""
        record, now = self.record, self.clock()
        self.opened = self.opened or now  # after a restart
        sites = record.asked
        asked = SumId(
            roster.federation, roster.serial, series(self.run), NAME, record.next, sites, (2,)
        )
        if set(sites) <= self.words.keys():
            try:
                total, count = masks.total(asked, {site: self.words[site] for site in sites})
            except FuelsError as error:
                self._skip(str(error))
                return
            record.done(float(total), float(count), now - self.opened, roster.members)
            self._closed(sites=list(sites))
            return
        if self.never:  # at once: without one of them there is no sum
            self._skip("; ".join(f"{site}: {why}" for site, why in sorted(self.never.items())))
            return
        missing = [site for site in sites if site not in self.words]
        if now >= self.opened + self.deadline:
            reasons = [f"{site}: {self.why.get(site, 'no reply')}" for site in missing]
            self._skip("; ".join(reasons))
            return
        due = [s for s in missing if now >= self.tried.get(s, float("-inf")) + AGAIN]
        facts = Sum(record.next, sites, content).facts()
        due = [site for site in due if site in self.connected]
        self.tried |= dict.fromkeys(due, now)
        contents = {site: Envelope(SUM, self.run, 0, site, facts) for site in due}
        self._send(SUM, record.next, contents)

    def _skip(self, reason: str, steps: int = 1) -> None:
        log.warning("%s: skipped: %s", as_text(self.record.next), reason)
        self.record.skip(reason, steps)
        self._closed(skipped=reason)

    def _closed(self, **facts: object) -> None:
        """A step is over."""
        self.opened = 0.0
        self.reached = [pair for pair in self.reached if pair[0] >= self.record.next] or (
            self.reached[-1:]
        )
        self.open = {t: asked for t, asked in self.open.items() if asked.kind == WAIT}
        self._save()
        step = as_text(self.record.next - self.record.seconds)
        self.audit.add("live step", run=self.run, step=step, **facts)
        if "sites" in facts:
            log.info("%s: the sum of %d values", step, self.record.last["values"])

    def _save(self) -> None:
        self.record.save()
