"""`render_metrics`: the metrics of a node as text, for Prometheus and every scraper that reads its
formats.
"""

from typing import Final

from .._core.vocabulary.public_names import show_public_names
from .figures import read_figures
from .metrics import Family, Histogram, Sample, cumulative, families_of

__all__ = [
    "OPEN_METRICS",
    "PROMETHEUS",
    "render_metrics",
    "write_open_metrics",
    "write_prometheus",
]

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_MAX_AGE: Final = 1.0
"""Scrapes that come faster than this, in seconds, get the last figures."""


def render_metrics(node: object, accept: str = "") -> tuple[str, bytes]:
    """The content type and the text of a scrape. For any thread: it works while the loop of the
    node is blocked, too.

    For example, in a thread of your own::

        content_type, body = render_metrics(node)

    Args:
        node: a node of this program.
        accept: the header ``Accept`` of the scraper; if it takes OpenMetrics, it gets OpenMetrics
            1.0, else the text format 0.0.4 of Prometheus.
    """
    families = families_of(read_figures(node, _MAX_AGE))
    if _takes_open_metrics(accept):
        return OPEN_METRICS, write_open_metrics(families).encode(errors="replace")
    return PROMETHEUS, write_prometheus(families).encode(errors="replace")


def _takes_open_metrics(accept: str) -> bool:
    for offer in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in offer.split(";"))
        if kind == "application/openmetrics-text":
            quality = next((each[2:] for each in parameters if each.startswith("q=")), "1")
            return quality.strip(" 0.") != ""
    return False


# -- the formats -----------------------------------------------------------------------------------


def write_prometheus(families: list[Family]) -> str:
    """The text format 0.0.4 of Prometheus."""
    lines: list[str] = []
    for metric, samples in families:
        lines.append(f"# HELP {metric.sample_name} {_escaped_help(metric.help)}")
        lines.append(f"# TYPE {metric.sample_name} {metric.kind}")
        _write_samples(lines, metric.sample_name, samples)
    return "\n".join((*lines, ""))


def write_open_metrics(families: list[Family]) -> str:
    """OpenMetrics 1.0."""
    lines: list[str] = []
    for metric, samples in families:
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        if metric.unit:
            lines.append(f"# UNIT {metric.name} {metric.unit}")
        lines.append(f"# HELP {metric.name} {_escaped(metric.help)}")
        _write_samples(lines, metric.sample_name, samples)
    return "\n".join((*lines, "# EOF", ""))


def _write_samples(lines: list[str], name: str, samples: list[Sample]) -> None:
    for labels, value in samples:
        text = ",".join(f'{label}="{_escaped(each)}"' for label, each in labels)
        if isinstance(value, Histogram):
            for bound, count in cumulative(value):
                lines.append(f'{name}_bucket{{{text},le="{bound}"}} {count}')
            lines.append(f"{name}_sum{{{text}}} {value.total!r}")
            lines.append(f"{name}_count{{{text}}} {sum(value.counts)}")
        else:
            lines.append(f"{name}{{{text}}} {value!r}")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


show_public_names(__name__)
