"""The metrics: a text that Prometheus' own parser reads, with every name of the table, whose counters survive restarts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npgxd.daemon.demand.tries import Try
from npgxd.daemon.keeping.metrics_histograms import COMPILE_RUN, KERNEL_COMPILE, ROUND_WAIT, Histogram
from npgxd.daemon.keeping.stores import Stores
from npgxd.daemon.scheduling.misses import PREFIX, REASONS
from npgxd.daemon.telling.metrics import MetricsPage
from npgxd.daemon.telling.metrics_names import BY_NAME, METRICS
from npgxd.daemon.telling.metrics_text import Sample, exposition
from npgxd.daemon.telling.status import StatusPage
from npgxd.store.past import REMOVED
from npgxd.wire.messages import Submit
from npgxd.wire.states import ClientState, KeyOutcome
from tools.cann_sim import records

if TYPE_CHECKING:
    from conftest import Parts

ROOT = Path(__file__).parents[2]
parser = pytest.importorskip("prometheus_client.parser")


def page(parts: Parts) -> MetricsPage:
    status = StatusPage(parts.config, "0" * 32, parts.stores, parts.keyer, parts.sessions, parts.coordinator, parts.dispatcher)
    return MetricsPage(status.document, parts.sessions, parts.stores.all_counters)


def read(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def one(parts: Parts, name: str, **labels: str) -> float:
    return read(page(parts).text(0.0))[name, tuple(sorted(labels.items()))]


def misses(parts: Parts) -> dict[str, int]:
    counters = parts.stores.all_counters()
    return {reason: counters[PREFIX + reason] for reason in REASONS if counters.get(PREFIX + reason)}


def test_prometheus_own_parser_reads_every_family_with_its_kind_and_help(parts: Parts) -> None:
    found = {family.name: family for family in parser.text_string_to_metric_families(page(parts).text(0.0))}
    for metric in METRICS:
        family = found[metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), metric.name


def test_names_follow_the_conventions() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"(npgxd|process)_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.kind != "histogram" or metric.name.endswith("_seconds")
        assert not metric.help.endswith(".")
    assert len(BY_NAME) == len(METRICS)


def test_the_documented_table_is_the_one_in_the_code() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    rows = [f"| `{m.name}` | {m.kind} | {', '.join(f'`{label}`' for label in m.labels)} | {m.help} |" for m in METRICS]
    assert re.findall(r"^\| `(?:npgxd|process)_.*$", text, flags=re.MULTILINE) == rows
    for reason, meaning in REASONS.items():
        assert f"| `{reason}` | {meaning} |" in text


@given(st.text())
def test_no_value_of_a_label_can_break_a_line(value: str) -> None:
    text = exposition({"npgxd_info": [Sample(1, {"version": value})]})
    lines = text.splitlines() if value.isprintable() else text.split("\n")[:-1]
    assert len(lines) == 2 * len(METRICS) + 1
    if "\r" not in value and value.isprintable():
        assert read(text) == {("npgxd_info", (("version", value),)): 1.0}


@given(st.lists(st.floats(0, 5000)))
def test_a_histogram_counts_each_observation_once_up_to_its_bound(seconds: list[float]) -> None:
    histogram = Histogram("x", (0.5, 1, 60))
    counters: dict[str, int] = {}
    for each in seconds:
        for name, number in histogram.counted(each).items():
            counters[name] = counters.get(name, 0) + number
    expected = [(f"{bound:g}", sum(each <= bound for each in seconds)) for bound in histogram.bounds]
    assert histogram.buckets(counters) == [*expected, ("+Inf", len(seconds))]
    assert histogram.sum_s(counters) == pytest.approx(sum(seconds), abs=0.001 * (len(seconds) + 1))


def test_buckets_are_bounded_and_in_order() -> None:
    for histogram in (ROUND_WAIT, COMPILE_RUN, KERNEL_COMPILE):
        assert list(histogram.bounds) == sorted(set(histogram.bounds))
        assert len(histogram.bounds) <= 16


def test_fc62_every_state_of_a_client_can_be_told_from_the_others_by_the_metrics_alone(parts: Parts) -> None:
    session = parts.session()
    for state in ClientState:
        session.tell(state, 0.0, reason="compile_failed")
        shown = {each: one(parts, "npgxd_ranks", state=str(each)) for each in ClientState}
        assert shown == {each: float(each is state) for each in ClientState}
    session.tell(ClientState.DEGRADED, 0.0, reason="made up by a client")
    assert one(parts, "npgxd_ranks_degraded", reason="other") == 1


def test_misses_are_counted_by_reason(parts: Parts) -> None:
    session = parts.session()
    parts.submit(session, 16, 32)
    assert misses(parts) == {"first": 2}
    parts.submit(parts.session(), 16)
    assert misses(parts) == {"first": 2, "in_flight": 1}
    parts.drive(lambda: not len(parts.coordinator.flights))
    parts.submit(session, 16)
    assert misses(parts) == {"first": 2, "in_flight": 1}
    raw = [("16.json", records.encode(records.matmul(16, 32, 64)))]
    parts.coordinator.accept(session, Submit(round="ab" * 16, recompile=True), raw, 0.0)
    assert misses(parts)["recompile"] == 1
    parts.drive(lambda: not len(parts.coordinator.flights))


def test_kernels_that_were_there_once_are_missed_for_another_reason_than_new_ones(parts: Parts) -> None:
    session = parts.session()
    keys = list(parts.submit(session, 16, 32).needs)
    parts.drive(lambda: not len(parts.coordinator.flights))
    rows = parts.stores.catalog.kernel_ids(keys)
    parts.stores.kernels.forget([rows[keys[0]]])
    parts.stores.past.gone([keys[0]], REMOVED)
    member = next(parts.stores.kernels.directory(rows[keys[1]]).rglob("*.o"))
    member.chmod(0o644)
    member.write_bytes(b"damaged")
    parts.stores.kernels.recheck(rows[keys[1]])
    assert parts.stores.past.why_missing(dict.fromkeys(keys, "")) == {keys[0]: "removed", keys[1]: "damaged"}
    record = parts.stores.catalog.read("SELECT record FROM past WHERE key = ?", (keys[0],))[0][0]
    assert parts.stores.past.why_missing({"ef" * 32: record, "01" * 32: "x"}) == {"ef" * 32: "changed", "01" * 32: "first"}


def test_a_known_failure_is_a_miss_of_its_own_kind(parts: Parts) -> None:
    session = parts.session()
    (key,) = parts.submit(session, 16).needs
    parts.coordinator.failed([Try(key, KeyOutcome.UNSUPPORTED, "no such operator", transient=False)], 0.0)
    parts.submit(session, 16)
    assert misses(parts) == {"first": 1, "failed": 1}


def test_counters_and_histograms_survive_a_restart(parts: Parts) -> None:
    session = parts.session()
    done = parts.submit(session, 16)
    parts.drive(lambda: done.result is not None and not parts.dispatcher.busy)
    before = read(page(parts).text(0.0))
    assert before["npgxd_kernels_compiled_total", ()] == 1
    for name in ("npgxd_round_wait_seconds", "npgxd_compile_run_seconds", "npgxd_kernel_compile_seconds"):
        assert before[f"{name}_count", ()] == 1
        assert before[f"{name}_bucket", (("le", "+Inf"),)] == 1
    parts.stores.flush()
    parts.stores.close()
    parts.stores = Stores.open(parts.config.state_dir)
    counters = parts.stores.all_counters()
    assert counters["compiled"] == 1
    assert COMPILE_RUN.buckets(counters)[-1][1] == 1


def test_what_cannot_be_read_of_the_state_is_left_out_and_told_and_is_no_zero(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed() -> dict[str, object]:
        raise PermissionError(13, "Permission denied", "/s/views")

    monkeypatch.setattr(parts.stores, "describe", closed)
    status = StatusPage(parts.config, "0" * 32, parts.stores, parts.keyer, parts.sessions, parts.coordinator, parts.dispatcher)
    told = status.document(0.0)
    assert (told["kernels"], "Permission denied: '/s/views'" in str(told["problem"])) == ({}, True)
    assert ("npgxd_kernels", ()) not in read(page(parts).text(0.0))
    monkeypatch.undo()
    assert (status.document(1.0)["problem"], one(parts, "npgxd_kernels")) == ("", 0)
