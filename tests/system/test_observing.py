"""What a real daemon shows of itself: metrics in a file and over HTTP, a trace of a start-up, a log as JSON, and what failed runs left."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from conftest_node import PATIENCE_S, REPOSITORY, eventually, matmuls

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest_node import Node

parser = pytest.importorskip("prometheus_client.parser")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def npgxctl(node: Node, *arguments: str, expected: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "npgxd.cli.main", *arguments],
        cwd=REPOSITORY,
        env=node.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == expected, done.stderr
    return done.stdout


def samples(text: str) -> dict[str, float]:
    found = [each for family in parser.text_string_to_metric_families(text) for each in family.samples]
    return {sample.name: sample.value for sample in found if not sample.labels}


def fetched(port: int, method: str = "GET", target: str = "/metrics") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request(method, target)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def is_served(port: int) -> bool:
    try:
        return fetched(port)[0] == 200
    except OSError:  # too many at once: it is closed
        return False


def test_metrics_are_in_the_file_and_on_the_loopback_and_nobody_there_can_stop_the_daemon(make_node: Callable[..., Node]) -> None:
    node = make_node()
    port, file = free_port(), node.directory / "npgxd.prom"
    node.settings["metrics"] = {"textfile": str(file), "interval_s": 1, "listen": f"127.0.0.1:{port}"}
    node.start()
    assert node.rank(matmuls(16, 32)).outcome()["compiled"] == 2
    status, text = fetched(port)
    assert (status, samples(text)["npgxd_kernels_compiled_total"]) == (200, 2)
    eventually(lambda: samples(file.read_text())["npgxd_kernels_compiled_total"] == 2, "the file is written again")
    assert file.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in file.parent.glob("*npgxd.prom*")] == ["npgxd.prom"]
    assert samples(npgxctl(node, "metrics"))["npgxd_kernels_compiled_total"] == 2
    assert {"name": "npgxd_jobs", "labels": {}, "value": 1.0} in json.loads(npgxctl(node, "metrics", "--json"))["samples"]
    assert fetched(port, target="/")[0] == 404
    assert fetched(port, method="POST")[0] == 405
    assert fetched(port, method="HEAD") == (200, "")
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
    idle[0].sendall(b"x" * 20_000)
    idle[1].sendall(b"\r\n\r\n")
    assert node.status() is not None  # the loop turns
    for each in idle:
        each.close()
    eventually(lambda: is_served(port), "others are served again")
    assert node.rank(matmuls(16)).outcome()["state"] == "INSTALLED"


def test_a_port_that_is_taken_is_an_error_of_the_configuration(make_node: Callable[..., Node]) -> None:
    node = make_node()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        node.settings["metrics"] = {"listen": f"127.0.0.1:{taken.getsockname()[1]}"}
        node.write_config()
        daemon = node.spawn("-m", "npgxd.daemon.main", "--config", str(node.config), stderr=node.log)
        assert daemon.wait(PATIENCE_S) == 78
    assert "[metrics] listen: cannot listen on" in node.log.read_text()


def test_a_trace_of_a_start_up_has_a_track_for_each_rank_and_each_worker(node: Node) -> None:
    ranks = node.group([matmuls(16, 32), matmuls(32, 48)])
    assert {rank.outcome()["state"] for rank in ranks} == {"INSTALLED"}
    told: dict[str, Any] = json.loads(npgxctl(node, "trace"))
    assert told["schema"] == 1
    names = [event["args"]["name"] for event in told["traceEvents"] if event["name"] == "thread_name"]
    assert sum(name.startswith("worker ") for name in names) >= 1
    for rank in ranks:
        assert any(f"(pid {rank.process.pid})" in name for name in names)
    assert {"window", "compiling", "leased", "op_compiler", "publishing"} <= {event["name"] for event in told["traceEvents"]}
    (job,) = {each["args"]["name"] for each in told["traceEvents"] if each["name"] == "process_name"} - {"workers"}
    assert json.loads(npgxctl(node, "trace", job.removeprefix("job ")))["otherData"]["rounds"] == 2


def test_what_a_failed_compile_left_is_listed_and_shown(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.cann.order("MatMulV2", "fail")
    node.settings["daemon"] |= {"log_format": "json"}
    node.start()
    assert node.rank(matmuls(16)).outcome()["state"] == "DEGRADED"
    listed = json.loads(npgxctl(node, "logs", "--json"))
    assert listed["jobs_total"] == len(listed["jobs"]) >= 1
    job = listed["jobs"][0]["job"]
    (whole,) = json.loads(npgxctl(node, "logs", job[:6], "--json"))["jobs"]
    assert "op_compiler" in whole["command"]
    assert whole["failures"]
    assert f"run        {job[:12]}" in npgxctl(node, "logs")
    assert npgxctl(node, "logs", "0000", expected=1) == ""
    lines = [json.loads(line) for line in node.log.read_text().splitlines()]
    assert {"warning", "info"} <= {line["level"] for line in lines}
