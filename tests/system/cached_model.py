"""A rank whose model has a cached method; it runs one round for each JSON order on its stdin: ``{"width": n, "cache": dir, "stall": file}``.

Each width is a graph of its own. The first process that builds one while ``stall`` names a file that is not there makes the file and
builds no further: it waits to be killed. It answers each order with one JSON line.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

from tests.uncollected import uncollected

with uncollected():
    import torch
    from torch import nn

    from npugraph_ex.inference import cache_compile, opening

_made = opening.making.made


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def method(self, x):
        return torch.relu(self.linear(x)) + 1


def stalled_by(stall):
    def made(*args, **kwargs):
        try:
            os.close(os.open(stall, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return _made(*args, **kwargs)
        Path(stall).write_text(str(os.getpid()))
        signal.pause()
        raise AssertionError

    return made


def round_of(order):
    torch.manual_seed(order["width"])
    net, x = Net(order["width"]), torch.randn(3, order["width"])
    opening.making.made = stalled_by(order["stall"]) if order.get("stall") else _made
    cached = cache_compile(net.method, cache_dir=order["cache"])
    equal = torch.equal(cached(x), net.method(x))
    digest = hashlib.sha256(cached.path.read_bytes()).hexdigest() if cached.path.exists() else ""
    return {"origin": cached.origin, "equal": equal, "digest": digest, "reason": cached.reason}


def main():
    print("{}", flush=True)  # noqa: T201 -- ready
    for line in sys.stdin:
        print(json.dumps(round_of(json.loads(line))), flush=True)  # noqa: T201 -- what its test reads
    os._exit(0)


if __name__ == "__main__":
    main()
