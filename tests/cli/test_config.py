from __future__ import annotations

import json
from typing import TYPE_CHECKING

from npgxd.cli.exits import CONFIG_TABLE
from npgxd.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_every_value_is_shown_with_where_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main_file = tmp_path / "npgxd.toml"
    main_file.write_text("[compile]\nattempts = 5\n")
    (tmp_path / "npgxd.toml.d").mkdir()
    (tmp_path / "npgxd.toml.d" / "site.toml").write_text('[toolchain]\ncustom_opp = ["/a"]\n')
    monkeypatch.setenv("NPGXD_GROUP_WINDOW_S", "3")
    assert main(["config", "--config", str(main_file), "--show-origin"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert f"attempts = 5    # {main_file}" in shown
    assert f'custom_opp = ["/a"]    # {tmp_path}/npgxd.toml.d/site.toml; a change needs a restart' in shown
    assert "window_s = 3.0    # NPGXD_GROUP_WINDOW_S" in shown
    assert 'state_dir = "/var/lib/npgxd"    # default; a change needs a restart' in shown


def test_what_comes_from_canns_own_variables_is_shown_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main_file = tmp_path / "npgxd.toml"
    main_file.write_text('[toolchain]\nopp = "/b/opp"\n')
    for name, value in (
        ("ASCEND_HOME_PATH", "/a"),
        ("ASCEND_OPP_PATH", "/a/opp"),
        ("ASCEND_CUSTOM_OPP_PATH", "/c:/d"),
        ("NPGXD_SOC", "Ascend910B3"),
    ):
        monkeypatch.setenv(name, value)
    assert main(["config", "--config", str(main_file), "--show-origin"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert 'home = "/a"    # ASCEND_HOME_PATH; a change needs a restart' in shown
    assert f'opp = "/b/opp"    # {main_file}; a change needs a restart' in shown
    assert 'custom_opp = ["/c", "/d"]    # ASCEND_CUSTOM_OPP_PATH; a change needs a restart' in shown
    assert 'soc = "Ascend910B3"    # NPGXD_SOC; a change needs a restart' in shown
    assert 'textfile = ""    # default' in shown


def test_json_has_a_schema_and_only_what_is_set_can_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("NPGXD_STORE_MAX_GB", "7")
    assert main(["config", "--user", "--json", "--set"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["source"]) == (1, "(defaults)")
    assert [(key["section"], key["key"], key["value"], key["origin"]) for key in document["keys"]] == [
        ("store", "max_gb", 7.0, "NPGXD_STORE_MAX_GB")
    ]


def test_a_wrong_configuration_ends_with_78_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "npgxd.toml"
    wrong.write_text("[compile]\nworker = 3\n")
    assert main(["config", "--config", str(wrong)]) == 78
    caught = capsys.readouterr()
    assert caught.out == ""
    assert f"{wrong}: unknown key 'worker' in [compile]" in caught.err
    assert "  78  " in CONFIG_TABLE


def test_where_another_daemon_answers_its_configuration_is_named_with_what_to_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running = {"daemon": {"pid": 4711, "config": "/srv/my npgxd.toml"}}
    monkeypatch.setattr("npgxd.cli.config.status_document", lambda _socket: running)
    assert main(["config"]) == 0
    told = capsys.readouterr().err
    assert "not the configuration of the daemon that answers here (pid 4711)" in told
    assert "npgxctl config --config '/srv/my npgxd.toml'" in told
    assert main(["config", "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_where_no_daemon_answers_or_it_has_this_configuration_nothing_more_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPGXD_SOCKET", str(tmp_path / "none.sock"))
    assert main(["config"]) == 0
    monkeypatch.setattr("npgxd.cli.config.status_document", lambda _socket: {"daemon": {"pid": 1, "config": "(defaults)"}})
    assert main(["config"]) == 0
    assert capsys.readouterr().err == ""
