"""A drawing, as SVG and without a library: dots on a logarithmic scale of ratios."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

__all__ = ["Dot", "dots"]

_COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#aa3377",
    "#66ccee",
    "#bb9900",
    "#777777",
    "#000000",
    "#994400",
    "#5533aa",
)
_DARK = {
    "#ffffff": "#1a1e23",
    "#333333": "#dce5ee",
    "#777777": "#a3adb8",
    "#e4e4e4": "#3a424b",
    "#f2f2f2": "#2a3037",
    "#000000": "#ffffff",
    "#4477aa": "#77aadd",
    "#228833": "#44aa55",
    "#aa3377": "#dd66aa",
    "#994400": "#dd8844",
    "#5533aa": "#aa88ff",
}
"""Colours on a dark page, for readers that prefer these."""
_WIDTH = 760
_RIGHT, _TOP = 24, 58


@dataclass(frozen=True)
class Dot:
    """A ratio, and how far it varied, as a share of it."""

    series: str
    value: float
    spread: float = 0.0


@dataclass(frozen=True)
class _Scale:
    """From decades to pixels."""

    low: int
    high: int
    start: float
    end: float

    def at(self, value: float) -> float:
        place = (log10(value) - self.low) / (self.high - self.low)
        return self.start + min(max(place, 0.0), 1.0) * (self.end - self.start)

    @property
    def decades(self) -> range:
        return range(self.low, self.high + 1)


def _scale(values: Sequence[float], start: float, end: float) -> _Scale:
    low, high = floor(log10(min(values, default=1.0))), ceil(log10(max(values, default=1.0)))
    return _Scale(min(low, 0), max(high, low + 1, 1), start, end)


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
            f'width="{_WIDTH}" '
            f'height="{height:.0f}" font-family="sans-serif" font-size="12" role="img" '
            f'aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            "<style>@media (prefers-color-scheme: dark) {",
            *(
                f'[fill="{light}"] {{ fill: {dark} }} [stroke="{light}"] {{ stroke: {dark} }}'
                for light, dark in _DARK.items()
            ),
            "}</style>",
            # A ground of its own: readers may choose a dark page against their preference.
            '<rect width="100%" height="100%" rx="6" fill="#ffffff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "#333333") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1.0) -> str:
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {place} stroke="{colour}" stroke-width="{width:g}"/>'


def _legend(series: Sequence[str], colours: Mapping[str, str]) -> tuple[list[str], float]:
    """The names of the series, in as many lines as they need, and the height below the first."""
    parts: list[str] = []
    x, below = 16.0, 0.0
    for name in series:
        width = 26 + 6.6 * len(name)
        if x + width > _WIDTH:
            x, below = 16.0, below + 20
        parts += [f'<circle cx="{x:.1f}" cy="{18 + below:g}" r="4.5" fill="{colours[name]}"/>']
        parts += [_text(x + 8, 22 + below, name)]
        x += width
    return parts, below


def _decade(power: int) -> str:
    return f"{10.0**power:g}×"


def dots(
    title: str,
    rows: Sequence[tuple[str, Sequence[Dot]]],
    series: Sequence[str],
    ends: tuple[str, str] = ("cheaper than ergo_py", "more expensive than ergo_py"),
) -> str:
    """A row for each piece of work, a dot in it for each of the series; 1 is marked, ``ends`` name
    the two sides of it.
    """
    left = 20 + 6.2 * max((len(label) for label, _ in rows), default=0)
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(series)}
    scale = _scale([dot.value for _, found in rows for dot in found], left, _WIDTH - _RIGHT)
    step = 22
    parts, below = _legend(series, colours)
    top = _TOP + below
    bottom = top + step * len(rows)
    for power in scale.decades:
        x = scale.at(10.0**power)
        parts += [
            _line(
                x,
                top - 6,
                x,
                bottom,
                "#999999" if power == 0 else "#e4e4e4",
                1.5 if power == 0 else 1,
            )
        ]
        parts += [_text(x, top - 12, _decade(power), "middle", "#777777")]
    for number, (label, found) in enumerate(rows):
        y = top + step * (number + 0.5)
        parts += [
            _text(left - 12, y + 4, label, "end"),
            _line(left, y, _WIDTH - _RIGHT, y, "#f2f2f2"),
        ]
        for dot in found:
            colour = colours[dot.series]
            low, high = dot.value * max(0.01, 1 - dot.spread / 2), dot.value * (1 + dot.spread / 2)
            parts += [_line(scale.at(low), y, scale.at(high), y, colour, 2)]
            parts += [
                f'<circle cx="{scale.at(dot.value):.1f}" cy="{y:.1f}" r="4.5" fill="{colour}" '
                'fill-opacity="0.85">'
                f"<title>{escape(f'{label}: {dot.series} {dot.value:.2f}×')}</title></circle>"
            ]
    parts += [_text(left, bottom + 22, f"← {ends[0]}", colour="#777777")]
    parts += [_text(_WIDTH - _RIGHT, bottom + 22, f"{ends[1]} →", "end", "#777777")]
    return _svg(bottom + 34, title, parts)
