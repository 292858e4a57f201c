"""What the asv suites share."""

from __future__ import annotations


def with_peak_memory(suite):
    """A ``peakmem_`` beside every ``time_`` of a suite."""
    for name in [name for name in vars(suite) if name.startswith("time_")]:
        twin = "peakmem_" + name.removeprefix("time_")
        if twin not in vars(suite):
            setattr(suite, twin, vars(suite)[name])
    return suite
