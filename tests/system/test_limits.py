"""Users at their limits, on a real daemon: refused clearly, nothing half kept, and other users, by the kernel's word, not affected."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from conftest_node import AS_ROOT, PATIENCE_S, Node, eventually, matmuls, named

from tools.cann_sim import records

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

STRANGER = 54321
SUBMITTER = """
import json, os, sys
from pathlib import Path
from npgxd.client import Client
from npgxd.errors import RequestRefused
from npgxd.wire.codec import pack_records
from npgxd.wire.messages import Submit
uid, ask, told = sys.argv[1:]
out = open(told, "w")
Client()._session._hello()  # another user may not be able to read what Python imports for it
if int(uid) != os.getuid():
    os.setgroups([]); os.setgid(int(uid)); os.setuid(int(uid))
session = Client()._session
answers = []
for items in json.loads(ask):
    name = os.urandom(16).hex()
    frames = pack_records([(label, text.encode()) for label, text in items])
    try:
        reply = session.request(Submit(round=name), frames).message
        answers.append({"round": name, "state": str(reply.state), "result": reply.result and str(reply.result.state)})
    except RequestRefused as refused:
        answers.append({"round": name, "refusal": refused.refusal, "message": refused.message, "hint": refused.hint})
out.write(json.dumps(answers))
out.close()
os._exit(0)
"""

pytestmark = AS_ROOT


def open_to_all(node: Node) -> None:
    """The socket and the place of this test, for processes of other users."""
    node.runtime.chmod(0o755)
    node.socket.chmod(0o666)


def submitted(node: Node, uid: int, *rounds: Any) -> list[dict[str, Any]]:
    """What a process of this user is answered; it ends then, and its rounds stay."""
    told: Path = node.directory / f"told{uid}"
    error = node.directory / f"submit{uid}.err"
    process: subprocess.Popen[bytes] = node.spawn("-c", SUBMITTER, str(uid), json.dumps(rounds), str(told), stderr=error)
    assert process.wait(PATIENCE_S) == 0, error.read_text()
    answers: list[dict[str, Any]] = json.loads(told.read_text())
    return answers


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"rounds": 2}, "has 2 unsettled rounds; at most 2 are allowed ([limits] rounds)"),
        ({"keys": 5}, "has 4 kernels under way, and asked for 2 more; at most 5 are allowed ([limits] keys)"),
        ({"queue": 5}, "4 kernels are under way on this node, of at most 5 ([limits] queue)"),
    ],
)
def test_a_user_at_a_limit_is_refused_and_another_is_served_and_nothing_is_lost(
    make_node: Callable[..., Node], limits: dict[str, int], says: str
) -> None:
    node = make_node()
    node.settings["limits"] = limits
    node.start()
    node.cann.order("*", "hang")
    open_to_all(node)
    uid = os.geteuid()
    first, second, refused = submitted(node, uid, matmuls(16, 32), matmuls(48, 64), matmuls(80, 96))
    assert [first["result"], second["result"]] == [None, None]
    assert refused["refusal"] == "LIMIT"
    assert says in refused["message"]
    assert "raise the limit" in refused["hint"]
    (other,) = submitted(node, STRANGER, matmuls(80, 96))
    assert other["result"] is None
    users = {user["uid"]: user["keys"] for user in (node.status() or {})["queue"]["users"]}
    assert users == {uid: 4, STRANGER: 2}
    journal = {path.stem for path in (node.state / "rounds").iterdir()}
    assert journal == {first["round"], second["round"], other["round"]}, "of what is refused, nothing is kept"
    node.kill()
    node.cann.cancel_orders()
    node.start()
    eventually(lambda: (node.status() or {})["kernels"]["count"] == 6, "all that was taken is compiled")
    eventually(lambda: (node.status() or {})["queue"]["users"] == [], "and then counts no longer")
    open_to_all(node)
    assert submitted(node, uid, matmuls(80, 96))[0]["result"] == "INSTALLED"


def test_an_operator_whose_constant_keeps_changing_is_capped_named_and_shown_and_a_large_start_up_is_not(
    make_node: Callable[..., Node],
) -> None:
    node = make_node()
    node.settings["limits"] = {"churn_const_data": 3, "churn_shapes": 3}
    node.start()
    startup = named(*records.many(40))
    changing = [named(records.reduce("ReduceSum", (16, 64), [2 * turn + 1])) for turn in range(5)]
    rank = node.rank([], options={"rounds": [startup, *changing, startup]})
    rounds = rank.outcome()["rounds"]
    assert [(r["state"], r["reason"]) for r in rounds] == [
        ("INSTALLED", "compiled"),
        *[("DEGRADED", "shadowed") if turn else ("INSTALLED", "compiled") for turn in range(3)],
        ("DEGRADED", "churn"),
        ("DEGRADED", "churn"),
        ("INSTALLED", "hit"),
    ]
    assert rounds[4]["failures"][0][:2] == ["ReduceSum", "capped"]
    assert "const_data changed in 3 rounds" in rounds[4]["detail"]
    assert "npgxctl status" in rounds[4]["hint"]
    (call,) = (node.status() or {})["churn"]
    assert (call["op_type"], call["what"], call["not_compiled"]) == ("ReduceSum", "const_data", 2)
    assert len(node.compiled()) == 43
