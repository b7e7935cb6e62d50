"""What can go wrong and is not a bug: one sentence a person can act on."""


class FuelsError(Exception):
    """Bad input or a failed step; the message is one clear sentence naming the place.

    The command line prints the message alone and exits with status 1, so a message says what was
    found, where (file, client, round or option), and what to do about it.
    """


class InterruptedRunError(FuelsError):
    """The user stopped the work; the command line exits with status 130, as shells expect."""
