from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from npgxd.cli.document import Node
from npgxd.cli.findings import Finding, Grade, cann, examined, node
from npgxd.cli.findings import torch as torch_findings
from npgxd.cli.main import main
from npgxd.errors import NpgxError
from tools.cann_sim import create

if TYPE_CHECKING:
    from pathlib import Path


def grades(found: list[Finding]) -> list[Grade]:
    return [each.grade for each in found]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No daemon, no CANN, an empty working directory."""
    for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "NPGXD_SOC", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPGXD_SOCKET", str(tmp_path / "npgxd.sock"))
    return tmp_path


def test_without_a_daemon_it_ends_with_1_and_says_how_to_start_one(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    first = document["findings"][0]
    assert document["schema"] == 1
    assert (first["grade"], first["topic"]) == ("bad", "daemon")
    assert "NPGXD_SOCKET is set" in first["remedy"]
    assert main(["doctor"]) == 1
    assert "1 to mend" in capsys.readouterr().out


def test_a_configuration_with_which_no_daemon_can_start_is_told_where_none_answers(
    alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = alone / "npgxd.toml"
    wrong.write_text("[compile]\nworker = 3\n")
    monkeypatch.setenv("NPGXD_CONFIG", str(wrong))
    assert main(["doctor"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert f"config bad {wrong}: unknown key 'worker' in [compile] do: did you mean 'workers'?" in shown
    assert "why one ended: journalctl -eu npgxd" in shown


def test_every_finding_that_is_not_good_says_what_to_do(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (alone / "static_kernel_compile_outputs" / "ts1_pid2_outputs").mkdir(parents=True)
    main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {"daemon", "CANN", "limits", "leftovers"} <= {each["topic"] for each in found}
    assert all(each["remedy"] for each in found if each["grade"] != "good")


def test_leftovers_of_runs_without_a_daemon_are_counted_and_can_be_imported(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "static_kernel_compile_outputs" / f"ts{number}_pid1_outputs").mkdir(parents=True)
    (found,) = node.check_leftovers(tmp_path)
    assert "the outputs of 3 runs" in found.text
    assert f"npgxctl import {tmp_path}/static_kernel_compile_outputs" in found.remedy
    assert list(node.check_leftovers(tmp_path / "elsewhere")) == []


@pytest.mark.parametrize("version", ["9.0.0", "9.1.0"])
def test_a_cann_is_found_with_its_compiler_and_what_others_installed_in_its_root(tmp_path: Path, version: str) -> None:
    made = create(tmp_path / "cann", version=version)
    environ = {**made.env(), "PATH": "/usr/bin:/bin"}
    toolchain, found = cann.find(environ)
    assert toolchain is not None
    assert f"simulated {version}" in found[0].text
    roots = list(cann.check_roots(toolchain))
    assert grades(roots) == ([Grade.GOOD] if version == "9.0.0" else [])
    (made.opp / "static_kernel" / "ai_core" / "static_kernel_202601010101_77").mkdir(parents=True)
    told = [each for each in cann.check_roots(toolchain) if each.grade is Grade.NOTE]
    assert ["1 package of other installers" in each.text for each in told] == [True]
    assert "static_kernel_202601010101_77" in told[0].text


@pytest.mark.parametrize(
    ("theirs", "grade", "said"),
    [
        (
            {"home": "/opt/other", "soc": "Ascend910B3", "cann_version": "9.0.0"},
            Grade.NOTE,
            "the daemon compiles with 9.0.0 in /opt/other",
        ),
        ({"home": "HOME", "soc": "Ascend910B1"}, Grade.BAD, "the daemon compiles for Ascend910B1"),
        ({"home": "HOME", "soc": "Ascend910B3"}, None, ""),
    ],
)
def test_a_daemon_with_another_toolchain_is_told(tmp_path: Path, theirs: dict[str, Any], grade: Grade | None, said: str) -> None:
    made = create(tmp_path / "cann")
    toolchain, _ = cann.find({**made.env(), "PATH": "/usr/bin:/bin"})
    assert toolchain is not None
    document = {"toolchain": {key: str(made.home) if value == "HOME" else value for key, value in theirs.items()}}
    found = [each for each in cann.check(toolchain, Node(document)) if "closed to users" not in each.text]
    assert grades(found) == ([grade] if grade else [])
    assert all(said in each.text for each in found)


def test_a_daemon_whose_cann_is_gone_is_told_also_where_this_shell_has_none_either(
    alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = {"daemon": {"state": "READY"}, "toolchain": {"problem": "the CANN home /gone does not exist"}}
    monkeypatch.setattr("npgxd.cli.findings.daemon.ask", lambda _environ: (Node(gone), []))
    assert main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    (bad,) = [each for each in found if each["grade"] == "bad"]
    assert bad["text"] == "the daemon has none: the CANN home /gone does not exist"
    assert "found by itself" in bad["remedy"]


def test_a_state_directory_that_is_not_visible_here_is_told_with_how_to_mount_it(tmp_path: Path) -> None:
    document = {"daemon": {"state_dir": str(tmp_path / "elsewhere"), "store_id": "5" * 32}}
    (found,) = node.check_state(Node(document))
    assert (found.grade, "NPGXD_STORE" in found.remedy) == (Grade.BAD, True)
    document = {"daemon": {"state_dir": str(tmp_path)}, "kernels": {"bytes": 5_000_000}}
    assert "5.0 MB of kernels" in next(node.check_state(Node(document))).text


def test_a_disk_with_less_room_than_the_configuration_wants_free_is_told_since_nothing_is_compiled(tmp_path: Path) -> None:
    document = {"daemon": {"state_dir": str(tmp_path)}, "removal": {"min_free_bytes": 10**18}}
    short = next(found for found in node.check_state(Node(document)) if found.grade is Grade.BAD)
    assert ("nothing is compiled" in short.text, "npgxctl gc" in short.remedy) == (True, True)


def test_directories_of_the_state_that_are_closed_to_the_daemons_own_user_are_told_with_the_command_that_opens_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "staging").mkdir(mode=0o700)
    owner = tmp_path.stat().st_uid
    document = {"daemon": {"state_dir": str(tmp_path), "uid": owner or 1}}
    if owner:
        assert Grade.BAD not in grades(list(node.check_state(Node(document))))
        (tmp_path / "kernels").chmod(0o555)
        bad = [found for found in node.check_state(Node(document)) if found.grade is Grade.BAD]
        assert [found.remedy for found in bad] == [f"chmod u+rwx {tmp_path / 'kernels'}"]
        assert "the mode of" in bad[0].text
    document["daemon"]["uid"] = owner + 1
    bad = [found for found in node.check_state(Node(document)) if found.grade is Grade.BAD]
    assert f"belongs to uid {owner}, and the daemon is {owner + 1}" in bad[0].text
    assert bad[0].remedy == f"chown {owner + 1} {tmp_path}"
    document["daemon"]["uid"] = 0
    assert Grade.BAD not in grades(list(node.check_state(Node(document))))


def test_a_disk_that_does_not_answer_is_told_with_what_waits_and_what_to_look_at(tmp_path: Path) -> None:
    slow = {"slow": True, "slow_s": 130.0, "waits_s": 20.0, "waits_for": "fsync /a"}
    document = {"daemon": {"state_dir": str(tmp_path)}, "disk": slow}
    told = next(found for found in node.check_state(Node(document)) if found.grade is Grade.BAD)
    assert "does not answer, for 2 min, now at fsync /a for 20 s" in told.text
    assert "dmesg" in told.remedy
    document["disk"] = {**slow, "slow": False}
    assert all("answer" not in found.text for found in node.check_state(Node(document)))


def test_jobs_whose_ranks_do_not_wait_for_each_other_are_told() -> None:
    document = {
        "jobs": [{"program": "serve.py", "note": "LOCAL_WORLD_SIZE is not set in every rank"}, {"program": "x", "note": ""}]
    }
    found = list(node.check_ranks({"WORLD_SIZE": "8"}, Node(document)))
    assert grades(found) == [Grade.NOTE, Grade.NOTE]
    assert "serve.py" in found[1].text
    assert list(node.check_ranks({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, Node({}))) == []


def test_a_check_that_cannot_look_says_so_and_is_no_traceback() -> None:
    def closed() -> list[Finding]:
        raise PermissionError(13, "Permission denied", "/srv")

    def broken() -> list[Finding]:
        raise NpgxError("the root is odd", hint="mend it")

    assert grades(list(examined("x", closed))) == [Grade.NOTE]
    assert list(examined("x", broken)) == [Finding(Grade.BAD, "x", "the root is odd", "mend it")]


# ---- torch_npu and the bridge ----


class Hook:
    """The bridge's finder, as far as the doctor looks at it."""

    npgxd_bridge = True
    targets = frozenset(
        {"npugraph_ex._acl_concrete_graph.static_kernel", "torch_npu.dynamo.npugraph_ex._acl_concrete_graph.static_kernel"}
    )

    def find_spec(self, *_: object) -> None:
        return None


