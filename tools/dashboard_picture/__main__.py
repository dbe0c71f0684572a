"""``python -m tools.dashboard_picture OUT.png``: needs ``prometheus``, ``chromium``, ``node`` and ``npm``, and some minutes."""

from __future__ import annotations

import argparse
import http.server
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.cann_sim import records
from tools.demo.children import Children
from tools.screens.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE: Final = Path(__file__).parent
DASHBOARD: Final = HERE.parent / "dashboards/npgxd.json"
METRICS, PROMETHEUS = "127.0.0.1:19469", "127.0.0.1:19090"
SCRAPE_S, LIFE_S = 1, 60
SIZE: Final = (1700, 1950)
BUNDLE: Final = (
    "--bundle",
    "--format=esm",
    "--jsx=automatic",
    "--loader:.svg=dataurl",
    "--loader:.ttf=dataurl",
    "--log-level=error",
)


def main() -> int:
    """Write the picture; 1 if a panel has nothing to show."""
    options = argparse.ArgumentParser(prog="python -m tools.dashboard_picture")
    options.add_argument("out", type=Path, metavar="OUT.png")
    options.add_argument("--modules", type=Path, metavar="DIR", help="where npm install was run before; default: it is run now")
    chosen = options.parse_args()
    if missing := [name for name in ("prometheus", "chromium", "node", "npm") if not shutil.which(name)]:
        raise SystemExit(f"there is no {missing[0]}")
    with tempfile.TemporaryDirectory(prefix="npgxd-picture-") as name, Children(uuid.uuid4().hex) as children:
        directory = Path(name)
        site = bundled(directory, chosen.modules)
        scene = Scene(directory / "scene", children)
        with scene.node:
            began = time.time()
            lived(scene, children, directory)
            empty = drawn(site, chosen.out.absolute(), began)
            scene.end()
    print(chosen.out)
    for title in empty:
        print(f"nothing to show: {title}", file=sys.stderr)
    return 1 if empty else 0


def bundled(directory: Path, modules: Path | None) -> Path:
    """The site: the page with Grafana's components in it, and the dashboard."""
    work = directory / "work"
    work.mkdir()
    for file in ("package.json", "page.jsx"):
        shutil.copyfile(HERE / file, work / file)
    if modules is None:
        subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--legacy-peer-deps"], cwd=work, check=True
        )
    else:
        (work / "node_modules").symlink_to(modules.absolute() / "node_modules")
    site = directory / "site"
    site.mkdir()
    esbuild = ["node_modules/.bin/esbuild", "page.jsx", *BUNDLE, '--define:process.env.NODE_ENV="production"']
    subprocess.run([*esbuild, f"--outfile={site / 'page.js'}"], cwd=work, check=True)
    (site / "index.html").write_text(
        '<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="page.css"><body style="background:#111217"><div id="root"></div>'
        '<script type="module" src="page.js"></script>',
        encoding="utf-8",
    )
    shutil.copyfile(DASHBOARD, site / "dashboard.json")
    return site


def lived(scene: Scene, children: Children, directory: Path) -> None:
    """A minute of a node: jobs with hits and misses, a failure, a compile that waits; scraped meanwhile."""
    with scene.node.config.open("a", encoding="utf-8") as config:
        config.write(f'[metrics]\nlisten = "{METRICS}"\n')
    scrape = {"job_name": "npgxd", "static_configs": [{"targets": [METRICS]}]}
    whole = {"global": {"scrape_interval": f"{SCRAPE_S}s"}, "scrape_configs": [scrape]}
    (directory / "prometheus.yml").write_text(json.dumps(whole), encoding="utf-8")
    children.start(
        [
            "prometheus",
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address={PROMETHEUS}",
        ],
        log=directory / "prometheus.log",
        environment={"PATH": "/usr/bin:/bin"},
        cwd=directory,
    )
    end = time.monotonic() + LIFE_S
    scene.play()
    for number in iterated(end):
        some = [records.matmul(32 + number * 8 + at, 4096, 4096) for at in range(number % 4)]
        scene.job(f"job{number}.py", 1, *some, records.matmul(1, 4096, 4096))


def iterated(end: float) -> Iterator[int]:
    """Numbers, one every few seconds, until ``end``."""
    number = 0
    while time.monotonic() < end:
        yield number
        number += 1
        time.sleep(4)


def drawn(site: Path, out: Path, began: float) -> list[str]:
    """The page as a browser draws it; the titles of panels that have nothing to show."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Site, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    asked = urllib.parse.urlencode({"from": int(began), "to": int(time.time()), "step": SCRAPE_S, "rate": f"{SCRAPE_S * 8}s"})
    chromium = ["chromium", "--headless=new", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=60000"]
    page = f"http://127.0.0.1:{server.server_port}/?{asked}"
    try:
        window = f"--window-size={SIZE[0]},{SIZE[1]}"
        subprocess.run([*chromium, window, f"--screenshot={out}", page], check=True, capture_output=True, timeout=300)
        told = subprocess.run(
            [*chromium, window, "--dump-dom", page], check=True, capture_output=True, text=True, timeout=300
        ).stdout
    finally:
        server.shutdown()
    title = told.partition("<title>")[2].partition("</title>")[0]
    if not title.startswith("rendered; empty: "):
        raise SystemExit(f"the page was not drawn: {title or told[:500]}")
    empty: list[str] = json.loads(title.removeprefix("rendered; empty: ").replace("&quot;", '"'))
    return empty


class _Site(http.server.SimpleHTTPRequestHandler):
    """The page's files, and Prometheus under /prometheus, since a page may ask no other server."""

    def do_GET(self) -> None:
        if not self.path.startswith("/prometheus/"):
            super().do_GET()
            return
        with urllib.request.urlopen(f"http://{PROMETHEUS}{self.path.removeprefix('/prometheus')}") as answer:
            body = answer.read()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 -- the name that it has there
        """Nothing: the picture is the answer."""


if __name__ == "__main__":
    sys.exit(main())
