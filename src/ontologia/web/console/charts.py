"""Charts as SVG, made by the server, each with the table of its figures.

There is no style attribute and no script: `static/charts.css` has the colours, by class. A chart is
as wide as its place: 420 units wide, so that its text is readable at the width of a phone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Literal, TypeAlias

import jinja2
from markupsafe import Markup

from ontologia.web.console.rendering import visible
from ontologia.web.console.sampler import Figures, Series

Values: TypeAlias = Sequence[float | None]
Tone: TypeAlias = Literal["good", "busy", "wait", "bad"]
WIDTH, HEIGHT = 420, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 84, 10, 20
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_MOST_POINTS = 120
_LABEL = 13  # units between two labels
_WIDEST_BAR = 12
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)  # minutes between two times of the axis
_TIMES = 4
_LONGEST_NAME = 60  # characters of a handler's
_SPARK_WIDTH, _SPARK_HEIGHT = 96, 20
_FIGURE = jinja2.Environment(
    autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
).from_string(
    """<figure class="chart"><figcaption>{{ chart.title }} <small>{{ chart.note }}</small></figcaption>
{{ chart.svg }}
<details><summary>As a table</summary><div class="scroll" tabindex="0" role="region"
 aria-label="{{ chart.title }}"><table><caption>{{ chart.title }}</caption>
