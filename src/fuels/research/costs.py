"""What a round costs: numbers sent, and operations of clients and server, by formula.

The paper's table (Appendix C.3) counts in FE, FF and FD, the cost of encoder, filtering and decoder
for one batch in the forward direction, and assumes that a backward pass costs as much as a forward
pass. Its entries are `Cost.train_appendix` and `Cost.server_appendix`. `Cost.train` and
`Cost.server` count what this package computes: a backward pass has one product for the weights and
one for the states, so it costs up to twice the forward pass. Operations are multiply-adds of matrix
products; element-wise work is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuels.config import Model, Training, Windows, nearest
from fuels.errors import FuelsError
from fuels.methods.registry import find_method

BYTES = 4  # of one float32


def _default(method: str, option: str) -> Any:
    """A field with the default of a method's option, which is defined in the method's file."""
    return field(default_factory=lambda: getattr(find_method(method).Options, option))


@dataclass(frozen=True)
class Sizes:
    """The sizes of a federation, by the paper's letters; defaults are the paper's."""

    clients: int = 100  # N
    period: int = Windows.period  # p, and the rows B of a batch
    hidden: int = Model.hidden  # width of one GRU
    head: str = Model.head  # what the decoder reads
    closeness: int = Windows.closeness  # c
    periodicity: int = Windows.periodicity  # q
    train_periods: int = 40  # periods of the training part
    test_periods: int = 11  # I': batches of the test part
    rounds: int = Training.rounds  # T
    selection: float = Training.selection  # alpha; 0: the method's own
    local_epochs: int = Training.local_epochs
    head_epochs: int = _default("fedrep", "head_epochs")
    variant: str = _default("perfedavg", "variant")  # fo: first order, hf: Hessian-free
    outer: str = _default("perfedavg", "outer")  # which periods make a step: every, or next
    inner_steps: int = _default("pfedme", "inner_steps")
    clusters: int = _default("fedda", "clusters")
    week: int = _default("fedda", "week")

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int) and value < 1:
                raise FuelsError(f"{name} must be at least 1; it is {value}")
        if self.variant not in ("fo", "hf"):
            raise FuelsError(f"variant must be fo or hf, not {self.variant}")
        if self.outer not in ("next", "every"):
            raise FuelsError(f"outer must be next or every, not {self.outer}")
        if not 0 <= self.selection <= 1:
            raise FuelsError(
                f"selection is the share of clients per round, at most 1, or 0 for the method's"
                f" own; it is {self.selection}"
            )
        if self.sampled_periods < 1:
            raise FuelsError(
                f"{self.train_periods} training periods leave none to learn from: the first"
                f" {self.reach} only feed the windows"
            )

    @property
    def reach(self) -> int:
        """Periods at the start that only feed the windows."""
        return -(-max(self.closeness, self.periodicity * self.period) // self.period)

    @property
    def sampled_periods(self) -> int:
        return self.train_periods - self.reach

    @property
    def iterations(self) -> int:
        """I: batches a client goes through in a round."""
        return self.sampled_periods * self.local_epochs

    @property
    def width(self) -> int:
        """d_r: the states of both GRUs side by side."""
        return 2 * self.hidden

    @property
    def encoder(self) -> int:
        """|delta|: two GRUs with one input each."""
        return 2 * 3 * self.hidden * (1 + self.hidden + 2)

    @property
    def model(self) -> int:
        """|w| = |delta| + |phi|; phi reads r, or the sum of the states of both GRUs."""
        return self.encoder + (self.hidden if self.head == "sum" else self.width) + 1

    @property
    def prototype(self) -> int:
        return self.period * self.width

    def chosen(self, own: float) -> int:
        """N alpha: clients that train in a round after the first."""
        return max(1, round((self.selection or own) * self.clients))

    # -- one batch -----------------------------------------------------------------------------

    @property
    def encode(self) -> int:
        """FE: at every lag, input and state of every row times the three gates' weights."""
        gates = 3 * self.hidden
        return (self.closeness + self.periodicity) * self.period * gates * (1 + self.hidden)

    @property
    def encode_back(self) -> int:
        """The same products for the weights, and those for the states before the last lag."""
        later = self.closeness + self.periodicity - 2  # the first state is a constant
        return self.encode + later * self.period * 3 * self.hidden * self.hidden

    @property
    def filter(self) -> int:
        """FF: the similarity of every row with every augmented row, and the product with W."""
        return self.period**2 * (self.width + 1)

    @property
    def decode(self) -> int:
        """FD."""
        return self.period * self.width

    @property
    def gradient(self) -> int:
        """Forward and backward pass of the prediction loss, really."""
        return self.encode + self.encode_back + 3 * self.decode

    @property
    def pass_appendix(self) -> int:
        """The same as the appendix counts it: 2 (FE + FD)."""
        return 2 * (self.encode + self.decode)


@dataclass(frozen=True)
class Cost:
    """What a method costs in a round after the first, and in numbers over all rounds."""

    method: str
    title: str
    chosen: int  # clients that train in the round
    up: int  # numbers a client sends
    down: int  # numbers a client gets
    train_appendix: int | None  # of a client; None where the appendix has no formula
    train: int  # of a client
    infer_appendix: int | None  # of a client, over the test part
    infer: int
    server_appendix: float | None  # the appendix's entry for the server; see `appendix_pairs`
    server: int  # of the server
    pairs: int  # divergences the server computes
    total_up: int  # numbers of all clients over all rounds
    total_down: int

    @property
    def server_down(self) -> int:
        """Numbers the server sends in a round."""
        return self.chosen * self.down

    @property
    def total(self) -> int:
        return self.total_up + self.total_down

    @property
    def bytes_total(self) -> int:
        return BYTES * self.total


