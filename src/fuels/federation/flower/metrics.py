"""Health and metrics of a server or a site, over HTTP on loopback.

Off unless `metrics_port` is set. `/health` answers 200, or 503 with the reason; `/metrics` has the
text format of Prometheus. Nothing here can change anything, and no client is named.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fuels.errors import FuelsError
from fuels.federation.flower import live_record
from fuels.federation.flower.folders import ServerFolder, SiteFolder
from fuels.federation.flower.records import read_figures
from fuels.federation.flower.runs import Current, is_busy, is_listening
from fuels.report.prometheus import TEXT, Metrics, Sample
from fuels.storage.checkpoint import facts_of

MOST_REASONS = 30  # that are counted apart


def server_metrics(folder: ServerFolder) -> str:
    """The server's metrics; those of rounds and of a live series are of the current run."""
    found, m = read_figures(folder.figures), Metrics()
    current = Current(folder).read()
    if found.get("run") != current.get("run"):  # no round of this run has finished
        found = {}
    m.gauge("server_up", "Whether the SuperLink and the gateway accept connections.",
            is_listening(folder))  # fmt: skip
    m.gauge("run_active", "Whether a process is running the rounds.", is_busy(folder))
    m.gauge("round", "The last finished round.", found.get("round", 0))
    m.gauge("rounds", "Rounds of the run.", found.get("rounds", 0))
    m.gauge("round_seconds", "Duration of the last round.", found.get("seconds"))
    m.gauge("round_age_seconds", "Time since the last round ended.", _since(found.get("time")))
    m.gauge("round_clients", "Clients whose uploads the last round used.", found.get("clients"))
    m.gauge("validation_mse", "Mean validation error of the clients.", found.get("val_mse"))
    m.gauge("sites", "Sites in server.toml.", len(folder.config.sites))
    m.gauge("sites_connected", "Sites connected at the end of the last round.",
            found.get("connected"))  # fmt: skip
    m.gauge("round_replies", "Sites with a usable reply in the last round.", found.get("replies"))
    m.gauge("round_quorum", "Sites that had to reply in the last round.", found.get("quorum"))
    m.gauge("sites_excluded", "Sites excluded from the run.", len(found.get("excluded", [])))
    m.gauge("clients_left_out", "Clients left out of the last round by admission.",
            found.get("left_out"))  # fmt: skip
    ages = found.get("age", {})
    m.add("upload_age_rounds", "gauge", "Rounds since the site's uploads, such as"
          " prototypes, were used.", [({"site": s}, age) for s, age in ages.items()])  # fmt: skip
    m.add("refused_total", "counter", "Refused messages and clients.",
          [({"site": site, "reason": reason}, count)
           for site, reasons in found.get("refused", {}).items()
           for reason, count in reasons.items()])  # fmt: skip
    counters = found.get("counters", {})
    m.counter("bytes_up_total", "Bytes of messages from the sites.", counters.get("bytes_up", 0))
    m.counter("bytes_down_total", "Bytes of messages to the sites.", counters.get("bytes_down", 0))
    m.counter("requests_total", "Requests to the sites.", counters.get("messages", 0))
    _live(m, folder, current)
    return m.text()


