"""The sentences below the table of a run, each derived from its summary (`summary.json`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fuels.evaluation.outcome import SOLO_NOTHING_SHARED
from fuels.evaluation.summary import NO_TARGETS
from fuels.report.style import join, number, short

Summary = Mapping[str, Any]  # the content of summary.json

NAMED = 3  # clients in a sentence
WHY_EXCLUDED = "their uploads were refused or left out too often"
BEATEN = "Note"  # label of the sentence that a reference does better


def facts(summary: Summary, folder: Path | None = None) -> dict[str, str]:
    """The sentences below the table, by label."""
    data, found = summary["data"], dict[str, str]()
    if summary["scores"]:
        found |= _plain_errors(summary)
        found |= _against_references(summary)
        found |= _mixture(summary)
        found |= _inputs(summary)
        found |= _sharing(summary)
    else:
        why = f"the test part {NO_TARGETS}" if data["test_steps"] else "there is no test part"
        found["No errors"] = f"{why}, so there is nothing to compare"
    if data.get("parts"):
        found["Dates"] = _dates(data["parts"])
    if summary["rounds"] and "totals" in summary:  # a site does not know what all clients sent
        found["Sent"] = _sent(summary)
    found["Model kept"] = kept_model(summary)
    if failures := summary.get("failures", {}).get("count", 0):
        replies = "1 reply" if failures == 1 else f"{number(failures)} replies"
        first = summary["failures"]["first"]
        found["Failures"] = f"{replies} missing or refused; the first: {first}"
    if summary.get("excluded"):
        found["Excluded"] = f"{', '.join(summary['excluded'])}: {WHY_EXCLUDED}"
    if unused := summary.get("unused_uploads"):
        found["Not used"] = _unused(unused, summary["rounds"])
    if data["left_out"]:
        found["Left out"] = _left_out(data["left_out"])
    if (notes := data.get("notes")) and not data["synthetic"]:  # which has a line below
        found["Reading"] = "; ".join(notes)
    if data["values_filled"]:
        filled = count_of(data["values_filled"], "missing value")
        found["Filled"] = f"{filled}, none of them a target"
    if data["synthetic"]:
        found["Synthetic data"] = "the errors say nothing about a real network"
    if folder is not None:
        found["Results"] = str(folder)
    return found


def _inputs(summary: Summary) -> dict[str, str]:
    """The external inputs, and how far the mixture trusts the experts that use them."""
    names = summary["data"].get("inputs")
    share = summary.get("mixture", {}).get("inputs")
    if not names:
        return {}
    if share is None:
        return {"External inputs": join(names)}
    trust = f"the experts that use them had {100 * share:.0f} % of the weight"
    return {"External inputs": f"{join(names)}; on the test part, {trust}"}


def _plain_errors(summary: Summary) -> dict[str, str]:
    """Mean errors of the method and its rival in the data's unit and as a share of the values."""
    shares = summary.get("wape", {})
    named = {summary["title"]: summary["title"]}
    if (best := summary.get("best_reference")) is not None:
        named[best] = f"{best}, the best reference"
    unit = f" {unit_name(summary['data'])}".rstrip()
    said = []
    for name, words in named.items():
        if name not in summary["scores"]:
            continue
        error = f"{number(summary['scores'][name]['mae_unit'], 3)}{unit}"
        share = shares.get(name)
        of = "" if share is None else f", or {number(100 * share, 3)} % of the values (WAPE)"
        said.append(f"{words}: {error} on average{of}")
    return {"Error": "; ".join(said)}


def _dates(parts: Mapping[str, Sequence[str]]) -> str:
    words = {"train": "training", "val": "validation", "test": "test"}
    return ", ".join(f"{words[name]} {first} to {last}" for name, (first, last) in parts.items())


def _unused(rounds: Mapping[str, int], of: int) -> str:
    """Whose uploads the server left out, most often first."""
    most = sorted(rounds.items(), key=lambda item: -item[1])
    named = ", ".join(f"{client} in {count}" for client, count in most[:NAMED])
    more = ", and others" if len(most) > NAMED else ""
    return f"uploads of {named}{more} of {of} rounds, too far from the others (defence.admission)"


