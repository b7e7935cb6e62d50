"""The ClientApp: one handler for everything a site is asked.

The SuperNode starts a new process for every message, so it imports late and little.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fuels.errors import FuelsError
from fuels.federation.flower.desk import Desk, RefusalError
from fuels.federation.flower.lifeline import end_with_parent
from fuels.federation.flower.parties import SiteFolder, log, set_up_log
from fuels.federation.flower.records import pack, unpack
from fuels.federation.flower.serving import settings_of

app = ClientApp()


@app.train()  # type: ignore[untyped-decorator, unused-ignore]
@app.evaluate()  # type: ignore[untyped-decorator, unused-ignore]
@app.query()  # type: ignore[untyped-decorator, unused-ignore]
def handle(message: Message, context: Context) -> Message:
    where = str(context.node_config.get("folder", ""))
    if not where:
        raise FuelsError("the SuperNode's node config names no folder")
    end_with_parent()
    folder = SiteFolder(Path(where))
    set_up_log(folder.state / "site.log")
    try:
        data = str(context.node_config.get("data", ""))
        desk = Desk(folder, settings_of(context.run_config), data)
        expires = message.metadata.created_at + message.metadata.ttl
        answer = desk.answer(unpack(message.content), expires)
        return Message(pack(answer), reply_to=message)
    except RefusalError as refusal:
        log.error("%s", refusal)
        raise
    except Exception:
        # Flower sends the text of an exception to the server, and this one may quote data.
        log.exception("this request could not be answered")
        raise RefusalError("it could not answer; the log in its own folder says why") from None
