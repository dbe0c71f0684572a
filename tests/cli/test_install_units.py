from __future__ import annotations

import json
from pathlib import Path

import pytest

from npgxd.cli import units
from npgxd.cli.main import main
from npgxd.config import load
from tools.cann_sim import create

CHANGED = "/etc/systemd/system/npgxd.service"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = Path("/usr/bin/env")  # something that everybody may run
    assert path.exists()
    return path


def install(root: Path, program: Path, *more: str) -> int:
    return main(["install-units", "--root", str(root), "--program", str(program), *more])


@pytest.fixture
def cann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = create(tmp_path / "cann", version="9.1.0")
    for name, value in made.env().items():
        monkeypatch.setenv(name, value)
    return made.home


def test_the_units_and_a_configuration_that_names_this_cann_are_written_once(tmp_path: Path, program: Path, cann: Path) -> None:
    root = tmp_path / "root"
    assert install(root, program) == 0
    written = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert written == {
        "etc/systemd/system/npgxd.service",
        "etc/systemd/system/npgxd.socket",
        "etc/systemd/system/npgxd-admin.socket",
        "etc/sysusers.d/npgxd.conf",
        "etc/tmpfiles.d/npgxd.conf",
        "etc/npgxd/npgxd.toml",
    }
    config = load(root / "etc/npgxd/npgxd.toml", user=False, environ={})
    assert config.toolchain.home == cann
    assert config.toolchain.soc == "Ascend910B3"
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert install(root, program) == 0
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_what_somebody_changed_is_kept_and_told_and_replaced_only_by_force(
    tmp_path: Path, program: Path, cann: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    install(root, program)
    unit = root / "etc/systemd/system/npgxd.service"
    shipped = unit.read_text()
    unit.write_text(shipped.replace("WatchdogSec=120", "WatchdogSec=300"))
    capsys.readouterr()
    assert install(root, program, "--json") == 1
    told = {entry["path"]: entry["done"] for entry in json.loads(capsys.readouterr().out)["files"]}
    assert told[str(unit)] == "kept"
    assert "WatchdogSec=300" in unit.read_text()
    assert install(root, program, "--remove") == 1
    assert [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()] == ["etc/systemd/system/npgxd.service"]
    assert install(root, program, "--force") == 0
    assert unit.read_text() == shipped
    assert install(root, program, "--remove") == 0
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_the_configuration_is_the_administrators_once_it_is_there(tmp_path: Path, program: Path, cann: Path) -> None:
    root = tmp_path / "root"
    mine = root / "etc/npgxd/npgxd.toml"
    mine.parent.mkdir(parents=True)
    mine.write_text("[compile]\nnice = 1\n")
    assert install(root, program) == 0
    assert mine.read_text() == "[compile]\nnice = 1\n"


def test_a_cann_before_9_1_gets_its_shared_root_writable_and_a_later_one_takes_that_back(
    tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = create(tmp_path / "old", version="9.0.0"), create(tmp_path / "new", version="9.1.0")
    root = tmp_path / "root"
    for name, value in old.env().items():
        monkeypatch.setenv(name, value)
    assert install(root, program) == 0
    drop_in = root / units.NODE_DROP_IN
    assert f"ReadWritePaths={old.opp}\n" in drop_in.read_text()
    for name, value in new.env().items():
        monkeypatch.setenv(name, value)
    assert install(root, program) == 0
    assert not drop_in.exists()


def test_nothing_is_changed_by_a_dry_run_and_nothing_is_said_to_be(
    tmp_path: Path, program: Path, cann: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    assert install(root, program, "--dry-run") == 0
    assert not root.exists()
    shown = capsys.readouterr().out
    assert f"to write   {root}/etc/systemd/system/npgxd.service" in shown
    assert "written" not in shown
    assert install(root, program) == 0
    capsys.readouterr()
    assert install(root, program, "--remove", "--dry-run") == 0
    assert f"to remove  {root}/etc/systemd/system/npgxd.service" in capsys.readouterr().out
    assert (root / "etc/systemd/system/npgxd.service").exists()


def test_an_npgxd_that_the_service_could_not_run_is_refused(
    tmp_path: Path, cann: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = tmp_path / "home" / "bin"
    closed.mkdir(parents=True)
    closed.parent.chmod(0o700)
    (closed / "npgxd").write_text("#!/bin/sh\n")
    (closed / "npgxd").chmod(0o755)
    assert install(tmp_path / "root", closed / "npgxd") == 78
    assert "closed to other users" in capsys.readouterr().err
    assert not (tmp_path / "root").exists()


def test_a_program_elsewhere_is_named_in_the_drop_in_with_every_letter(tmp_path: Path) -> None:
    made = units.planned(units.Node(Path("/opt/my npgxd/50%/bin/npgxd"), group="HwHiAiUser"), {})
    assert 'ExecStart="/opt/my npgxd/50%%/bin/npgxd" --config /etc/npgxd/npgxd.toml' in made[units.NODE_DROP_IN]
    assert "SupplementaryGroups=HwHiAiUser" in made[units.NODE_DROP_IN]
    assert all(units.is_ours(text) for text in made.values())


def test_what_metrics_need_is_allowed_and_taken_back_and_a_broken_configuration_keeps_nothing_on_the_node(
    tmp_path: Path, program: Path, cann: Path
) -> None:
    root = tmp_path / "root"
    install(root, program)
    drop_in, config = root / units.NODE_DROP_IN, root / units.CONFIG
    assert not drop_in.exists()
    for told, allowed in (
        ('textfile = "/var/text file/npgxd.prom"', ['ReadWritePaths="-/var/text file"']),
        ('listen = "127.0.0.1:9469"', ["RestrictAddressFamilies=AF_INET AF_INET6", "IPAddressAllow=localhost"]),
        ("", []),
    ):
        config.write_text(f"[metrics]\n{told}\n")
        assert install(root, program) == 0
        assert [line for line in _lines(drop_in) if "=" in line] == allowed
    config.write_text("[metrics]\nnonsense = 1\n")
    assert install(root, program) == 78
    assert install(root, program, "--remove", "--force") == 0
    assert not [path for path in root.rglob("*") if path.is_file()]


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if not line.startswith("#")] if path.exists() else []
