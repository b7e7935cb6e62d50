"""`fuels site start`, with the faults that a test plans; each happens once.

They are read from plan.json next to the folder `sites`; see Cluster.plan. Any other command line is
that of fuels.federation.flower.processes.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fuels.federation.flower import processes


def the_worker(folder: str) -> int:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_text().split("\0")
        except OSError:
            continue
        if "fuels.federation.flower.worker" in words and folder in words:
            return int(file.parent.name)
    raise RuntimeError("no worker is running")


def break_messages() -> None:
    """Replace what answers a message."""
    from flwr.app import Message

    from fuels.federation.codec import decode, encode
    from fuels.federation.flower import app
    from fuels.federation.flower.app import pack, unpack
    from fuels.federation.flower.folders import RefusalError

    plain = app.handle_message

    def handle(message: Any, context: Any) -> Any:
        folder = Path(str(context.node_config["folder"]))
        plan = folder.parent.parent / "plan.json"
        faults = json.loads(plan.read_text()) if plan.exists() else {}
        about = message.metadata
        key = f"{about.message_type} {about.group_id} {folder.name}"
        every = f"{about.message_type} * {folder.name}"
        what = faults.get(key) or faults.get(every, "")
        mark = plan.with_name(key.replace(" ", "-") + ".done")
        if not what or mark.exists():
            return plain(message, context)
        mark.touch()
        if what == "raise":
            raise RefusalError("a planned fault")
        if what == "kill":
            worker = the_worker(str(folder))
            os.kill(worker, signal.SIGSTOP)  # it has the request and no answer yet
            threading.Timer(1.0, os.kill, (worker, signal.SIGKILL)).start()
            return plain(message, context)
        mark.unlink()
        reply = plain(message, context)
        mark.touch()
        if what.startswith("hold"):
            time.sleep(float(what.removeprefix("hold ")))
            return reply
        if what.startswith("until"):
            while not plan.with_name(what.removeprefix("until ")).exists():
                time.sleep(0.1)
            return reply
        envelope = decode(unpack(reply.content), 2**26)
        if what == "poison":
            arrays = {
                name: -10 * array if name.startswith("upload/") else array
                for name, array in envelope.arrays.items()
            }
            false = replace(envelope, arrays=arrays)
        else:
            false = replace(envelope, site=what.removeprefix("claim "))
        return Message(pack(encode(false)), reply_to=message)

    app.handle_message = handle


if __name__ == "__main__":
    import sys

    if sys.argv[1] == "site":
        break_messages()
    processes.main()
