"""Cost formulas: the paper's numbers, hand counts, and what methods really declare and send."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from math import prod

import pytest
import typer
from typer.testing import CliRunner

from fuels.cli.cost import cost_command
from fuels.config import Settings, merge
from fuels.errors import FuelsError
from fuels.methods.registry import METHODS, find_method
from fuels.research.costs import COSTS, Sizes, appendix_pairs, costs
from fuels.runs.build import method_for
from fuels.runs.settings import resolve

PAPER = Sizes()


def test_numbers_of_the_paper_and_ours() -> None:
    found = {cost.method: cost for cost in costs(PAPER)}
    assert found["fuels"].up == 6144
    assert found["fuels"].down == 2 * 6144
    assert found["fedavg"].up == found["fedprox"].up == 100865
    assert found["fedrep"].up == 100608
    assert found["solo"].up == found["solo"].down == 0
    assert PAPER.iterations == 37


def test_options_of_the_methods_are_those_of_their_files() -> None:
    own = {
        field.name: field.default
        for name in ("fedrep", "perfedavg", "pfedme", "fedda")
        for field in fields(find_method(name).Options)
    }
    repeated = ("head_epochs", "variant", "outer", "inner_steps", "clusters", "week")
    assert {name: getattr(PAPER, name) for name in repeated} == {n: own[n] for n in repeated}


def test_batch_costs_by_hand() -> None:
    # H = 2, c = 2, q = 1, B = 3: 3 lags x 3 rows x 6 gates x (1 + 2) inputs
    small = Sizes(period=3, hidden=2, closeness=2, periodicity=1, train_periods=3, test_periods=1)
    assert small.encode == 3 * 3 * 6 * 3
    assert small.encode_back == small.encode + 1 * 3 * 6 * 2  # one state that is not the first
    assert small.filter == 9 * (4 + 1)
    assert small.decode == 3 * 4
    assert small.encoder == 2 * 6 * (1 + 2 + 2)
    assert small.model == small.encoder + 5
    assert small.iterations == 2


def test_appendix_formulas() -> None:
    fe, ff, fd, i = PAPER.encode, PAPER.filter, PAPER.decode, PAPER.iterations
    found = {cost.method: cost for cost in costs(PAPER)}
    assert found["fuels"].train_appendix == i * (3 * fe + 2 * ff + 2 * fd)
    assert found["fedavg"].train_appendix == 2 * i * (fe + fd)
    assert found["fedrep"].train_appendix == 2 * i * (fe + fd)
    assert found["perfedavg"].train_appendix == 6 * i * (fe + fd)
    assert found["perfedavg"].infer_appendix == (11 + 2) * (fe + fd)
    assert found["fedavg"].infer_appendix == 11 * (fe + fd)
    assert found["pfedme"].train_appendix is None
    # (1 - 1/2) 100^2 - 100/2 divergences; 1 is what it prints for a mean.
    servers = {name: cost.server_appendix for name, cost in found.items()}
    assert servers["fuels"] == 4950 and servers["fedavg"] == servers["perfedavg"] == 1
    assert servers["pfedme"] is servers["solo"] is None
    [few] = costs(Sizes(clients=8, selection=0.3), ["fuels"])
    assert few.server_appendix == pytest.approx(15.12) and few.pairs == 2 * 6 + 1


@pytest.mark.parametrize(("clients", "selection"), [(100, 1.0), (100, 0.1), (40, 0.25)])
def test_pairs_are_those_of_the_appendix(clients: int, selection: float) -> None:
    [cost] = costs(Sizes(clients=clients, selection=selection), ["fuels"])
    assert cost.pairs == pytest.approx(appendix_pairs(clients, selection))


def test_all_clients_means_all_pairs() -> None:
    [cost] = costs(PAPER, ["fuels"])
    assert cost.pairs == 100 * 99 // 2


def test_totals_count_round_one_with_everyone() -> None:
    sizes = Sizes(clients=10, rounds=3, selection=0.5)
    found = {cost.method: cost for cost in costs(sizes)}
    assert found["fedavg"].total_up == (10 + 2 * 5) * 100865
    assert found["fuels"].total_up == (10 + 2 * 5) * 6144
    assert found["fuels"].total_down == 2 * 5 * 12288  # nothing comes down in round 1
    assert found["fuels"].bytes_total == 4 * (20 * 6144 + 10 * 12288)
    assert found["fedda"].total_up == 10 * (6 * 24 + 3) + 2 * 5 * 100865


def test_fedda_has_its_own_share_of_clients() -> None:
    found = {cost.method: cost for cost in costs(PAPER)}
    assert (found["fedda"].chosen, found["fedavg"].chosen) == (10, 100)


@pytest.mark.parametrize("hidden", [4, 128])
@pytest.mark.parametrize("name", list(COSTS))
def test_formulas_agree_with_what_methods_declare(name: str, hidden: int) -> None:
    settings = merge(Settings(), {"method": name, "model": {"hidden": hidden}}, "test")
    method = method_for(resolve(settings), periods=37)
    [cost] = costs(Sizes(hidden=hidden), [name])
    assert cost.up == sum(prod(sent.shape) for sent in method.uploads(2).values())
    assert cost.down == sum(prod(sent.shape) for sent in method.downloads().values())
    assert cost.title == method.title
    assert cost.chosen == round(100 * method.complete(settings.training).selection)


def test_costs_are_of_known_methods() -> None:
    assert set(COSTS) <= set(METHODS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients": 0}, "clients must be at least 1"),
        ({"selection": 1.5}, "share of clients"),
        ({"selection": -0.1}, "share of clients"),
        ({"train_periods": 3}, "leave none to learn from"),
        ({"hidden": -2}, "hidden must be at least 1"),
        ({"variant": "second"}, "fo or hf"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, float], words: str) -> None:
    with pytest.raises(FuelsError, match=words):
        replace(PAPER, **change)


def test_unknown_method_is_refused() -> None:
    with pytest.raises(FuelsError, match="did you mean fedavg"):
        costs(PAPER, ["fedavgg"])


def command(*arguments: str, status: int = 0) -> str:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(cost_command)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.output if status else result.stdout


def test_command_prints_json() -> None:
    content = json.loads(
        command("--clients", "10", "--rounds", "3", "--selection", "0.5", "--json")
    )
    assert content["methods"]["fuels"]["bytes_total"] == 4 * (20 * 6144 + 10 * 12288)
    assert content["sizes"]["FE"] == PAPER.encode


def test_command_prints_tables() -> None:
    shown = command("--methods", "fuels,fedavg")
    assert "6,144" in shown
    assert "100,865" in shown
    assert "FedRep" not in shown
    assert command("--methods", "fuels,fedavg,fuels") == shown


def test_command_refuses_no_methods() -> None:
    with pytest.raises(FuelsError, match="no method is named"):
        command("--methods", ",")


@pytest.mark.parametrize("words", ["--epochs 0", "--test-days 0", "--period 1", "--selection 2"])
def test_command_names_the_option_that_is_wrong(words: str) -> None:
    option, _ = words.split()
    assert option in command(*words.split(), status=2)
