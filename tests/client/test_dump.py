from __future__ import annotations

import os
import socket

from npgxd.client import read_dump
from npgxd.wire import limits


def reasons(rejected):
    return {item.name: item.reason for item in rejected}


def test_plain_files_are_read_sorted_by_name_with_their_raw_bytes(tmp_path):
    (tmp_path / "b.json").write_bytes(b'{"b": 1}\n')
    (tmp_path / "a.json").write_bytes(b'[{"a":1}]')
    assert read_dump(tmp_path) == ([("a.json", b'[{"a":1}]'), ("b.json", b'{"b": 1}\n')], [])
    assert read_dump(str(tmp_path))[0] == read_dump(tmp_path)[0]


def test_what_is_not_a_plain_whole_bounded_file_is_named_and_skipped(tmp_path, short):
    dump = short / "dump"
    dump.mkdir()
    (tmp_path / "secret.json").write_bytes(b'{"password":1}')
    (dump / "good.json").write_bytes(b"{}")
    (dump / "link.json").symlink_to(tmp_path / "secret.json")
    (dump / "dangling.json").symlink_to("/nowhere")
    (dump / "dir.json").mkdir()
    os.mkfifo(dump / "pipe.json")
    (dump / "half.json").write_bytes(b'{"op": "Add", "inputs": [')
    (dump / "empty.json").touch()
    (dump / "sparse.json").touch()
    os.truncate(dump / "sparse.json", 1 << 40)
    (dump / "large.json").write_bytes(b"{" + b" " * limits.MAX_RECORD_BYTES + b"}")
    os.close(os.open(os.fsencode(dump) + b"/caf\xe9.json", os.O_CREAT | os.O_WRONLY))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(dump / "socket.json"))
        records, rejected = read_dump(dump)
    assert records == [("good.json", b"{}")]
    assert reasons(rejected) == {
        "caf\\udce9.json": "its name is not valid Unicode",
        "dangling.json": "it is a link",
        "dir.json": "it is not a plain file",
        "empty.json": "it is empty",
        "half.json": "it does not begin and end as a JSON object does (half written?)",
        "large.json": f"it has {limits.MAX_RECORD_BYTES + 2} bytes; at most {limits.MAX_RECORD_BYTES} are allowed",
        "link.json": "it is a link",
        "pipe.json": "it is not a plain file",
        "socket.json": "cannot be opened: No such device or address",
        "sparse.json": f"it has {1 << 40} bytes; at most {limits.MAX_RECORD_BYTES} are allowed",
    }


def test_a_file_that_cannot_be_read_is_named_and_the_rest_goes_on(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_bytes(b"{}")
    (tmp_path / "b.json").write_bytes(b"{}")
    opened = os.open

    def refuse(path, flags, *args, **kwargs):
        if path == "a.json":
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    records, rejected = read_dump(tmp_path)
    assert records == [("b.json", b"{}")]
    assert reasons(rejected) == {"a.json": "cannot be opened: Permission denied"}


def test_a_directory_that_is_not_there_is_one_reason(tmp_path):
    records, rejected = read_dump(tmp_path / "absent")
    assert records == []
    assert reasons(rejected) == {"absent": "cannot read the directory: No such file or directory"}


def test_more_than_a_round_may_have_is_cut_off_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_ROUND_RECORDS", 3)
    for number in range(5):
        (tmp_path / f"{number}.json").write_bytes(b"{}")
    records, rejected = read_dump(tmp_path)
    assert [name for name, _ in records] == ["0.json", "1.json", "2.json"]
    assert [item.name for item in rejected] == ["3.json", "4.json"]
