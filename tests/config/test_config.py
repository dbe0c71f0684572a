from __future__ import annotations

from pathlib import Path

import pytest

from npgxd.config import load
from npgxd.errors import ConfigError


def read(tmp_path: Path, text: str):
    path = tmp_path / "npgxd.toml"
    path.write_text(text)
    return load(path, user=False, environ={"HOME": str(tmp_path)})


def test_every_value_is_taken_and_the_rest_has_its_default(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """
        [daemon]
        state_dir = "/srv/state"
        runtime_dir = "/srv/run"
        [toolchain]
        soc = "Ascend910B3"
        custom_opp = ["/a", "/b"]
        vector_cores = 48
        cube_cores = 24
        [compile]
        workers = 3
        [group]
        window_s = 1
        """,
    )
    assert config.state_dir == Path("/srv/state")
    assert config.socket == Path("/srv/run/npgxd.sock")
    settings = config.toolchain.settings()
    assert settings.custom_opp == (Path("/a"), Path("/b"))
    assert settings.cores is not None
    assert settings.cores.vector == 48
    assert config.compile.workers == 3
    assert config.compile.attempts == 3
    assert config.group.window_s == 1.0
    assert config.compile.jobs == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[compile]\nworker = 3", "did you mean 'workers'"),
        ("workers = 3", "'workers' is a key of [compile]: write it below that line"),
        ("[daemon]\nworkers = 3", "'workers' is a key of [compile]"),
        ("[daemon]\nmax_gb = 3", "'max_gb' is a key of [store] and of [cache]"),
        ("[compiler]\nworkers = 3", "did you mean 'compile'"),
        ("[compile]\nworkers = -1", "an integer from 0 to 256"),
        ("[compile]\nworkers = true", "an integer"),
        ("[compile]\nworkers = 2.5", "an integer"),
        ('[group]\nwindow_s = "2"', "a number"),
        ("[group]\nwindow_s = nan", "a number"),
        ('[daemon]\nstate_dir = "relative"', "absolute path"),
        ("[daemon]\nstate_dir = 3", "must be text"),
        ('[daemon]\nlog_level = "loud"', "debug, info, warning, error"),
        ('[toolchain]\ncustom_opp = "/a"', "list of texts"),
        ("daemon = 3", "must be a section"),
        ("[daemon", "not TOML"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_the_place_and_what_is_allowed(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert said in str(caught.value)
    assert "npgxd.toml" in str(caught.value)


def test_a_named_file_must_exist_and_the_usual_one_need_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no configuration file"):
        load(tmp_path / "none.toml", user=False, environ={})
    config = load(None, user=True, environ={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")})
    assert config.source == "(defaults)"
    assert config.state_dir == tmp_path / ".local/state/npgxd"
    assert config.runtime_dir == tmp_path / "run/npgxd"


def test_a_users_daemon_keeps_everything_private_to_the_user(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "s"), "XDG_CONFIG_HOME": str(tmp_path / "c")}
    (tmp_path / "c/npgxd").mkdir(parents=True)
    (tmp_path / "c/npgxd/npgxd.toml").write_text("[compile]\nworkers = 7\n")
    config = load(None, user=True, environ=environ)
    assert config.compile.workers == 7
    assert config.state_dir == tmp_path / "s/npgxd"


def test_a_file_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot read"):
        load(path, user=False, environ={})


def test_drop_ins_and_variables_are_layers_over_the_file_and_each_key_knows_its_origin(tmp_path: Path) -> None:
    main = tmp_path / "npgxd.toml"
    main.write_text("[compile]\nattempts = 5\nnice = 1\n[group]\nwindow_s = 1\n")
    directory = tmp_path / "npgxd.toml.d"
    directory.mkdir()
    (directory / "20-later.toml").write_text("[compile]\nnice = 3\n")
    (directory / "10-sooner.toml").write_text('[compile]\nnice = 2\n[toolchain]\nsoc = "Ascend910B3"\n')
    (directory / ".20-later.toml.swp").write_text("what an editor leaves")
    (directory / "README").write_text("not TOML")
    environ = {
        "NPGXD_GROUP_WINDOW_S": "3",
        "NPGXD_OP_LIBRARY_LEAVE_AFTER_S": "7.5",
        "NPGXD_STORE": "/x",
        "NPGXD_COMPILE_ATTEMPTS": "",
    }
    config = load(main, user=False, environ=environ)
    assert (config.compile.attempts, config.compile.nice, config.toolchain.soc) == (5, 3, "Ascend910B3")
    assert (config.group.window_s, config.op_library.leave_after_s) == (3.0, 7.5)
    assert config.origins == {
        "compile.attempts": str(main),
        "compile.nice": str(directory / "20-later.toml"),
        "toolchain.soc": str(directory / "10-sooner.toml"),
        "group.window_s": "NPGXD_GROUP_WINDOW_S",
        "op_library.leave_after_s": "NPGXD_OP_LIBRARY_LEAVE_AFTER_S",
    }


def test_a_list_in_a_variable_is_written_with_colons(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "NPGXD_TOOLCHAIN_CUSTOM_OPP": "/a:/b"}
    assert load(None, user=True, environ=environ).toolchain.custom_opp == ("/a", "/b")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("NPGXD_COMPILE_ATTEMPT", "3", "did you mean 'attempts'"),
        ("NPGXD_COMPILE_ATTEMPTS", "many", "NPGXD_COMPILE_ATTEMPTS: [compile] attempts must be an integer"),
        ("NPGXD_DAEMON_STATE_DIR", "here", "absolute path"),
        ("NPGXD_DAEMON_LOG_LEVEL", "loud", "debug, info"),
    ],
)
def test_a_wrong_variable_is_named_with_what_it_may_be(tmp_path: Path, name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, user=True, environ={"HOME": str(tmp_path), name: value})
    assert said in str(caught.value)


def test_a_wrong_drop_in_is_named_itself(tmp_path: Path) -> None:
    (tmp_path / "npgxd.toml.d").mkdir()
    (tmp_path / "npgxd.toml.d" / "site.toml").write_text("[compile]\nattempt = 3\n")
    (tmp_path / "npgxd.toml").write_text("")
    with pytest.raises(ConfigError, match=r"site\.toml: unknown key 'attempt'"):
        load(tmp_path / "npgxd.toml", user=False, environ={})


def test_numbers_are_listed_in_the_file_or_with_colons_in_a_variable(tmp_path: Path) -> None:
    config = read(tmp_path, '[cache]\ntrusted_uids = [0, 1001]\nscope = "user"')
    assert (config.cache.trusted_uids, config.cache.scope) == ((0, 1001), "user")
    environ = {"HOME": str(tmp_path), "NPGXD_CACHE_TRUSTED_UIDS": "7:8"}
    assert load(tmp_path / "npgxd.toml", user=False, environ=environ).cache.trusted_uids == (7, 8)
    for wrong in ('["root"]', "[-1]", "[true]", "[1.5]", "5"):
        with pytest.raises(ConfigError, match="list of numbers"):
            read(tmp_path, f"[cache]\ntrusted_uids = {wrong}")


def test_a_user_without_a_home_as_in_a_container_can_say_all_by_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(_path: Path) -> Path:
        raise RuntimeError("no passwd entry")

    monkeypatch.setattr(Path, "expanduser", nowhere)
    config = load(None, user=True, environ={"XDG_STATE_HOME": "/cache", "NPGXD_COMPILE_WORKERS": "2"})
    assert (config.source, config.state_dir, config.compile.workers) == ("(defaults)", Path("/cache/npgxd"), 2)
    with pytest.raises(ConfigError, match="no home directory"):
        load(None, user=True, environ={})
