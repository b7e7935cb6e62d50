"""The ClientApp: one handler for everything a site is asked.

The SuperNode starts a new process for every message, so it imports little: the work is the clerk's.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fuels.federation.flower.clerk import Question, ask
from fuels.federation.flower.lifeline import end_with_parent
from fuels.federation.flower.parties import RefusalError, SiteFolder, log
from fuels.federation.flower.records import pack, unpack

app = ClientApp()


@app.train()  # type: ignore[untyped-decorator, unused-ignore]
@app.evaluate()  # type: ignore[untyped-decorator, unused-ignore]
@app.query()  # type: ignore[untyped-decorator, unused-ignore]
def handle(message: Message, context: Context) -> Message:
    end_with_parent()
    try:
        return answer(message, context)
    except RefusalError:
        raise
    except Exception:  # Flower tells the server the text, and only refusals are written to be told
        log.exception("this request could not be answered")
        raise RefusalError("it could not answer; its SuperNode's output says why") from None


def answer(message: Message, context: Context) -> Message:
    where = str(context.node_config.get("folder", ""))
    if not where:
        raise RefusalError("the SuperNode's node config names no folder")
    question = Question(
        content=unpack(message.content),
        run_config=dict(context.run_config),
        data=str(context.node_config.get("data", "")),
        made=message.metadata.created_at,
        expires=message.metadata.created_at + message.metadata.ttl,
    )
    return Message(pack(ask(SiteFolder(Path(where)), question)), reply_to=message)