def _live(m: Metrics, folder: ServerFolder, current: Mapping[str, Any]) -> None:
    """The live series of the current run."""
    file = folder.runs / str(current.get("run", "")) / live_record.FILE
    found = facts_of(file) if file.is_file() else {}
    counts, last = found.get("counts", {}), found.get("last", {})
    running = bool(current.get("live")) and current.get("state") == "running"
    m.gauge("live_active", "Whether a live series is in progress.", running)
    m.counter("live_steps_total", "Steps with a sum.", counts.get("steps", 0))
    m.counter("live_skipped_total", "Steps without a sum.", counts.get("skipped", 0))
    for name, what in (
        ("added", "Steps whose sum the site is part of."),
        ("missed", "Steps whose sum is without the site, which was late or away."),
    ):
        samples = [({"site": s}, n) for s, n in sorted(found.get(name, {}).items())]
        m.add(f"live_site_{name}_total", "counter", what, samples)
    m.gauge("live_sites", "Sites in the newest sum.", len(last["sites"]) if last else None)
    m.gauge("live_sites_missing", "Sites of the roster that the newest sum is without.",
            len(last["missing"]) if "missing" in last else None)  # fmt: skip
    m.gauge("live_sites_refusing", "Sites that refuse to take part.",
            len(found.get("refusals", {})))  # fmt: skip
    m.gauge("live_clients", "Clients with a value in the newest sum.", last.get("values"))
    m.gauge("live_step_seconds", "Time from asking for the newest sum until it was known.",
            last.get("seconds"))  # fmt: skip
    m.gauge("live_step_age_seconds", "Time since the newest step was closed.",
            _since(found.get("closed")))  # fmt: skip
    m.counter("live_bytes_up_total", "Bytes of messages from the sites.", counts.get("bytes_up", 0))
    m.counter("live_bytes_down_total", "Bytes of messages to the sites.",
              counts.get("bytes_down", 0))  # fmt: skip


def server_health(folder: ServerFolder) -> str:
    """What is wrong; "" if nothing is."""
    if not is_listening(folder):
        return "the server does not accept connections"
    current = Current(folder).read()
    if current.get("state") == "failed":
        return f"run {current.get('run')} failed: {current.get('reason')}"
    return ""


def site_metrics(folder: SiteFolder, parts: Mapping[str, bool]) -> str:
    """A site's metrics; `parts`: whether each of its processes is running."""
    found, m = read_figures(folder.figures), Metrics()
    counts = found.get("counts", {})
    m.add("site_up", "gauge", "Whether a process of the site is running.",
          [({"part": name}, alive) for name, alive in parts.items()])  # fmt: skip
    m.gauge("site_round", "The last round that was answered.", found.get("round", 0))
    m.gauge("site_upload_age_seconds", "Time since an upload, such as prototypes, was sent.",
            _since(found.get("uploaded")))  # fmt: skip
    m.gauge("site_live_age_seconds", "Time since a contribution to a live mean was sent.",
            _since(found.get("contributed")))  # fmt: skip
    m.add("site_requests_total", "counter", "Requests answered, by kind.",
          [({"kind": kind}, n) for kind, n in _under("requests", counts)])  # fmt: skip
    m.add("site_refused_total", "counter", "Requests refused.", _reasons(counts))
    m.counter("site_bytes_up_total", "Bytes of messages sent.", counts.get("bytes_up", 0))
    m.counter("site_bytes_down_total", "Bytes of messages read.", counts.get("bytes_down", 0))
    return m.text()


def site_health(parts: Mapping[str, bool]) -> str:
    down = [name for name, alive in parts.items() if not alive]
    return f"not running: {', '.join(down)}" if down else ""


def _under(prefix: str, counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(k.partition(" ")[2], n) for k, n in counts.items() if k.startswith(f"{prefix} ")]


def _reasons(counts: Mapping[str, int]) -> list[Sample]:
    """Refusals by reason; beyond some, together."""
    found: dict[str, int] = {}
    for reason, count in _under("refused", counts):
        key = reason if len(found) < MOST_REASONS else "other reasons"
        found[key] = found.get(key, 0) + count
    return [({"reason": reason}, count) for reason, count in found.items()]


def _since(moment: float | None) -> float | None:
    return None if moment is None else max(0.0, round(time.time() - moment, 1))


def start(port: int, metrics: Callable[[], str], health: Callable[[], str], file: Path) -> None:
    """Answer on a port of the loopback interface until this process ends.

    `file`: the config file that names the port.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                if self.path == "/metrics":
                    self._answer(200, metrics(), TEXT)
                elif self.path == "/health":
                    reason = health()
                    self._answer(503 if reason else 200, (reason or "ok") + "\n", "text/plain")
                else:
                    self._answer(404, "/metrics or /health\n", "text/plain")
            except (FuelsError, OSError) as error:
                self._answer(503, f"{error}\n", "text/plain")

        def _answer(self, status: int, text: str, kind: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FuelsError(f"{file}: cannot listen on metrics_port {port} ({reason})") from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
