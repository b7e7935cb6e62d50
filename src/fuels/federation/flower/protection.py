"""What a site demands of runs that send its prototypes, and the secret that it shares with others.

The founder gives federation.secret to the sites and never to the server; see privacy/hidden.py. A
site tells the server only a digest of it with the run's name, so that sites with different secrets,
whose prototypes do not compare, notice.
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

from fuels.config import Settings, to_dict
from fuels.federation.flower.folders import Consent, RefusalError, SiteFolder
from fuels.federation.flower.pki import SECRET, SHARED, read_secret
from fuels.methods.fuels import Fuels
from fuels.privacy.noise import NONE
from fuels.runs.build import Job, fingerprint


class Secrets(NamedTuple):
    """What the server must not know."""

    noise: bytes = b""  # the site's own
    shared: bytes = b""  # of all sites


def read_secrets(folder: SiteFolder, settings: Settings) -> Secrets:
    """The secrets that a run needs."""
    noise = settings.options.get("noise", NONE) != NONE
    own = read_secret(folder.state / SECRET) if noise else b""
    return Secrets(own, shared_secret(folder, settings))


def shared_secret(folder: SiteFolder, settings: Settings) -> bytes:
    """The secret of all sites, if the run needs it."""
    if not settings.privacy.secret:
        return b""
    path = folder.path / SHARED
    if not path.is_file():
        raise RefusalError(
            f"this run needs {SHARED}, which this site does not have; get it from the founder of"
            " the federation"
        )
    return read_secret(path)


def digest_of(secret: bytes, run: str) -> str:
    """What tells sites with another secret apart; "" without a secret."""
    return hashlib.blake2b(run.encode(), key=secret, digest_size=8).hexdigest() if secret else ""


def prototypes_sent(method: Fuels, rounds: int) -> int:
    """How many prototypes a client sends in so many rounds."""
    return sum(method.sends_prototypes(number) for number in range(1, rounds + 1))


def identity_of(job: Job) -> dict[str, str]:
    """What must be unchanged when a site continues a run."""
    settings = {k: v for k, v in to_dict(job.settings).items() if k != "data"}
    return {
        "data": fingerprint(job.dataset),
        "settings": json.dumps(settings, sort_keys=True),
        "secret": digest_of(job.method.facts.shared_secret, "state"),
    }


def check_protection(job: Job, consent: Consent, number: int) -> None:
    """Refuse a run that protects prototypes less than this site demands.

    `number`: the round that the server asks for, also if it is after the last one announced.
    """
    method, rounds = job.method, max(job.settings.training.rounds, number)
    if not isinstance(method, Fuels):
        return
    options = method.options
    noise = 0.0 if options.noise == NONE else options.noise_scale
    demands = {
        "hidden": (not consent.hidden or method.facts.privacy.secret, "needs privacy.secret"),
        "least_noise": (noise >= consent.least_noise, f"has noise of {noise:g} (noise_scale)"),
        "most_prototypes": (
            not consent.most_prototypes
            or prototypes_sent(method, rounds) <= consent.most_prototypes,
            f"sends {prototypes_sent(method, rounds)} prototypes of each client in {rounds} rounds",
        ),
    }
    for name, (met, reason) in demands.items():
        if not met:
            demanded = str(getattr(consent, name)).lower()
            raise RefusalError(
                f"{method.title} with these settings {reason}; this site demands"
                f" consent.{name} = {demanded} (in its site.toml)"
            )