def _solo(s: Sizes) -> dict[str, Any]:
    return {"up": 0, "down": 0}


def _fedavg(s: Sizes) -> dict[str, Any]:
    return {"up": s.model, "down": s.model, "train_appendix": s.iterations * s.pass_appendix}


def _fedprox(s: Sizes) -> dict[str, Any]:
    """The distance to the global model is element-wise, so the products are FedAvg's."""
    return {"up": s.model, "down": s.model}


def _fedrep(s: Sizes) -> dict[str, Any]:
    """Two phases: the head's has no backward pass through the encoder, the body's none to phi."""
    head = s.head_epochs * s.sampled_periods * (s.encode + 2 * s.decode)
    body = s.iterations * (s.gradient - s.decode)
    return _fedavg(s) | {"up": s.encoder, "down": s.encoder, "train": head + body}


def _perfedavg(s: Sizes) -> dict[str, Any]:
    """First order takes two batches and two gradients a step, Hessian-free three and four.

    With outer = every each batch makes a step once, with next it is used once. The appendix counts
    three gradients a step in either case.
    """
    batches, gradients = (2, 2) if s.variant == "fo" else (3, 4)
    steps = s.iterations if s.outer == "every" else s.iterations // batches
    return _fedprox(s) | {
        "train_appendix": 3 * steps * s.pass_appendix,
        "train": gradients * steps * s.gradient,
        "adaptation": 1,
    }


def _pfedme(s: Sizes) -> dict[str, Any]:
    return _fedprox(s) | {"train": s.inner_steps * s.iterations * s.gradient}


def _fedda(s: Sizes) -> dict[str, Any]:
    """In round 1 a client sends the augmented set and its location and receives nothing."""
    weeks = -(-s.sampled_periods // s.week)
    chosen = s.chosen(find_method("fedda").own_selection)
    # Attention inside the clusters and across them: a norm and a weighted sum over each model.
    server = 2 * s.model * (chosen + min(s.clusters, chosen))
    return _fedprox(s) | {"server": server, "first_up": weeks * s.period + 3, "first_down": 0}


def _fuels(s: Sizes) -> dict[str, Any]:
    """Raw and augmented rows are encoded, and the gradient flows back through both."""
    batch = 2 * (s.encode + s.encode_back) + 3 * s.decode
    similarity = 3 * s.period**2 * s.width  # forward, and backward to both views
    chosen = s.chosen(find_method("fuels").own_selection)
    pairs = chosen * (s.clients - chosen) + chosen * (chosen - 1) // 2
    return {
        "up": s.prototype,
        "down": 2 * s.prototype,
        "train_appendix": s.iterations * (3 * s.encode + 2 * s.filter + 2 * s.decode),
        "train": s.iterations * (batch + similarity),
        # A divergence goes once through two prototypes; PR_n and NR_n are means over N of them.
        "server": (pairs + 2 * chosen * s.clients) * s.prototype,
        "server_appendix": appendix_pairs(s.clients, s.selection or 1.0),
        "pairs": pairs,
        "first_down": 0,
    }


def _cost(s: Sizes, method: str, own: dict[str, Any]) -> Cost:
    """A method's own entries and what most methods share: FedAvg's training and averaging."""
    kind, up, down = find_method(method), own["up"], own["down"]
    chosen, tested = s.chosen(kind.own_selection), s.test_periods * (s.encode + s.decode)
    later = (s.rounds - 1) * chosen  # in round 1 every client takes part
    appendix, adaptation = own.get("train_appendix"), own.get("adaptation", 0)
    one = None if appendix is None else 1  # as printed there: one mean
    return Cost(
        method=method,
        title=kind.title,
        chosen=chosen,
        up=up,
        down=down,
        train_appendix=appendix,
        train=own.get("train", s.iterations * s.gradient),
        infer_appendix=None if appendix is None else tested + adaptation * s.pass_appendix,
        infer=tested + adaptation * s.gradient,
        server_appendix=own.get("server_appendix", one),
        server=own.get("server", chosen * up),
        pairs=own.get("pairs", 0),
        total_up=s.clients * own.get("first_up", up) + later * up,
        total_down=s.clients * own.get("first_down", down) + later * down,
    )


COSTS: dict[str, Callable[[Sizes], dict[str, Any]]] = {
    "fuels": _fuels,
    "solo": _solo,
    "fedavg": _fedavg,
    "fedprox": _fedprox,
    "fedrep": _fedrep,
    "perfedavg": _perfedavg,
    "pfedme": _pfedme,
    "fedda": _fedda,
}


def costs(sizes: Sizes, methods: Sequence[str] = tuple(COSTS)) -> list[Cost]:
    """The costs of these methods, in this order."""
    return [_cost(sizes, name, _formula(name)(sizes)) for name in methods]


def known(methods: str) -> list[str]:
    """Comma-separated methods, or all that have a formula."""
    if methods.strip(" ,") == "all":
        return list(COSTS)
    names = list(dict.fromkeys(word.strip() for word in methods.split(",") if word.strip()))
    if not names:
        raise FuelsError("methods: no method is named")
    for name in names:
        _formula(name)
    return names


def _formula(name: str) -> Callable[[Sizes], dict[str, Any]]:
    if name not in COSTS:
        raise FuelsError(f"there is no cost formula for method {name}{nearest(name, COSTS)}")
    return COSTS[name]


def appendix_pairs(clients: int, selection: float) -> float:
    """The appendix's server entry for FUELS: (alpha - alpha^2 / 2) N^2 - alpha N / 2.

    It is the number of divergences computed in a round, up to the rounding of alpha N.
    """
    return (selection - selection**2 / 2) * clients**2 - selection * clients / 2
