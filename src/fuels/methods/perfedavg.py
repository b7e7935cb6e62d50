"""PerFedAvg: a model that is good after one step of adaptation.

Fallah et al., "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020. The federation minimises F(w) = sum_n f_n(w - alpha grad
f_n(w)). A local step takes up to three batches D, D', D'' (Algorithm 1 and Section 5 there):

    w~ = w - alpha grad f(w, D)                     adaptation
    g  = grad f(w~, D')                             first order (FO): w moves along g
    g - alpha (grad f(w + delta g, D'') - grad f(w - delta g, D'')) / (2 delta)
                                                    Hessian-free (HF): w moves along this

and the common optimiser updates w. With `outer = next`, the periods of a local epoch are used in
turn as (D, D') or (D, D', D''), each once, and the remainder is not used: 37 periods make 18 steps
of FO or 12 of HF. With `outer = every`, each period is D' once, D is the one before and D'' the one
after it, cyclically; FO with alpha = 0 is then exactly FedAvg. The server weights by sample counts,
which equals the paper's plain mean if clients have equally many samples.

Travels: the whole model, up and down, and |D_n| up. Stays: nothing. Evaluated: the global model
after `steps` adaptation steps on the client's last `steps` training periods, one each, in order of
time; a client without a value in such a period skips that step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fuels.errors import FuelsError
from fuels.methods.base import MODEL, Options, at_least, moved, one_of, positive, stacked
from fuels.methods.fedavg import FedAvg
from fuels.methods.messages import Arrays, Download
from fuels.model.network import Parts
from fuels.training.groups import Batch, Group


@dataclass(frozen=True)
class PerFedAvgOptions(Options):
    """The FUELS paper gives no values, but counts one step of adaptation before inference. alpha is
    from the experiments of Fallah et al.; delta, used only by the Hessian-free variant, is a common
    choice without a source. `every` makes as many steps in an epoch as FedAvg, with two gradients
    for each (Hessian-free: four), and was slightly better than `next` on days before any test day
    (20 Milan cells, 40 rounds on November, evaluated on 1-10 December: MSE 0.1054 against 0.1072;
    alpha 0.001 gave 0.1053, 0.1 gave 0.1099)."""

    variant: str = "fo"  # fo: first order, hf: Hessian-free
    alpha: float = 0.01  # adaptation rate
    delta: float = 0.001  # half the width of the finite difference
    outer: str = "every"  # periods of the outer gradient: next or every
    steps: int = 1  # adaptation steps before the model is evaluated


class PerFedAvg(FedAvg):
    name = "perfedavg"
    title = "PerFedAvg"
    Options = PerFedAvgOptions
    options: PerFedAvgOptions
    one_model = False
    remark = (
        "PerFedAvg needs two gradients for each step (Hessian-free: four) and is evaluated after"
        " {steps} adaptation step(s) on the client's newest training data; the default of its"
        " outer batches was chosen on days before any test day of Milan."
    )

    def check(self) -> None:
        options = self.options
        one_of(options, "variant", "fo", "hf")
        one_of(options, "outer", "next", "every")
        at_least(0, options, "alpha")
        positive(options, "delta")
        at_least(1, options, "steps")
        needed = self.batches_a_step if options.outer == "next" else 1
        there = self.facts.train_periods * self.facts.local_epochs
        if there < needed:
            raise FuelsError(
                f"perfedavg needs {needed} training periods for one step, but there are {there};"
                " set options.outer = every"
            )

    @property
    def batches_a_step(self) -> int:
        return 3 if self.options.variant == "hf" else 2

    def local(self, group: Group, download: Download) -> Arrays:
        group.install(download.shared)
        for inner, outer, third in self.turns(list(group.batches(self.facts.local_epochs))):
            loss, gradient = self.gradient(group, outer, self.adapted(group, inner))
            group.record(outer, prediction=loss)
            if self.options.variant == "hf":
                curvature = self.curvature(group, third, gradient)
                gradient = moved(gradient, curvature, -self.options.alpha)
            group.step(gradient, outer.active)
        return stacked(group.parts, self.shares)

    def model(self, group: Group, download: Download) -> Parts:
        """The global model, adapted to the client."""
        super().model(group, download)
        for batch in list(group.batches(1))[-self.options.steps :]:
            group.parts |= self.adapted(group, batch)
        return {name: group.parts[name] for name in MODEL}

    def adapted(self, group: Group, batch: Batch) -> Parts:
        """w - alpha grad f(w, D)."""
        _, gradient = self.gradient(group, batch, group.parts)
        return moved(group.parts, gradient, -self.options.alpha)

    def curvature(self, group: Group, batch: Batch, direction: Parts) -> Parts:
        """The Hessian of f at w times `direction`, from two gradients."""
        delta = self.options.delta
        _, ahead = self.gradient(group, batch, moved(group.parts, direction, delta))
        _, behind = self.gradient(group, batch, moved(group.parts, direction, -delta))
        return {name: (ahead[name] - behind[name]) / (2 * delta) for name in MODEL}

    def turns(self, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Batch, Batch]]:
        """The batches of each step: D, D', D''; first order does not use the third."""
        count, size = len(batches), self.batches_a_step
        if self.options.outer == "every":
            for i in range(count):
                yield batches[i - 1], batches[i], batches[(i + 1) % count]
        else:
            for i in range(0, count - size + 1, size):
                yield batches[i], batches[i + 1], batches[i + size - 1]
