"""Series that a PromQL expression asks for, and the labels that it sorts or names them by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import promql_parser as parsed

# Grafana writes these into an expression before Prometheus sees it.
_VARIABLES = {"$__rate_interval": "5m", "$__range": "1h"}
_CHOSEN = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")


@dataclass(frozen=True)
class Selector:
    """What picks series: a metric's name and conditions on labels, with those that are summed up by."""

    name: str
    matchers: tuple[parsed.Matcher, ...]
    by: frozenset[str] = frozenset()

    def is_answered_by(self, labels: Mapping[str, str]) -> bool:
        """True if a series with these labels may be what is asked for: of what it is not to be, the label is enough."""
        return all(_fits(one, labels) for one in self.matchers)


def _fits(matcher: parsed.Matcher, labels: Mapping[str, str]) -> bool:
    match matcher.op:
        case parsed.MatchOp.Equal:
            return labels.get(matcher.name, "") == str(matcher.value)
        case parsed.MatchOp.Re:
            return re.fullmatch(matcher.value, labels.get(matcher.name, "")) is not None
        case _:
            return matcher.name in labels


def substituted(expr: str) -> str:
    """The expression with Grafana's variables replaced: each choice by what takes everything."""
    for name, value in _VARIABLES.items():
        expr = expr.replace(name, value)
    return _CHOSEN.sub(".*", expr)


def selectors(expr: str) -> list[Selector]:
    """Every selector of an expression.

    Raises:
        ValueError: it is no PromQL.
    """
    return [*_below(parsed.parse(substituted(expr)), frozenset())]


def _below(node: parsed.Expr, by: frozenset[str]) -> Iterator[Selector]:
    match node:
        case parsed.VectorSelector():
            yield Selector(node.name or "", tuple(node.matchers.matchers), by)
        case parsed.MatrixSelector():
            yield from _below(node.vector_selector, by)
        case parsed.AggregateExpr():
            modifier = node.modifier
            kept = modifier.labels if modifier and modifier.type == parsed.AggModifierType.By else []
            yield from _below(node.expr, by.union(kept))
        case parsed.Call():
            yield from _all(node.args, by)
        case parsed.BinaryExpr():
            yield from _all((node.lhs, node.rhs), by)
        case parsed.ParenExpr() | parsed.UnaryExpr() | parsed.SubqueryExpr():
            yield from _below(node.expr, by)
        case _:  # a number or a text
            return


def _all(nodes: Iterable[parsed.Expr], by: frozenset[str]) -> Iterator[Selector]:
    for node in nodes:
        yield from _below(node, by)
