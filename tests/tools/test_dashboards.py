"""The Grafana dashboard asks for nothing that the daemon does not tell, and for most of what it tells."""

from __future__ import annotations

import json
import re
from pathlib import Path

from npgxd.daemon.telling.metrics_names import BY_NAME

DASHBOARD = json.loads((Path(__file__).parents[2] / "tools/dashboards/npgxd.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
NAME = re.compile(r"\b(?:npgxd|process)_[a-z_]+")


def test_every_query_names_metrics_that_exist_with_labels_that_they_have() -> None:
    for query in QUERIES:
        names = NAME.findall(query.replace('job=~".*npgxd.*"', ""))
        assert names, query
        for name in names:
            family = BY_NAME.get(name) or BY_NAME[name.removesuffix("_bucket")]
            assert (family.kind != "gauge") == bool(re.search(rf"(?:rate|increase)\({name}\{{", query)), query
            assert name.endswith("_bucket") == (family.kind == "histogram"), query
        for label in re.findall(r"by \((\w+)\)", query):
            family = BY_NAME.get(names[0]) or BY_NAME[names[0].removesuffix("_bucket")]
            assert label in {*family.labels, "le"}, query


def test_panels_lie_beside_each_other() -> None:
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places, panel["title"]
        places |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_what_the_daemon_tells_is_shown() -> None:
    shown = " ".join(QUERIES)
    left_out = {"npgxd_start_time_seconds", "process_resident_memory_bytes", "npgxd_rounds_total", "npgxd_records_total"}
    assert {name for name in BY_NAME if name not in shown} <= left_out | {"npgxd_removed_bytes_total"}
