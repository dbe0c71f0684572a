from __future__ import annotations

import pytest
import torch
from torch import nn

from npgxd.client.entry_files import EntryRefused
from npgxd.errors import ConfigError
from npugraph_ex.inference import cache_compile, readable_cache
from npugraph_ex.inference.container import EntryDamaged


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def method(self, x, factor):
        return self.linear(x) * factor + torch.tensor([1.5, 2.5, 3.5, 4.5])


@pytest.fixture
def path(tmp_path):
    cached = cache_compile(Net().method, cache_dir=tmp_path / "cache", options={"remove_noop_ops": False})
    cached(torch.randn(2, 4), 3)
    return cached.path


def test_the_account_names_what_an_entry_was_made_from_and_what_it_holds(path, tmp_path, capsys):
    file = tmp_path / "made" / "account.py"
    told = readable_cache(str(path), file=str(file))
    assert capsys.readouterr().out.strip() == told.strip()
    for part in (
        "Net.method",
        "test_readable.Net",
        "dynamic sizes",
        torch.__version__,
        "L['self']._modules['linear']._parameters['weight']",
        "remove_noop_ops=False",
        "_tensor_constant0: float32[4]",
        "torch.ops.aten.addmm",
        "LOAD_GLOBAL",
        "deterministic",
        "def forward(self",
    ):
        assert part in told, part
    written = file.read_text()
    compile(written, "account.py", "exec")
    assert "torch.ops.aten.addmm" in written


def test_nothing_is_printed_or_written_where_that_is_not_wanted(path, capsys, tmp_path):
    before = set(tmp_path.rglob("*"))
    assert "def forward" in readable_cache(path, False)
    assert "def forward" in readable_cache(path, print_output=False)
    assert capsys.readouterr().out == ""
    assert set(tmp_path.rglob("*")) == before


def test_bad_paths_links_and_damaged_files_are_clear_errors(path, tmp_path):
    with pytest.raises(ConfigError, match="no compile-cache entry"):
        readable_cache(tmp_path / "none" / "compiled_module")
    with pytest.raises((ConfigError, EntryRefused)):
        readable_cache(path.parent)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(EntryRefused, match="is a link"):
        readable_cache(link)
    plain = tmp_path / "plain.py"
    plain.write_text("print(1)")
    plain.chmod(0o600)
    with pytest.raises(EntryDamaged, match="not a compile-cache entry"):
        readable_cache(plain)
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    with pytest.raises(EntryDamaged):
        readable_cache(path)
    path.write_bytes(data)
    path.chmod(0o644)
    with pytest.raises(EntryRefused, match="mode 0644"):
        readable_cache(path)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="cannot be written"):
        readable_cache(path, False, plain / "below")