<thead><tr>{% for name in chart.columns %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in chart.rows %}<tr><th scope="row">{{ row[0] }}</th>
{%- for value in row[1:] %}<td class="num">{{ value }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div></details></figure>"""
)


@dataclass(frozen=True, slots=True)
class Line:
    """The values of one name, one for each time."""

    name: str
    tone: Tone
    values: Values
    shape: Literal["line", "dashed", "area", "bars"] = "line"
    """Bars of several names are stacked."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, and its figures. `{{ chart }}` in a template is all of it."""

    title: str
    note: str
    svg: Markup
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The latest first."""

    def __html__(self) -> str:
        return _FIGURE.render(chart=self)


def charts_of(series: Series) -> tuple[Chart, Chart, Chart]:
    """What came, was done and failed; the age of the oldest that waits; how long events took.

    The minute that is running is left out of the first, where it would look like a fall.
    """
    minutes, _ = _grouped(series.minutes)
    times = [each.at for each in minutes]
    whole, whole_sizes = _grouped(series.minutes[:-1] or series.minutes)
    note = f"since {series.began:%H:%M} UTC"
    whose = "" if series.handler is None else f" of {visible(series.handler[:_LONGEST_NAME])}"

    def rate(name: Literal["came", "done", "failed"]) -> list[float]:
        return [getattr(each, name) / size for each, size in zip(whole, whole_sizes, strict=True)]

    return (
        chart(
            f"Events{whose}",
            [each.at for each in whole],
            [
                Line("done", "good", rate("done"), "bars"),
                Line("failed", "bad", rate("failed"), "bars"),
                Line("came", "busy", rate("came")),
            ],
            said=count,
            note=f"a minute, {note}",
        ),
        chart(
            f"Oldest that waits{whose}",
            times,
            [Line("age", "wait", [each.oldest for each in minutes], "area")],
            said=length,
            note=note,
        ),
        chart(
            f"From emit to ack{whose}",
            times,
            [
                Line("p95", "busy", [each.p95 for each in minutes], "dashed"),
                Line("p50", "busy", [each.p50 for each in minutes]),
            ],
            said=length,
            note=note,
        ),
    )


def chart(
    title: str,
    times: Sequence[datetime],
    lines: Sequence[Line],
    *,
    said: Callable[[float], str],
    note: str = "",
) -> Chart:
    """Some lines over the same times; `said` writes a value, and None is a gap."""
    stack = [0.0] * len(times)
    for line in lines:
        if line.shape == "bars":
            stack = [low + (value or 0) for low, value in zip(stack, line.values, strict=True)]
    known = [value for line in lines for value in line.values if value is not None]
    ticks = _ticks(max([*known, *stack], default=0.0), in_time=said is length)
    plot = _Plot(times, ticks[-1])
    parts = [_axes(plot, ticks, said)]
    low = [0.0] * len(times)
    for line in lines:
        if line.shape == "bars":
            parts.append(plot.bars(line, low))
            low = [each + (value or 0) for each, value in zip(low, line.values, strict=True)]
        else:
            parts.append(plot.line(line))
    parts += [plot.labels(lines, said), plot.tips(lines, said)]
    summary = ", ".join(f"{line.name} {_last(line, said)}" for line in lines)
    svg = Markup(
        '<svg class="plot" viewBox="0 0 {} {}" role="img"><title>{}</title><desc>{}</desc>{}</svg>'
    ).format(WIDTH, HEIGHT, title, f"At the end: {summary}.", Markup("").join(parts))
    rows = tuple(
        (f"{at:%Y-%m-%d %H:%M}", *(_said(line.values[number], said) for line in lines))
        for number, at in reversed(list(enumerate(times)))
    )
    return Chart(title, note, svg, ("UTC", *(line.name for line in lines)), rows)


def sparkline(title: str, values: Values, tone: Tone = "busy") -> Markup:
    """A line of the size of a word, for a row of a table; `title` says what it shows."""
    most = max((value for value in values if value is not None), default=0) or 1
    step = (_SPARK_WIDTH - 4) / max(len(values) - 1, 1)
    places = [
        None
        if value is None
        else (2 + number * step, _SPARK_HEIGHT - 2 - value / most * (_SPARK_HEIGHT - 4))
        for number, value in enumerate(values)
    ]
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" role="img"><title>{}</title>'
        '<path class="line {}" d="{}"/></svg>'
    ).format(_SPARK_WIDTH, _SPARK_HEIGHT, title, tone, _path(places))


def count(value: float) -> str:
    """`1,234`, `0.5`."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}".removesuffix(".0")


def length(seconds: float) -> str:
    """`120 ms`, `3.2 s`, `5 min`, `2.5 h`, `3 d`."""
    if seconds == 0:
        return "0"
    for most, size, unit in (
        (1, 0.001, "ms"),
        (60, 1, "s"),
        (3600, 60, "min"),
        (86_400, 3600, "h"),
    ):
        if seconds < most:
            value = seconds / size
            return f"{value:.0f} {unit}" if value >= 10 or unit == "ms" else f"{value:.2g} {unit}"
    return f"{seconds / 86_400:.3g} d"


# -- a plot ----------------------------------------------------------------------------------------


class _Plot:
    """Where times and values are."""

    def __init__(self, times: Sequence[datetime], most: float) -> None:
        self.times, self.most = times, most
        self.step = _PLOT_WIDTH / max(len(times), 1)

    def x(self, number: int) -> float:
        """The middle of a time."""
        return _LEFT + (number + 0.5) * self.step

    def y(self, value: float) -> float:
        """The height of a value."""
        return _TOP + _PLOT_HEIGHT * (1 - value / self.most)

    def line(self, line: Line) -> Markup:
        """A line with gaps; of an area with what is below it."""
        places = [
            None if value is None else (self.x(number), self.y(value))
            for number, value in enumerate(line.values)
        ]
        found = Markup('<path class="line {} {}" d="{}"/>').format(
            line.tone, line.shape, _path(places)
        )
        if line.shape == "area":
            below = Markup('<path class="fill {}" d="{}"/>').format(
                line.tone, _path(places, base=self.y(0))
            )
            return below + found
        return found

    def bars(self, line: Line, low: Sequence[float]) -> Markup:
        """A bar for each value, on top of those below it."""
        width = min(max(self.step - 1, self.step * 0.6), _WIDEST_BAR)
        rects = [
            f"M{_n(self.x(number) - width / 2)} {_n(self.y(base))}h{_n(width)}"
            f"V{_n(self.y(base + value))}h{_n(-width)}z"
            for number, (value, base) in enumerate(zip(line.values, low, strict=True))
            if value
        ]
        return Markup('<path class="bar {}" d="{}"/>').format(line.tone, "".join(rects))

    def labels(self, lines: Sequence[Line], said: Callable[[float], str]) -> Markup:
        """The value at the end of each line, with its name, none on top of another."""
        wanted = sorted(
            (
                (self.y(min(value or 0, self.most)), line)
                for line in lines
                for value in [_end(line)]
            ),
            key=lambda each: each[0],
        )
        found, floor = Markup(""), _TOP - _LABEL / 2
        below = HEIGHT - _BOTTOM + 4 - _LABEL * (len(wanted) - 1)
        for number, (height, line) in enumerate(wanted):
            floor = min(max(height + 4, floor + _LABEL), below + _LABEL * number)
            found += Markup(
                '<text class="end {}" x="{}" y="{}">{} <tspan>{}</tspan></text>'
            ).format(line.tone, WIDTH - _RIGHT + 5, _n(floor), _last(line, said), line.name)
        return found

    def tips(self, lines: Sequence[Line], said: Callable[[float], str]) -> Markup:
        """What a pointer over a time is told."""
        return Markup("").join(
            Markup('<rect class="tip" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>')
            .format(
                _n(_LEFT + number * self.step),
                _TOP,
                _n(self.step),
                _PLOT_HEIGHT,
                f"{at:%H:%M} UTC: "
                + ", ".join(f"{line.name} {_said(line.values[number], said)}" for line in lines),
            )
            for number, at in enumerate(self.times)
        )  # fmt: skip


def _axes(plot: _Plot, ticks: Sequence[float], said: Callable[[float], str]) -> Markup:
    found = Markup("")
    for tick in ticks:
        height = plot.y(tick)
        found += Markup(
            '<path class="{}" d="M{} {}H{}"/><text class="axis y" x="{}" y="{}">{}</text>'
        ).format(
            "grid" if tick else "ground",
            _LEFT,
            _n(height),
            WIDTH - _RIGHT,
            _LEFT - 6,
            _n(height + 3.5),
            said(tick),
        )
    for number, text in _marks(plot.times):
        found += Markup('<text class="axis x" x="{}" y="{}">{}</text>').format(
            _n(plot.x(number)), HEIGHT - 5, text
        )
    return found


def _marks(times: Sequence[datetime]) -> list[tuple[int, str]]:
    """Some times at full steps, by their places."""
    if not times:
        return []
    minutes = (times[-1] - times[0]) / timedelta(minutes=1)
    step = next((each for each in _STEPS if minutes / each <= _TIMES), _STEPS[-1])
    found: list[tuple[int, str]] = []
    for number, (before, at) in enumerate(pairwise([times[0] - timedelta(minutes=1), *times])):
        if _whole(before, step) != _whole(at, step):
            mark = datetime.fromtimestamp(60 * step * _whole(at, step), UTC)
            found.append((number, f"{mark:%H:%M}"))
    return found


def _whole(at: datetime, step: int) -> int:
    return int(at.timestamp() // 60 // step)


def _ticks(most: float, *, in_time: bool) -> list[float]:
    """Nothing, half and the top: round numbers, that hold the greatest value."""
    if most < 1e-9:
        return [0, 1]
    unit = 1.0
    if in_time:
        unit = next(size for size in (86_400, 3600, 60, 1, 0.001) if most >= size or size == 0.001)
    power = 10 ** math.floor(math.log10(most / unit))
    top = next(each for each in (1, 2, 4, 6, 8, 10) if each * power * unit >= most * 0.999999)
    if not in_time and top * power < 2:
        return [0, top * power]
    return [0, top * power * unit / 2, top * power * unit]


def _path(places: Sequence[tuple[float, float] | None], base: float | None = None) -> str:
    """A path through places, with gaps; down to `base`, if there is one. One alone is a dot."""
    runs: list[list[tuple[float, float]]] = [[]]
    for place in places:
        if place is not None:
            runs[-1].append(place)
        elif runs[-1]:
            runs.append([])
    found: list[str] = []
    for run in filter(None, runs):
        points = "L".join(f"{_n(x)} {_n(y)}" for x, y in run)
        if base is not None:
            found.append(f"M{_n(run[0][0])} {_n(base)}L{points}V{_n(base)}z")
        else:
            found.append(f"M{points}" + ("h0" if len(run) == 1 else ""))
    return "".join(found)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _end(line: Line) -> float | None:
    return line.values[-1] if line.values else None


def _last(line: Line, said: Callable[[float], str]) -> str:
    return _said(_end(line), said)


def _said(value: float | None, said: Callable[[float], str]) -> str:
    return "–" if value is None else said(value)  # noqa: RUF001


# -- minutes --------------------------------------------------------------------------------------


def _grouped(minutes: Sequence[Figures]) -> tuple[list[Figures], list[int]]:
    """So few points that they can be told apart, and how many minutes are in each.

    Counts are added; of ages and times the greatest is shown.
    """
    wide = max(1, math.ceil(len(minutes) / _MOST_POINTS))
    parts = [minutes[start : start + wide] for start in range(0, len(minutes), wide)]
    grouped = [
        Figures(
            part[0].at,
            sum(each.came for each in part),
            sum(each.done for each in part),
            sum(each.failed for each in part),
            _greatest(each.oldest for each in part),
            _greatest(each.p50 for each in part),
            _greatest(each.p95 for each in part),
        )
        for part in parts
    ]
    return grouped, [len(part) for part in parts]


def _greatest(values: Iterable[float | None]) -> float | None:
    return max((each for each in values if each is not None), default=None)
