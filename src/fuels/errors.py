"""Errors that are not bugs: each is one sentence that a person can act on."""


class FuelsError(Exception):
    """Bad input or a failed step; the message is one clear sentence.

    The command line prints only the message and exits with status 1, so the message says what was
    found, where (file, client, round or option), and what to do about it.
    """


class InterruptedRunError(FuelsError):
    """The user stopped the work; the command line exits with status 130, as shells expect."""
