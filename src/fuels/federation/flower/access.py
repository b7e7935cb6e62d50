"""A site asks the gateway whether it is let in, to show its owner the reason if it is not.

Flower's SuperNode shows the reason only while it connects; later it ends with a bare status.
"""

from __future__ import annotations

import datetime
import json
import ssl
from base64 import b64encode
from email.utils import parsedate_to_datetime

from fuels.errors import FuelsError
from fuels.federation.flower.folders import SiteFolder

ACCESS = "/v1/fleet/access"  # answered by the gateway, not by Flower
NOT_ADMITTED = 2004  # Flower's code for a node that is not admitted
PATIENCE = 5.0  # seconds for an answer


def refusal(reason: str) -> bytes:
    """The body of a refusal, in the form that a SuperNode prints.

    With status 412 its SuperNode prints the reason and ends. With 401 it would end silently, and
    403 means that a run is over.
    """
    return json.dumps({"code": NOT_ADMITTED, "detail": reason}).encode()


def check_access(folder: SiteFolder) -> tuple[str, float]:
    """Why the server refuses this site ("" if it does not), and how far its clock is ahead.

    Raises FuelsError if the server does not answer.
    """
    import httpx
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_ssh_private_key,
    )

    key = load_ssh_private_key(folder.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # as made by make_site_key
    stamp = datetime.datetime.now(datetime.UTC).isoformat()
    signature = key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    headers = {
        "flwr-public-key": b64encode(pem).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": b64encode(signature).decode(),
    }
    try:
        context = ssl.create_default_context(cafile=str(folder.ca))
        url = f"https://{folder.config.server}{ACCESS}"
        answer = httpx.post(url, headers=headers, verify=context, timeout=PATIENCE)
        theirs = parsedate_to_datetime(answer.headers["date"])
        ahead = (datetime.datetime.now(datetime.UTC) - theirs).total_seconds()
        if answer.status_code == 200:
            return "", ahead
        return str(answer.json()["detail"]), ahead
    except (OSError, httpx.HTTPError) as error:
        raise FuelsError(f"the server at {folder.config.server} does not answer: {error}") from None
    except (KeyError, ValueError, TypeError):
        raise FuelsError(
            f"the server at {folder.config.server} gave no reason (status {answer.status_code})"
        ) from None