@pytest.fixture
def torch_npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch_npu with two packages that coordinate static kernels, in an interpreter that has no hook yet; their directory."""
    dynamo = tmp_path / "site" / "torch_npu" / "dynamo"
    for package in ("npugraph_ex", "newer"):
        (dynamo / package / "_acl_concrete_graph").mkdir(parents=True)
        (dynamo / package / "_acl_concrete_graph" / "static_kernel.py").touch()
        (dynamo / package / "__init__.py").touch()
    (dynamo.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(dynamo.parents[1])
    monkeypatch.setattr("sys.meta_path", [finder for finder in sys.meta_path if not hasattr(finder, "npgxd_bridge")])
    return dynamo


def test_a_bridge_that_is_not_in_the_interpreter_is_a_problem(torch_npu: Path) -> None:
    (found,) = torch_findings.check({})
    assert found.grade is Grade.BAD
    assert "npgxd-bridge.pth must lie in its site-packages" in found.remedy


def test_copies_that_the_bridge_covers_and_those_it_does_not_are_named(torch_npu: Path) -> None:
    sys.meta_path.insert(0, Hook())  # type: ignore[arg-type]
    goes, covers, *others = torch_findings.check({})
    assert "goes through npgxd.bridge" in goes.text
    assert covers.text == f"the bridge covers {', '.join(sorted(Hook.targets))}"
    assert [each.text.split(" ")[0] for each in others] == [
        f"{prefix}newer._acl_concrete_graph.static_kernel" for prefix in ("", "torch_npu.dynamo.")
    ]
    assert grades(others) == [Grade.NOTE, Grade.NOTE]


@pytest.mark.parametrize("word", ["off", "0", "False"])
def test_a_bridge_that_is_switched_off_is_told(torch_npu: Path, word: str) -> None:
    (found,) = torch_findings.check({"NPGXD_BRIDGE": word})
    assert (found.grade, found.text.split(":")[0]) == (Grade.NOTE, f"NPGXD_BRIDGE={word}")