def _against_references(summary: Summary) -> dict[str, str]:
    """The comparison with the best reference, and the references that do better."""
    title, best = summary["title"], summary.get("best_reference")
    if best is None:
        return {}
    share = f"{100 * summary['share_better_than_best_reference']:.0f} % of the clients"
    if of := summary.get("clients_compared"):  # version 0.1.0 wrote only the share
        share += f" ({summary['clients_better_than_best_reference']} of {of})"
    found = {"Comparison": f"{title} beats {best}, the best reference, for {share}"}
    means = {name: scores["mse"] for name, scores in summary["scores"].items()}
    ahead = [name for name, mse in means.items() if mse < means[title]]
    if ahead:
        verb = "has" if len(ahead) == 1 else "have"
        found[BEATEN] = f"{join(ahead)} {verb} a lower mean MSE than {title} on these data"
    return found


def _mixture(summary: Summary) -> dict[str, str]:
    """The experts' errors and weights, and the coverage of the intervals."""
    mixture, title = summary.get("mixture"), summary["title"]
    if mixture is None:
        return {}
    experts, best = mixture["experts"], mixture["best_expert"]
    others = count_of(len(experts) - 1, "expert")
    return {
        "Experts": f"{title} mixes its model with {others}; the best of these"
        f" {len(experts)} on its own is {best} (MSE {number(experts[best]['mse'])}); the model"
        f" had the largest weight in {100 * mixture['model_led']:.0f} % of all steps",
        "Intervals": _intervals(mixture),
        **_range(mixture.get("limits")),
    }


def _intervals(mixture: Summary) -> str:
    """Coverage, overall and how it varies, and width."""
    said = []
    for level, found in mixture["intervals"].items():
        more = [f"mean width {number(found['width'])}"]
        if found.get("by_client"):  # runs of older versions have no more
            shares = [share for share in found["by_phase"] if share is not None]
            clients = (found["by_client"]["5 %"], found["by_client"]["95 %"])
            more.insert(0, f"{_percent(min(shares), max(shares))} by time of the period")
            more.insert(1, f"{_percent(*clients)} for nine in ten clients")
        said.append(
            f"the {level} % intervals contained {100 * found['coverage']:.1f} % of the actual"
            f" values ({', '.join(more)})"
        )
    if "pinball" in mixture:
        said.append(f"mean pinball loss of their bounds {number(mixture['pinball'])}")
    return "; ".join(said)


def _percent(low: float, high: float) -> str:
    return f"{100 * low:.0f} to {100 * high:.0f} %"


def _range(limits: Summary | None) -> dict[str, str]:
    """What forecasts and intervals are confined to, if anything."""
    if limits is None or (limits["at_least"] is None and limits["at_most"] is None):
        return {}
    names = {"at least": limits["at_least"], "at most": limits["at_most"]}
    bounds = join([f"{name} {value:g}" for name, value in names.items() if value is not None])
    why = ", because no training value is negative (--at-least none turns this off)"
    return {"Range": f"forecasts and intervals are {bounds}{why if limits['detected'] else ''}"}


def _sharing(summary: Summary) -> dict[str, str]:
    """The gain of federation, and the amount sent for it."""
    sharing, title = summary.get("sharing"), summary["title"]
    if sharing is None:
        return {}
    if not sharing["used"]:
        return {"Sharing": f"nothing was shared as sums: {sharing['note']}"}
    missing = f"; {sharing['note']}" if sharing["note"] else ""
    found = {"Shared sums": sums_sent(sharing["sent"]) + missing}
    if "privacy" in summary:
        found["Privacy"] = guaranteed(summary["privacy"])
    if "mse_change" in sharing:
        change, better = sharing["mse_change"], sharing["clients_better"]
        of, direction = sharing["clients_compared"], "lower" if change < 0 else "higher"
        alone = sharing["compared_with"] == SOLO_NOTHING_SHARED
        model = "part of the difference is due to the model, which each client could also train"
        more = "" if alone else f"; {model} alone (--method solo)"
        found = {
            "Federation": f"the MSE of {title} is {100 * abs(change):.1f} % {direction} than that"
            f" of {sharing['compared_with']}, and lower for {100 * better / of:.0f} % of the"
            f" clients ({better} of {of}); paired Wilcoxon test: {_p(sharing['p_clients'])} over"
            f" clients, {_p(sharing['p_days'])} over"
            f" {count_of(sharing['days_compared'], 'period')}{more}",
            **found,
        }
    return found


