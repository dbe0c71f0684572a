"""examples/compose and examples/kubernetes: right by the published schemas, and run, with ``unshare`` in an engine's place."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest_node import PATIENCE_S, REPOSITORY, Node, eventually, matmuls, named
from container import CAN_BE_MADE, Container

from tools.cann_sim import records

yaml = pytest.importorskip("yaml", reason="the schemas need the group test of pyproject.toml")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMPOSE = REPOSITORY / "examples/compose/compose.yaml"
KUBERNETES = REPOSITORY / "examples/kubernetes"
VERSIONS = ("1.30", "1.37")
CANN = "/usr/local/Ascend"
CANN_HERE = "/opt/ascend"
"""Where it is in these containers, whose /usr is the machine's."""


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_the_compose_file_is_one_by_the_compose_specification() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    builtin = pytest.importorskip("check_jsonschema.builtin_schemas")
    schema = json.loads((Path(builtin.__file__).parent / "vendor/compose-spec.json").read_text())
    jsonschema.validate(read(COMPOSE), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"services": {"npgxd": {"volume": []}}}, schema)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["npgxd.yaml", "job.yaml"])
def test_the_kubernetes_manifests_are_right_for_old_and_new_clusters(name: str, version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    manifest = read(KUBERNETES / name)
    kubernetes_validate.validate(manifest, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**manifest, "specs": {}}, version, strict=True)


@dataclass(frozen=True, slots=True)
class Service:
    """One container, in whichever form it was written: what it mounts (target -> read-only), its environment, its user and groups."""

    command: list[str]
    mounts: dict[str, bool]
    environment: dict[str, str]
    gids: str
    read_only: bool
    probes: list[list[str]]
    """The commands by which an engine asks whether it is well."""


def of_compose(name: str) -> Service:
    said = read(COMPOSE)["services"][name]
    group = said.get("user", "0:0").partition(":")[2]
    return Service(
        said["command"],
        {volume["target"]: volume.get("read_only", False) for volume in said["volumes"]},
        {name: "Ascend910B3" if value.startswith("$") else value for name, value in said["environment"].items()},
        ",".join([group, *said.get("group_add", [])]),
        said.get("read_only", False),
        [said["healthcheck"]["test"][1:]] if "healthcheck" in said else [],
    )


def of_kubernetes(name: str) -> Service:
    manifest = read(KUBERNETES / name)
    pod = manifest["spec"]["template"]["spec"] if manifest["kind"] == "DaemonSet" else manifest["spec"]
    (container,) = pod["containers"]
    groups = [pod["securityContext"].get("runAsGroup", 0), *pod["securityContext"].get("supplementalGroups", [])]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    return Service(
        container["command"],
        {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]},
        {variable["name"]: variable["value"] for variable in container["env"]},
        ",".join(map(str, groups)),
        container.get("securityContext", {}).get("readOnlyRootFilesystem", False),
        [container[probe]["exec"]["command"] for probe in ("readinessProbe", "livenessProbe") if probe in container],
    )


EXAMPLES = {
    "compose": lambda: (of_compose("npgxd"), of_compose("job")),
    "kubernetes": lambda: (of_kubernetes("npgxd.yaml"), of_kubernetes("job.yaml")),
}


@pytest.fixture
def contain(make_node: Callable[..., Node]) -> Iterator[Callable[[Service, Node], Container]]:
    made: list[Container] = []

    def make(service: Service, node: Node) -> Container:
        container = Container(node, f"container{len(made)}")
        made.append(container)
        places = {CANN: node.cann.home.parent, "/var/lib/npgxd": node.state, "/run/npgxd": node.runtime}
        for target in ("/var/lib/npgxd", "/run/npgxd"):
            del container.mounts[target]
        for target, read_only in service.mounts.items():
            if target in places:
                # The simulated op_compiler counts its runs in its own home; the real one leaves CANN alone.
                here = target.replace(CANN, f"{CANN_HERE}/ascend-toolkit")
                container.mount(places[target], here, "ro" if read_only and target != CANN else "rw")
        container.environment = {name: value.replace(CANN, CANN_HERE) for name, value in service.environment.items()}
        container.gids = service.gids
        container.options = "read-only" if service.read_only else ""
        if service.read_only:
            scratch = container.place / "tmp"
            scratch.mkdir()
            container.mounts = {"/tmp": (scratch, "rw"), **container.mounts}  # first: this checkout may lie in /tmp
        return container

    yield make
    for container in made:
        container.close()


def code_of(container: Container, words: list[str]) -> int:
    assert words[0] == "npgxctl"
    command = (sys.executable, "-B", "-m", "npgxd.cli.main", *words[1:])
    return container.enter(*command, error=container.out / "probe.err").wait(PATIENCE_S)


@CAN_BE_MADE
@pytest.mark.parametrize("example", EXAMPLES)
def test_a_job_in_one_container_is_served_by_the_daemon_in_another_as_the_example_mounts_them(
    example: str, make_node: Callable[..., Node], contain: Callable[[Service, Node], Container]
) -> None:
    """Neither sees a process of the other: who ends is told by connections and locks."""
    daemon, job = EXAMPLES[example]()
    node = make_node()
    node.state.mkdir()
    node.runtime.chmod(0o755)  # as engines make volumes and host paths: the sockets' own modes are what guards them
    assert daemon.command == ["npgxd"]
    served_by = contain(daemon, node)
    log = served_by.out / "npgxd.log"
    process = served_by.begin(sys.executable, "-B", "-m", "npgxd.daemon.main", error=log)
    eventually(lambda: (log.exists() and "READY" in log.read_text()) or process.poll() is not None, "the daemon is ready")
    assert process.poll() is None, log.read_text()
    container = contain(job, node)
    container.uid = 4711
    told = container.rank(matmuls(16, 32)).outcome()
    assert (told["state"], told["compiled"], told["missing"], told["torn"]) == ("INSTALLED", 2, 0, 0), (told, log.read_text())
    assert told["view"].startswith("/var/lib/npgxd/views/")
    assert len(list((node.state / "leases").iterdir())) == 1
    assert [rank["pid"] for job in (node.status() or {})["jobs"] for rank in job["ranks"]] == [0]
    node.cann.order("Add", "fail")
    (container.out / "rank.json").unlink()
    refused = container.rank_beside(named(records.elementwise("Add", (8, 64)))).outcome()
    assert refused["state"] == "DEGRADED"
    assert daemon.probes
    assert [code_of(served_by, words) for words in daemon.probes] == [0] * len(daemon.probes), (
        "that of a rank is not the daemon's"
    )
    assert code_of(served_by, ["npgxctl", "status"]) == 3
    container.close()
    eventually(lambda: not list((node.state / "leases").iterdir()), "its lease ends with it")
