from __future__ import annotations

import itertools

import pytest

from npgxd.errors import ToolchainError
from npgxd.toolchain.versions import is_at_least, version_key
from npgxd.wire.soc import is_supported, soc_family
from tools.cann_sim.compiler.socs import SOCS


@pytest.mark.parametrize(
    ("soc", "family"),
    [
        ("Ascend910B3", "ascend910b"),
        ("Ascend910B4-1", "ascend910b"),
        ("Ascend910B2C", "ascend910b"),
        ("Ascend910_9382", "ascend910_93"),
        ("Ascend910B", "ascend910"),  # not of the family that its name seems to say
        ("Ascend910ProA", "ascend910"),
        ("Ascend310P3", "ascend310p"),
        ("Ascend950DT_9591", "ascend950"),
    ],
)
def test_a_soc_has_the_family_that_names_its_directories(soc: str, family: str) -> None:
    assert soc_family(soc) == family


def test_every_soc_of_the_simulation_is_known_with_the_same_family() -> None:
    assert {name: soc_family(name) for name in SOCS} == {name: soc.family for name, soc in SOCS.items()}


@pytest.mark.parametrize("soc", ["", "ascend910b3", "Ascend910B5", "Ascend910B3 ", "Ascend950/../x", "Ascend910B3\n"])
def test_an_unknown_soc_is_refused_with_the_known_ones(soc: str) -> None:
    with pytest.raises(ToolchainError) as caught:
        soc_family(soc)
    assert "Ascend910B3" in caught.value.hint
    assert not is_supported(soc)


def test_static_kernels_exist_for_a2_and_a3_alone() -> None:
    supported = {name for name in SOCS if is_supported(name)}
    assert {soc_family(name) for name in supported} == {"ascend910b", "ascend910_93"}
    assert not is_supported("Ascend950PR")


def test_versions_are_ordered_as_they_are_released() -> None:
    ordered = [
        *("", "8.0.RC3.alpha001", "8.0.RC3", "8.0.0", "8.1.RC1", "8.5.0-beta.1", "8.5.0", "9.0.0"),
        *("9.1.0.alpha001", "9.1.0.alpha002", "9.1.0-beta.1", "9.1.0.beta.2", "9.1.0.RC1", "9.1.0.T17", "9.1.0", "9.1.0.SPC001"),
        *("9.1.1", "9.10.0"),
    ]
    for earlier, later in itertools.pairwise(ordered):
        assert version_key(earlier) < version_key(later), (earlier, later)


def test_spellings_of_one_version_are_equal() -> None:
    assert version_key("9.1.0.beta.1") == version_key("9.1.0-beta.1") == version_key("9.1.0.BETA1") == version_key(" 9.1.beta1 ")
    assert version_key("9.1") == version_key("9.1.0")


@pytest.mark.parametrize(
    "version", ["9.1.0.beta.1", "9.1.0-beta.1", "9.1.0.alpha001", "9.1.0.RC1", "9.0.0", "8.5.0", "", "unknown"]
)
def test_a_beta_is_not_its_release(version: str) -> None:
    assert not is_at_least(version, "9.1.0")


@pytest.mark.parametrize("version", ["9.1.0", "9.1", "9.1.0.SPC002", "9.2.0-beta.1", "10.0"])
def test_the_release_and_what_follows_count(version: str) -> None:
    assert is_at_least(version, "9.1.0")
