"""The text that Prometheus reads: exposition format 0.0.4 (https://prometheus.io/docs/instrumenting/exposition_formats/). Pure.

Promise: every family of ``METRICS`` is there with its help and type, in their order; no value of a label can break a line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from npgxd.daemon.telling.metrics_names import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """One value. ``suffix`` is ``_bucket``, ``_sum`` or ``_count`` for those of a histogram."""

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


def exposition(samples: Mapping[str, Iterable[Sample]]) -> str:
    """The families by name, as text."""
    lines: list[str] = []
    for metric in METRICS:
        lines += [f"# HELP {metric.name} {_escaped(metric.help, quotes=False)}", f"# TYPE {metric.name} {metric.kind}"]
        for sample in samples.get(metric.name, ()):
            labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
            lines.append(f"{metric.name}{sample.suffix}{'{' + labels + '}' if labels else ''} {_number(sample.value)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def _escaped(text: str, *, quotes: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
