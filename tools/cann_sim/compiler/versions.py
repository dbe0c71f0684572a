"""What differs between the CANN versions that the simulation knows."""

from __future__ import annotations

from typing import NamedTuple


class Features(NamedTuple):
    """The behaviour of one CANN version."""

    version: str
    follow_takes_value: bool
    """``-f true`` is accepted (from 9.0); in 8.5.0 ``-f`` takes no value."""
    install_path: bool
    """Run packages take ``--install-path=<root>`` (from 9.1.0, not in its betas)."""
    lock_file: bool
    """The installer holds ``config/static_kernel.lock`` (the newest layout only)."""
    tune_mode_deprecated: bool
    """``-m`` still works, and says that it is going away."""


FEATURES = {
    features.version: features
    for features in (
        Features("8.5.0", follow_takes_value=False, install_path=False, lock_file=False, tune_mode_deprecated=False),
        Features("9.0.0", follow_takes_value=True, install_path=False, lock_file=False, tune_mode_deprecated=False),
        Features("9.1.0-beta.1", follow_takes_value=True, install_path=False, lock_file=False, tune_mode_deprecated=True),
        Features("9.1.0", follow_takes_value=True, install_path=True, lock_file=True, tune_mode_deprecated=True),
    )
}


def features_of(version: str) -> Features:
    """The behaviour of ``version``; LookupError lists what can be simulated."""
    try:
        return FEATURES[version]
    except KeyError:
        raise LookupError(f"CANN {version} is not simulated; known: {', '.join(FEATURES)}") from None
