"""The table of served APIs: its names, keys and versions stand in the handlers' modules; nothing is imported early."""

import subprocess
import sys
from importlib import import_module
from typing import get_type_hints

import pytest

from stratalog.broker.apis import APIS
from stratalog.broker.broker import Broker


@pytest.mark.parametrize("key", sorted(APIS))
def test_a_handlers_module_opens_with_its_line_of_the_table(key: int) -> None:
    api = APIS[key]
    opening = (import_module(api.handler.handle.__module__).__doc__ or "").partition("\n")[0]
    low, high = api.served
    assert opening.startswith(f"{api.name} (key {key}), versions {low}-{high}"), opening


@pytest.mark.parametrize("key", sorted(APIS))
def test_a_handler_needs_parts_of_the_broker_by_their_names_and_types(key: int) -> None:
    module = import_module(APIS[key].handler.handle.__module__)
    offered, named = get_type_hints(Broker), APIS[key].handler.needs
    needs = get_type_hints(named)
    assert needs == {name: offered[name] for name in needs}
    assert f"{named.__module__}.Needs" in str(get_type_hints(module.handle)), (
        "its Needs type its calls"
    )


def test_a_node_imports_no_handler_and_no_codec_before_a_request() -> None:
    program = "import stratalog.node, sys; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = done.stdout.split()
    assert "stratalog.broker.apis" in loaded
    assert [
        name
        for name in loaded
        if name.startswith(("stratalog.broker.apis.", "stratalog.wire.codecs."))
    ] == []
