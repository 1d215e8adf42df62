"""Grafana's JSON of a dashboard, by Grafana's own library for its schema.

Each query asks the data source that the dashboard's variable names, so that one file serves every Grafana.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders.common import ReduceDataOptions, VizLegendOptions
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as StatPanel
from grafana_foundation_sdk.builders.timeseries import Panel as TimeseriesPanel
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)

SOURCE = DataSourceRef("prometheus", "${datasource}")
_WIDTH = 24  # of a row of Grafana's grid
_STAT_HEIGHT, _PLOT_HEIGHT = 4, 8
_PLOTS_A_ROW = 3


@dataclass(frozen=True)
class Query:
    """A PromQL expression, and how its lines are named."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Stat:
    """One number of now. `bad_from`: the value from which it is red; None: it is never."""

    title: str
    expr: str
    told: str
    unit: str = "short"
    bad_from: float | None = None


@dataclass(frozen=True)
class Plot:
    """Lines over time."""

    title: str
    queries: Sequence[Query]
    told: str
    unit: str = "short"


@dataclass(frozen=True)
class Section:
    """A heading with its panels: numbers first, then plots."""

    title: str
    stats: Sequence[Stat] = ()
    plots: Sequence[Plot] = ()


@dataclass(frozen=True)
class Choice:
    """A variable of the dashboard: the values of a label of a series."""

    name: str
    label: str
    series: str


@dataclass(frozen=True)
class Page:
    """A dashboard. `key` names its file, and is the end of its id in Grafana."""

    key: str
    title: str
    told: str
    sections: Sequence[Section]
    choices: Sequence[Choice] = ()


def json_of(page: Page) -> str:
    """What Grafana imports."""
    board = (
        Dashboard(f"LoraPlane / {page.title}")
        .uid(f"loraplane-{page.key}")
        .description(page.told)
        .tags(["loraplane"])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(DashboardLink("LoraPlane").type(DashboardLinkType.DASHBOARDS).tags(["loraplane"]).keep_time(True))  # noqa: FBT003 - the library's form
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for choice in page.choices:
        board = board.with_variable(_variable(choice))
    number = itertools.count(1)
    for section in page.sections:
        board = board.with_row(Row(section.title).id(next(number)))
        for stat in section.stats:
            board = board.with_panel(_stat(stat, _WIDTH // len(section.stats)).id(next(number)))
        for plot in section.plots:
            board = board.with_panel(_plot(plot).id(next(number)))
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


def _variable(choice: Choice) -> QueryVariable:
    """All values until somebody chooses some."""
    return (
        QueryVariable(choice.name)
        .label(choice.name.capitalize())
        .datasource(SOURCE)
        .query(f"label_values({choice.series}, {choice.label})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".+")
    )


def _stat(stat: Stat, width: int) -> StatPanel:
    steps = [Threshold(value=None, color="green")]
    if stat.bad_from is not None:
        steps.append(Threshold(value=stat.bad_from, color="red"))
    return (
        StatPanel()
        .title(stat.title)
        .description(stat.told)
        .datasource(SOURCE)
        .unit(stat.unit)
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(BigValueGraphMode.NONE)
        .color_mode(BigValueColorMode.VALUE)
        .thresholds(ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .height(_STAT_HEIGHT)
        .span(width)
        .with_target(Dataquery().ref_id("A").datasource(SOURCE).expr(stat.expr).instant())
    )


def _plot(plot: Plot) -> TimeseriesPanel:
    legend = (
        VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(show_legend=True)
    )
    panel = (
        TimeseriesPanel()
        .title(plot.title)
        .description(plot.told)
        .datasource(SOURCE)
        .unit(plot.unit)
        .min(0)
        .fill_opacity(8)
        .legend(legend)
        .height(_PLOT_HEIGHT)
        .span(_WIDTH // _PLOTS_A_ROW)
    )
    for letter, query in zip("ABCDEF", plot.queries, strict=False):
        target = Dataquery().ref_id(letter).datasource(SOURCE).expr(query.expr).legend_format(query.legend).range()
        panel = panel.with_target(target)
    return panel
