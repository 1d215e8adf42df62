"""Series that a PromQL expression asks for, and the labels that it sorts or names them by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import promql_parser as parsed

# Grafana writes these into an expression before Prometheus sees it.
_VARIABLES = {"$__rate_interval": "5m", "$__range": "1h"}
_CHOSEN = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")


@dataclass(frozen=True)
class Selector:
    """What picks series: a metric's name and conditions on labels, with those that are summed up by.

    `is_compared`: it is what many series are compared with, and no line has its labels.
    """

    name: str
    matchers: tuple[parsed.Matcher, ...]
    by: frozenset[str] = frozenset()
    is_compared: bool = False

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
            yield from _below(node.lhs, by)
            is_one = node.modifier is not None and node.modifier.card == parsed.VectorMatchCardinality.ManyToOne
            yield from (replace(one, is_compared=one.is_compared or is_one) for one in _below(node.rhs, by))
        case parsed.ParenExpr() | parsed.UnaryExpr() | parsed.SubqueryExpr():
            yield from _below(node.expr, by)
        case _:  # a number or a text
            return


def _all(nodes: Iterable[parsed.Expr], by: frozenset[str]) -> Iterator[Selector]:
    for node in nodes:
        yield from _below(node, by)


def unmatched(expr: str) -> list[str]:
    """Operations of an expression that nothing comes of: no series of one side has the labels of one of the other."""
    return [f"{one}" for one in _operations(parsed.parse(substituted(expr))) if not _is_matched(one)]


def _operations(node: parsed.Expr) -> Iterator[parsed.BinaryExpr]:
    match node:
        case parsed.BinaryExpr():
            yield node
            yield from (*_operations(node.lhs), *_operations(node.rhs))
        case parsed.Call():
            for one in node.args:
                yield from _operations(one)
        case parsed.AggregateExpr() | parsed.ParenExpr() | parsed.UnaryExpr() | parsed.SubqueryExpr():
            yield from _operations(node.expr)


def _is_matched(operation: parsed.BinaryExpr) -> bool:
    if f"{operation.op}" == "or" or (operation.modifier and operation.modifier.matching):
        return True
    sides = [_kept(side) for side in (operation.lhs, operation.rhs)]
    return None in sides or sides[0] == sides[1]


def _kept(node: parsed.Expr) -> object:
    """Labels that the series of a vector keep: all of theirs, or those that they are summed up by; None: a number."""
    match node:
        case parsed.AggregateExpr():
            return frozenset(node.modifier.labels if node.modifier else ())
        case parsed.ParenExpr() | parsed.UnaryExpr():
            return _kept(node.expr)
        case parsed.BinaryExpr():
            left = _kept(node.lhs)
            return _kept(node.rhs) if left is None else left
        case parsed.Call() if node.func.return_type == parsed.ValueType.Scalar:
            return None
        case parsed.NumberLiteral() | parsed.StringLiteral():
            return None
        case _:
            return "all"
