"""Metrics, health and traces of a node."""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .figures import read_figures
    from .health import Health
    from .instruments import instrument, register
    from .pages import HealthPage, MetricsPage
    from .spans import OpenTelemetry
    from .text import render_metrics

__all__ = [
    "Health",
    "HealthPage",
    "MetricsPage",
    "OpenTelemetry",
    "instrument",
    "read_figures",
    "register",
    "render_metrics",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "figures": "read_figures",
            "health": "Health",
            "instruments": "instrument register",
            "pages": "HealthPage MetricsPage",
            "spans": "OpenTelemetry",
            "text": "render_metrics",
        },
    )
