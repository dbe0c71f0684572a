"""A rank without torch, run as a process by the tests: it submits records, writes down what it got, and lives until stdin closes."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path

from npgxd import __version__
from npgxd.client import Client, Patience
from npgxd.wire.messages import CompileOptions
from tools.cann_sim.reader import Reader


def main(ask: str, report: str) -> None:
    logging.basicConfig(level="INFO")
    wanted = json.loads(Path(ask).read_text())
    client = Client(patience=Patience(**wanted.get("patience", {})))
    reader = Reader(wanted.get("soc", "Ascend910B3"))
    rounds = []
    for number, items in enumerate(wanted.get("rounds") or [wanted["records"]]):
        while number and "pause" in wanted and not Path(wanted["pause"]).exists():
            time.sleep(0.02)
        records = [(name, text.encode()) for name, text in items]
        client.recording("0")
        outcome = client.static_kernels(
            records,
            graph="0",
            options=CompileOptions(super_kernel=wanted.get("super_kernel", {})),
            recompile=wanted.get("recompile", False),
            deadline_s=wanted.get("deadline_s"),
        )
        if outcome.view is not None:
            reader.load(outcome.view)
        elif outcome.root is not None:
            reader.load_default(os.environ)
        rounds.append(
            {
                "state": str(outcome.state),
                "reason": str(outcome.reason),
                "detail": outcome.detail,
                "hint": outcome.hint,
                "records": outcome.records,
                "unique": outcome.unique,
                "hits": outcome.hits,
                "compiled": outcome.compiled,
                "rejected": [[item.name, item.reason] for item in outcome.rejected],
                "failures": [[item.op_type, str(item.outcome), item.reason] for item in outcome.failures],
                "shadowed": [[item.op_type, item.reason] for item in outcome.shadowed],
                "strategy": str(outcome.strategy),
                "root": None if outcome.root is None else str(outcome.root),
                "view": None if outcome.view is None else str(outcome.view),
                "packages": [name for name, _path in outcome.packages],
                "gathered": sorted(name for name, _raw in client.gathered(outcome.round)),
            }
        )
    rejected = {name for done in rounds for name, _reason in done["rejected"]}
    submitted = {
        text.encode() for items in wanted.get("rounds") or [wanted["records"]] for name, text in items if name not in rejected
    }
    check = reader.check(sorted(submitted))
    told = {
        "npgxd": __version__,
        **rounds[-1],
        "rounds": rounds,
        "missing": len(check.missing),
        "extra": len(check.extra),
        "torn": len(check.torn),
    }
    temporary = Path(f"{report}.new")
    temporary.write_text(json.dumps(told))
    temporary.rename(report)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
