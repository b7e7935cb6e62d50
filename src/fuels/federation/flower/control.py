"""What the SuperLink says of its nodes and runs, by the requests behind `flwr`'s own lists.

Those commands do not print the keys of nodes, and take seconds to start.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

import httpx
from flwr.proto.control_pb2 import ListNodesResponse, ListRunsResponse
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from fuels.errors import FuelsError
from fuels.federation.flower.keys import public_line
from fuels.federation.flower.parties import ServerFolder, key_of

PROTOBUF = "application/protobuf"
TAKEN_BACK = "unregistered"
OVER = "finished"


@dataclass(frozen=True)
class Node:
    """A key as Flower knows it."""

    number: str
    status: str  # registered, online, offline or unregistered


def registered(folder: ServerFolder) -> dict[str, Node]:
    """Every key that the SuperLink has or had, with its node."""
    nodes = _ask(folder, "list-nodes", ListNodesResponse).nodes_info
    return {
        key_of(public_line(bytes(node.public_key))): Node(str(node.node_id), str(node.status))
        for node in nodes
    }


def unfinished(folder: ServerFolder) -> dict[str, str]:
    """The runs that Flower has not finished, whoever submitted them: number and status."""
    runs = _ask(folder, "list-runs", ListRunsResponse).run_dict
    return {
        str(number): str(run.status.status)
        for number, run in runs.items()
        if run.status.status != OVER
    }


def _ask(folder: ServerFolder, what: str, kind: Any) -> Any:
    url = f"https://127.0.0.1:{folder.config.control_port}/v1/control/{what}"
    headers = {"content-type": PROTOBUF, "accept": PROTOBUF}
    try:
        context = ssl.create_default_context(cafile=str(folder.ca))
        answer = httpx.post(url, content=b"", headers=headers, verify=context, timeout=30)
        answer.raise_for_status()
        return kind.FromString(answer.content)
    except (OSError, httpx.HTTPError, DecodeError) as error:
        raise FuelsError(f"the SuperLink does not answer ({what}): {error}") from None
