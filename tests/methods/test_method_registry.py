"""Methods that other packages offer through the entry point group `fuels.methods`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from fuels.errors import FuelsError
from fuels.methods import registry
from fuels.methods.fedavg import FedAvg

Install = Callable[..., None]


class Installed(FedAvg):
    name = "installed"
    title = "Installed"


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs entry points `name="module:object"`, with a module `plugin` that holds methods."""
    module = ModuleType("plugin")
    module.Installed, module.number = Installed, 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "plugin", module)

    def offer(**values: str) -> None:
        points = [EntryPoint(name, value, registry.GROUP) for name, value in values.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: points)
        registry.installed_methods.cache_clear()

    yield offer
    registry.installed_methods.cache_clear()


def test_an_installed_method_is_listed_and_loaded(install: Install) -> None:
    install(installed="plugin:Installed")
    assert registry.method_names()[-1] == "installed"
    assert registry.find_method("installed") is Installed
    assert "installed" not in registry.METHODS  # `--methods all` stays the paper's


@pytest.mark.parametrize("value", ["plugin:number", "fuels.errors:FuelsError"])
def test_an_entry_point_must_name_a_subclass_of_method(install: Install, value: str) -> None:
    install(installed=value)
    with pytest.raises(FuelsError, match=f"^method installed: {value} is not a subclass of Method"):
        registry.find_method("installed")


@pytest.mark.parametrize("value", ["no_such_package:Method", "plugin:missing"])
def test_a_failing_import_is_one_sentence(install: Install, value: str) -> None:
    install(installed=value)
    with pytest.raises(FuelsError, match=f"^method installed: cannot load {value} "):
        registry.find_method("installed")


def test_an_entry_point_cannot_replace_a_built_in_method(install: Install) -> None:
    install(fedavg="plugin:Installed")
    assert registry.find_method("fedavg") is FedAvg
    assert registry.method_names().count("fedavg") == 1
