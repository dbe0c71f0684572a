from __future__ import annotations

import json

from npgxd.oplib.pins import Pins
from tests.store.made import digest


def test_a_pin_survives_and_names_keys(oplib):
    pins = Pins(oplib.house.state)
    pins.put("job/abcd", [digest("b"), digest("a"), digest("a")], 5.0)
    again = Pins(oplib.house.state)
    assert again.keys() == {digest("a"), digest("b")}
    (pin,) = again.all()
    assert (pin.name, pin.at, pin.keys) == ("job/abcd", 5.0, tuple(sorted([digest("a"), digest("b")])))
    assert again.remove("job/abcd")
    assert not again.remove("job/abcd")
    assert Pins(oplib.house.state).keys() == frozenset()


def test_pinned_again_is_replaced(oplib):
    pins = Pins(oplib.house.state)
    pins.put("ab12", [digest("a")], 1.0)
    pins.put("ab12", [digest("b")], 2.0)
    assert Pins(oplib.house.state).keys() == {digest("b")}


def test_a_damaged_pin_is_set_aside_by_name_and_the_others_hold(oplib):
    pins = Pins(oplib.house.state)
    pins.put("ab12", [digest("a")], 1.0)
    pins.put("cd34", [digest("b")], 1.0)
    path = next(path for path in (oplib.house.path / "pins").iterdir() if "ab12" in path.read_text())
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "keys": []}))
    assert pins.damaged() == ["ab12"]
    again = Pins(oplib.house.state)
    assert again.keys() == {digest("b")}
    assert again.problems == [f"pins/{path.name}: its bytes are not those that were written"]
    assert any(path.name in kept.name for kept in oplib.house.state.quarantine.iterdir())
    pins.rewrite("ab12")
    assert Pins(oplib.house.state).keys() == {digest("a"), digest("b")}


def test_a_pin_whose_name_is_a_path_stays_in_its_place(oplib):
    Pins(oplib.house.state).put("../../x/y", [digest("a")], 1.0)
    assert len(list((oplib.house.path / "pins").iterdir())) == 1
