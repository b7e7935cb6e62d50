"""Takes the messages of a site's SuperNode to the worker, and its replies back.

Flower would start a new process for every message, which takes seconds to import Flower, and keep
another one to start them. It would also run the app that came with the run. This thread of the
site's process does neither: it claims every message, hands it to the worker (app.py) and returns
the reply. So no code from the server runs at the site. Messages of a run whose app is of another
version are refused.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fuels.federation.flower import app, retries
from fuels.federation.flower.child_process import end_with_parent
from fuels.federation.flower.flower_app import check_app
from fuels.federation.flower.folders import RefusalError, SiteFolder, log, set_up_log
from fuels.federation.flower.notices import LOOK, Notice, Watch

SELDOM = 2.0  # seconds between two looks for a message while there is no notice of one
NAME = "fuels-dispatcher"  # to the SuperNode


class Dispatcher(threading.Thread):
    """Serves the SuperNode at `port`, which may be restarted on another one.

    A SuperNode hands out one message at a time, but it announces a message before it has received
    all of it. If the run ends in between, it drops the message and leaves the announcement. So each
    message has its own thread, and the next message ends the wait for one that is still incomplete.
    """

    def __init__(self, folder: SiteFolder) -> None:
        super().__init__(name="dispatcher", daemon=True)
        self.watch = Watch(Notice(folder.arrived), SELDOM)
        self.port = 0
        self.client: RuntimeHttpClient | None = None
        self.served = 0  # the port that `client` is for
        self.newest: Answer | None = None

    def run(self) -> None:
        retries.shorten()
        busy = False
        while True:
            try:
                busy = self.port != 0 and (busy or self.watch.due()) and self._look()
            except httpx.HTTPError:  # the SuperNode is starting, or has ended
                busy = False
            except Exception:  # whatever Flower raises; the next look may succeed
                log.exception("the SuperNode could not be asked for messages")
                busy = False
            if not busy:
                time.sleep(LOOK)

    def _look(self) -> bool:
        """Take the next message; returns whether there was one."""
        port = self.port
        if self.client is None or self.served != port:
            self.client, self.served = connected(port), port
        request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        found = self.client.AcquireTask(request)
        if not (found.HasField("task") and found.token):
            return False
        if self.newest is not None and not self.newest.received:
            self.newest.abandon()
        self.newest = Answer(port, found.token)
        self.newest.start()
        return True


class Answer(threading.Thread):
    """Receives one message, has it handled, and sends the reply: an error if there is a reason."""

    def __init__(self, port: int, token: str) -> None:
        super().__init__(name="answer", daemon=True)
        self.port, self.token = port, token  # the token is that of the message
        self.client = connected(port, token)
        self.received = self.abandoned = False

    def run(self) -> None:
        try:
            with self.client:
                self._answer()
        except Exception as error:  # whatever Flower raises; the next message may be a good one
            if self.abandoned:
                self._give_up("a message was not received completely, because its run has ended")
            elif not isinstance(error, httpx.ConnectError):  # which means: the SuperNode has ended
                log.exception("a message of the SuperNode could not be handled")

    def abandon(self) -> None:
        """Stop waiting for the rest of the message: the next request fails."""
        self.abandoned = True
        self.client.close()

    def _give_up(self, reason: str) -> None:
        """End a message without a reply.

        The SuperNode would otherwise make one itself when it misses the heartbeats. As it sends one
        reply for each message that it receives, all later replies would then be one message late.
        """
        with connected(self.port, self.token) as client:
            push_task_output(client, None, SubStatus.FAILED, reason)
        log.info("%s", reason)

    def _answer(self) -> None:
        beats = HeartbeatSender(self._beat)
        beats.start()
        try:
            message, context, _, bundle = pull_task_input(self.client)
            self.received = True
            status, details = SubStatus.COMPLETED, ""
            try:
                check_app(bundle.content)
                reply = app.handle_message(message, context)
            except RefusalError as refusal:
                status, details = SubStatus.FAILED, str(refusal)
                error = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=details)
                reply = Message(error, reply_to=message)
            # On new connections: the SuperNode closes those that are idle for five seconds, perhaps
            # just when they are used again, and waits for the lost piece for ever.
            with connected(self.port, self.token) as client:
                push_message(client, reply, context)
                push_task_output(client, context, status, details)
        finally:
            if beats.is_running:
                beats.stop()

    def _beat(self) -> bool:
        try:
            self.client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except (httpx.HTTPError, RuntimeError):  # a closed client raises the latter
            return False
        return True


def connected(port: int, token: str = "") -> RuntimeHttpClient:
    """A client of the SuperNode's interface for tasks; with a token, of the task it belongs to."""
    about = RuntimeVersionHttpInterceptor(component_name=NAME)
    return RuntimeHttpClient.from_server_address(
        server_address=f"127.0.0.1:{port}",
        insecure=True,  # loopback
        root_certificates=None,
        interceptors=[about, RuntimeTokenHttpInterceptor(token)] if token else [about],
    )


def main() -> None:
    """`DIR PORT`: serve the SuperNode that listens on this port."""
    end_with_parent()
    folder = SiteFolder(Path(sys.argv[1]))
    set_up_log()
    folder.state.mkdir(parents=True, exist_ok=True)  # the worker may start later
    dispatcher = Dispatcher(folder)
    dispatcher.port = int(sys.argv[2])
    dispatcher.run()


if __name__ == "__main__":
    main()
