"""What a version accounts for, and what must be compared by its code: in a virtual environment and outside of one."""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from npgxd.client.versioned import is_versioned

STDLIB = sysconfig.get_paths()["stdlib"]


def test_python_itself_is_versioned_and_what_is_installed_within_its_library_is_not():
    assert is_versioned(json.__file__)
    assert is_versioned("<frozen importlib._bootstrap>")
    assert is_versioned(None)
    assert not is_versioned(f"{STDLIB}/site-packages/transformers/models.py")
    assert not is_versioned(f"{STDLIB}/dist-packages/transformers/models.py")
    assert not is_versioned(f"{STDLIB}-of-mine/models.py")


def test_code_of_no_file_and_of_the_users_is_not_versioned():
    assert not is_versioned(pytest.__file__)
    assert not is_versioned(__file__)
    assert not is_versioned("<string>")


@pytest.mark.parametrize("name", ["torch", "torch_npu"])
def test_torch_is_versioned_and_packages_beside_it_whose_names_begin_alike_are_not(name, monkeypatch):
    package = ModuleType(name)
    package.__file__ = f"/opt/packages/{name}/__init__.py"
    monkeypatch.setitem(sys.modules, name, package)
    assert is_versioned(f"/opt/packages/{name}/nn/functional.py")
    assert not is_versioned(f"/opt/packages/{name}vision/models.py")
    assert not is_versioned(f"/opt/packages/{name}_of_mine.py")


def test_a_package_that_is_not_loaded_accounts_for_nothing(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    assert not is_versioned(str(Path(STDLIB) / "site-packages" / "torch_npu" / "npu" / "streams.py"))
