from __future__ import annotations

import os
import subprocess
import sys

import msgpack
import pytest

from npgxd.client import rank_info
from npgxd.client.rank import launcher, printable, program
from npgxd.wire.messages import Hello, RankInfo


def test_torchruns_variables_are_read():
    info = rank_info(
        {
            "RANK": "11",
            "LOCAL_RANK": "3",
            "WORLD_SIZE": "16",
            "LOCAL_WORLD_SIZE": "8",
            "TORCHELASTIC_RUN_ID": "none",
            "MASTER_ADDR": "node0",
            "MASTER_PORT": "29500",
        }
    )
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size) == (11, 3, 16, 8)
    assert (info.run_id, info.master) == ("none", "node0:29500")
    assert RankInfo.parse({name: getattr(info, name) for name in info.FIELD_NAMES}) == info


@pytest.mark.parametrize("value", ["", " ", "x", "-1", "1.0", "1e3", "0x1", "٣", "²", "1_0", "9" * 5000, "2000000"])
def test_a_malformed_number_is_not_stated(value):
    info = rank_info(dict.fromkeys(["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"], value))
    assert (info.rank, info.local_rank, info.world_size, info.local_world_size) == (None,) * 4


def test_a_world_of_no_ranks_is_not_stated():
    info = rank_info({"WORLD_SIZE": "0", "LOCAL_WORLD_SIZE": "0", "RANK": "0"})
    assert (info.rank, info.world_size, info.local_world_size) == (0, None, None)


def test_without_a_launcher_there_are_no_labels():
    info = rank_info({})
    assert (info.rank, info.run_id, info.master) == (None, "", "")


def test_ranks_of_one_launcher_agree_on_it_and_others_do_not():
    code = "from npgxd.client.rank import rank_info; print(rank_info({}).launcher)"
    names = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(names) == 1
    (name,) = names
    pid, started, boot = name.strip().split(":")
    assert int(pid) == os.getpid()
    assert started.isdecimal()
    assert len(boot) == 8
    assert rank_info({}).launcher != name.strip()


def test_a_launcher_whose_name_is_strange_is_still_read(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_bytes(b"7 (a ) 1 (b\xff) S " + b" ".join(b"%d" % n for n in range(4, 53)))
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("0123456789abcdef\n")
    assert launcher(7, tmp_path) == "7:22:01234567"


def test_a_launcher_that_is_not_visible_is_not_named(tmp_path):
    assert launcher(0) == ""
    assert launcher(7, tmp_path) == ""


def test_text_that_is_not_unicode_can_still_be_sent(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run\udcff.py"])
    assert program() == "run\\udcff.py"
    info = rank_info({"TORCHELASTIC_RUN_ID": "a\udc80b", "MASTER_ADDR": "x" * 1000})
    assert msgpack.unpackb(msgpack.packb(Hello(versions=(1,), program=program(), rank=info).header()))["program"] == program()
    assert len(info.master) == 255
    assert printable("a\0b", 10) == "ab"
