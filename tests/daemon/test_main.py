"""The command's own decisions: what it takes of the system, and what it says of that."""

from __future__ import annotations

import resource

import pytest

from npgxd.daemon import main

FEW, MANY, ENDLESS = 1024, 1_048_576, resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "taken", "warned"),
    [
        (FEW, MANY, main.DESCRIPTORS, False),
        (FEW, ENDLESS, main.DESCRIPTORS, False),
        (FEW, FEW, FEW, True),
        (FEW, main.FEW_DESCRIPTORS, main.FEW_DESCRIPTORS, False),
        (MANY, MANY, MANY, False),
    ],
)
def test_as_many_descriptors_are_taken_as_are_of_use_and_a_daemon_that_may_have_few_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, soft: int, hard: int, taken: int, warned: bool
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _which, wanted: limits.append(wanted))
    main._allow_descriptors(alone=True)
    assert (limits[-1], caplog.text) == ((taken, hard), "")
    main._allow_descriptors(alone=False)
    assert ("raise LimitNOFILE= to 16384 or more" in caplog.text) is warned
