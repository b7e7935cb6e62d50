"""A process at a site that stays, has everything loaded, and answers for Flower's short-lived ones.

Flower starts a new process for every message. Loading PyTorch and the compiled kernels would take
each of them some seconds, so it hands the request over to this one, through a socket in the site's
folder. The clerk remembers nothing between two requests: what matters lies on disk, and it may be
killed at any moment. A SuperNode that was started without it answers in its own processes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from fuels.federation.flower.lifeline import end_with_parent
from fuels.federation.flower.parties import RefusalError, SiteFolder, log, set_up_log

# Named from within its folder: a system allows a socket about a hundred characters of path.
SOCKET = "clerk.sock"


@dataclass(frozen=True)
class Question:
    """What the server asks, with what Flower knows of the run and the site."""

    content: bytes
    run_config: Mapping[str, Any]
    data: str  # the data source given at the start of the site, if any
    made: float  # in the server's seconds since 1970
    expires: float

    def parts(self) -> tuple[bytes, bytes]:
        facts = {
            "run_config": self.run_config,
            "data": self.data,
            "made": self.made,
            "expires": self.expires,
        }
        return json.dumps(facts).encode(), self.content


def ask(folder: SiteFolder, question: Question) -> bytes:
    """The clerk's answer; where there is no clerk, this process answers."""
    try:
        with chdir(folder.state):
            line = Client(SOCKET, "AF_UNIX")
    except (FileNotFoundError, ConnectionRefusedError):
        set_up_log(folder.state / "site.log")
        return answer(folder, question)
    with line:
        try:
            for part in question.parts():
                line.send_bytes(part)
            reason, content = line.recv_bytes().decode(), line.recv_bytes()
        except (EOFError, OSError):
            raise RefusalError("the process that trains ended before it had an answer") from None
    if reason:
        raise RefusalError(reason)
    return content


def answer(folder: SiteFolder, question: Question) -> bytes:
    """The reply to a request; RefusalError says why there is none, and quotes no data."""
    from fuels.federation.flower.desk import Desk
    from fuels.federation.flower.serving import settings_of

    try:
        desk = Desk(folder, settings_of(question.run_config), question.data)
        return desk.answer(question.content, made=question.made, expires=question.expires)
    except RefusalError as refusal:
        log.error("%s", refusal)
        raise
    except Exception:
        # All kinds, on purpose: Flower tells the server the text of whatever is raised here, and
        # any error of reading or training may quote data. Only refusals are written to be told.
        log.exception("this request could not be answered")
        raise RefusalError("it could not answer; the log in its own folder says why") from None


def attend(folder: SiteFolder, line: Connection) -> None:
    """Answer what comes over one connection."""
    try:
        facts, content = json.loads(line.recv_bytes()), line.recv_bytes()
        try:
            reply = (b"", answer(folder, Question(content, **facts)))
        except RefusalError as refusal:
            reply = (str(refusal).encode(), b"")
        for part in reply:
            line.send_bytes(part)
    except (EOFError, OSError):  # whoever asked was killed; the answer is on disk
        log.warning("nobody waits for this answer any more")


def main() -> None:
    end_with_parent()
    folder = SiteFolder(Path(sys.argv[1]))
    set_up_log(folder.state / "site.log")
    os.chdir(folder.state)
    Path(SOCKET).unlink(missing_ok=True)
    with Listener(SOCKET, "AF_UNIX") as listener:
        import fuels.federation.flower.desk  # noqa: F401  this is what takes its time

        while True:
            with listener.accept() as line:
                attend(folder, line)


if __name__ == "__main__":
    main()
