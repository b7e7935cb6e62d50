"""The sites' keys at the SuperLink: what it has registered, and making that what server.toml says.

Flower's own list is the only one: a note of ours would be wrong as soon as the database is lost or
comes from a backup. Flower keeps a key that was taken back for ever and never accepts it again.
"""

from __future__ import annotations

from fuels.errors import FuelsError
from fuels.federation.flower import commands
from fuels.federation.flower.control import TAKEN_BACK, Node, registered
from fuels.federation.flower.parties import ServerFolder, key_of, log


def register_keys(folder: ServerFolder) -> bool:
    """Make the SuperLink accept the keys in server.toml and no others.

    Returns whether all was done that can be done; what Flower failed at may be tried again.
    """
    done = True
    sites = {name: key_of(line) for name, line in folder.config.sites.items()}
    nodes = registered(folder)
    for key, node in nodes.items():
        if key in sites.values() or node.status == TAKEN_BACK:
            continue
        answer = commands.call(commands.unregister(node.number), folder)
        if answer.get("success"):
            log.info("the key of node %s, not in server.toml, is taken back", node.number)
        else:
            message = answer.get("error-message", "")
            log.error("the key of node %s could not be taken back: %s", node.number, message)
            done = False
    folder.keys.mkdir(exist_ok=True)
    for name, key in sorted(sites.items()):
        if key not in nodes:
            done &= _register(folder, name, key)
        elif nodes[key].status == TAKEN_BACK:
            log.error("%s", worn_out(name))
    return done


def _register(folder: ServerFolder, name: str, key: str) -> bool:
    file = folder.keys / f"{name}.pub"
    file.write_text(key + "\n", encoding="ascii")
    answer = commands.call(commands.register(file, name), folder)
    if answer.get("success"):
        log.info("the key of site %s is registered", name)
        return True
    message = answer.get("error-message", "")
    log.error("the key of site %s could not be registered: %s", name, message)
    return False


def worn_out(site: str) -> str:
    """What to tell the operator of a key that was taken out of server.toml and put back."""
    return (
        f"site {site} is not let in: its key was taken back before, and Flower never accepts such a"
        " key again; the site makes a new one with fuels site renew-key, and the server gets it"
        " with fuels server admit"
    )


def states(folder: ServerFolder) -> dict[str, str]:
    """What Flower says of each site; it lists a dead one as online for a minute or so."""
    try:
        nodes = registered(folder)
    except FuelsError:
        return dict.fromkeys(folder.config.sites, "unknown")
    found = {}
    for name, line in folder.config.sites.items():
        node = nodes.get(key_of(line), Node("", "not registered"))
        found[name] = worn_out(name) if node.status == TAKEN_BACK else node.status
    return found