RELATIONS = {"removed": "were missing", "replaced": "were any others"}


def guaranteed(privacy: Mapping[str, Any]) -> str:
    """The guarantee for sums, and how much of it has been used."""
    unit = "client" if privacy["unit"] == "client" else f"{privacy['unit']} of one client"
    times, spent = f"{math.exp(privacy['epsilon']):.2g}", ""
    if "epsilon_spent" in privacy:
        spent = f" (spent: epsilon {privacy['epsilon_spent']:.2f})"
    return (
        f"everything shared is differentially private with epsilon {privacy['epsilon']:g} and delta"
        f" {privacy['delta']:g} for one {unit}: if these values {RELATIONS[privacy['relation']]},"
        f" the probability that the same is sent would change by at most a factor of {times}{spent}"
    )


def sums_sent(numbers: Mapping[str, int]) -> str:
    """How many numbers each client sends for the sums that experts use."""
    sent = []
    if "statistics" in numbers:
        sent.append(f"{number(numbers['statistics'])} numbers once")
    if "own_mean_day" in numbers:
        sent.append(f"{number(numbers['own_mean_day'])} numbers of its own mean day")
    if "mean_day" in numbers:
        sent.append(f"{number(numbers['mean_day'])} numbers of the mean day")
    if "live_mean_per_step" in numbers:
        sent.append(f"{number(numbers['live_mean_per_step'])} at each step")
    return f"each client sends {join(sent)}"


def _p(value: float | None) -> str:
    if value is None:
        return "no difference"
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _sent(summary: Summary) -> str:
    """What was sent in the last round and in all rounds; it may change between rounds."""
    last, clients = summary["per_client_and_round"], summary["data"]["clients"]
    keys = ("numbers_up", "numbers_down")
    up, down = (number(round(last[key])) for key in keys)
    every = [number(round(summary["totals"][key] / clients)) for key in keys]
    rounds = count_of(summary["rounds"], "round")
    return (
        f"{up} numbers up and {down} down per participating client in the last round;"
        f" on average {every[0]} up and {every[1]} down per client in {rounds}"
    )


def kept_model(summary: Summary) -> str:
    """The round whose model the errors belong to."""
    why = summary["kept_last_because"]
    said = {
        "best": "the best one on the validation part",
        "last": f"the last one, {why}",
        "untrained": "the initial one, because they never trained",
    }
    kept = {kind: count for kind, count in summary["kept_clients"].items() if count}
    if len(kept) == 1:
        return said[next(iter(kept))]
    every = count_of(sum(kept.values()), "client")
    return "; ".join(f"{said[kind]}, for {number(n)} of {every}" for kind, n in kept.items())


def _left_out(reasons: Mapping[str, str], shown: int = 3) -> str:
    named = [f"{short(client)} ({reason})" for client, reason in list(reasons.items())[:shown]]
    more = len(reasons) - len(named)
    end = f" and {more} more" if more else ""
    return f"{count_of(len(reasons), 'client')}: {', '.join(named)}{end}"


def unit_name(data: Mapping[str, Any], unknown: str = "") -> str:
    """The unit of the values, if it is known."""
    return unknown if data["unit"] == "value" else str(data["unit"])


def percentage(share: float | None) -> float | None:
    """A share as a percentage, for a cell of a table."""
    return None if share is None else 100 * share


def count_of(count: int, thing: str) -> str:
    return f"{number(count)} {thing}{'' if count == 1 else 's'}"
