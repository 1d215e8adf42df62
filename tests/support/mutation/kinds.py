"""The changes that can be made to a source file, found in its syntax tree. Pure."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import indent

_LOGS = ("_log.", "log.", "hit(")
_OTHER: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_WRITTEN: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
_OPPOSITE: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.Div: "*"}
_ENDS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_BLOCKS = ("body", "orelse", "finalbody")
_JUMPS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
# By these methods, and by themselves, locks and places are held.
_HOLDS = {"held", "hold", "taken"}
_NO_LOCK = '__import__("contextlib").nullcontext()'
Found = tuple[str, ast.AST, str]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one file.

    Attributes:
        id: the same wherever the code around it moves to.
        path: of the file, from the root of the repository.
        place: the function or class that it is in; empty: the module itself.
        kind: what is changed.
        line: where, from 1.
        begin: first byte of what is changed.
        end: the byte after it.
        was: the text that goes.
        becomes: the text that comes.
    """

    id: str
    path: str
    place: str
    kind: str
    line: int
    begin: int
    end: int
    was: str
    becomes: str

    def apply(self, source: bytes) -> bytes:
        """The file with the change."""
        return source[: self.begin] + self.becomes.encode() + source[self.end :]


def mutations(path: str, source: bytes) -> list[Mutation]:
    """All changes of a file, in the order of its lines. Whether what they leave compiles is `compiles`' to say."""
    text = source.decode()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    found: list[Mutation] = []
    seen: Counter[tuple[str, ...]] = Counter()
    for place, (kind, node, becomes) in _walk(ast.parse(text), ""):
        begin, end = _span(node, starts)
        was = source[begin:end].decode()
        what = (path, place, kind, was, becomes)
        seen[what] += 1
        name = hashlib.sha256("\0".join((*what, str(seen[what]))).encode()).hexdigest()[:12]
        made = Mutation(name, path, place, kind, _first_line(node), begin, end, was, becomes)
        if was != becomes:
            found.append(made)
    return sorted(found, key=lambda one: (one.begin, one.end, one.kind, one.becomes))


class _Run(ast.AST):
    """Statements that follow each other, as if they were one node."""

    def __init__(self, first: ast.stmt, last: ast.stmt) -> None:
        self.first, self.last = first, last


def _span(node: ast.AST, starts: Sequence[int]) -> tuple[int, int]:
    first, last = (node.first, node.last) if isinstance(node, _Run) else (node, node)
    begin = starts[first.lineno - 1] + first.col_offset  # type: ignore[attr-defined] # expressions and statements
    return begin, starts[last.end_lineno - 1] + last.end_col_offset  # type: ignore[attr-defined]


def _first_line(node: ast.AST) -> int:
    line: int = (node.first if isinstance(node, _Run) else node).lineno  # type: ignore[attr-defined]
    return line


def compiles(source: bytes) -> bool:
    """Whether it is a module of Python."""
    try:
        compile(source, "mutated", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _walk(node: ast.AST, place: str) -> Iterator[tuple[str, Found]]:
    """Every change below a node, with the names of the functions and classes around it."""
    for child in _children(node):
        if _is_left_out(child):
            continue
        inner = f"{place}.{child.name}".strip(".") if isinstance(child, _NAMED) else place
        yield from ((inner, found) for found in _changes(child, is_module=not place))
        yield from _walk(child, inner)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """What runs below a node: no decorators, no annotations."""
    for name, value in ast.iter_fields(node):
        if name not in {"decorator_list", "annotation", "returns", "keywords"} or isinstance(node, ast.Call):
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, ast.AST))


_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _is_left_out(node: ast.AST) -> bool:
    """What nobody promises: log lines, what is only for types, imports, and what an error says.

    Of text with fields this Python does not tell where they are.
    """
    if isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.Assert):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) or ast.unparse(node).startswith((*_LOGS, "assert_never"))
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _changes(node: ast.AST, *, is_module: bool) -> Iterator[Found]:
    for block in _BLOCKS:
        statements = getattr(node, block, None)
        if isinstance(statements, list):
            yield from _of_block(statements)
    if isinstance(node, ast.Assign | ast.AnnAssign) and is_module:
        yield from _of_module_constant(node)
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield from _of_condition(node)
    elif isinstance(node, ast.expr):
        yield from _of_expression(node)
    else:
        yield from _of_scope(node)


def _of_block(statements: list[ast.stmt]) -> Iterator[Found]:
    for one in statements:
        if kind := _dropped(one):
            yield kind, one, "pass"
    for first, second in pairwise(statements):
        if kind := _exchanged(first, second):
            yield kind, _Run(first, second), _written(first, second, first)
    for number, one in enumerate(statements):
        if _is_clear(one):
            yield from _of_clear(one, statements[number + 1 :])


def _exchanged(first: ast.stmt, second: ast.stmt) -> str:
    """What kind of change it is to exchange two neighbours; empty: they stay."""
    both = (first, second)
    if first.lineno == second.lineno or _names(first, ast.Store) & _names(second, ast.Load):
        return ""
    if any(_is_guard(one) and _waits(other) and not isinstance(other, _JUMPS) for one, other in (both, both[::-1])):
        return "moved guard"
    if all(isinstance(one, ast.Expr | ast.Assign | ast.AnnAssign) and _waits(one) for one in both):
        return "swapped awaits"
    if all(isinstance(one, ast.Assign) for one in both) or (_is_clear(first) and _waits(second)):
        return ""  # nobody can tell; a kind of its own
    return "swapped effects" if all(map(_is_effect, both)) else ""


def _of_clear(clear: ast.stmt, later: Sequence[ast.stmt]) -> Iterator[Found]:
    """What comes while the work waits is forgotten."""
    work = next((number for number, one in enumerate(later) if _waits(one)), None)
    if work is not None and not isinstance(later[work], _JUMPS):
        yield "late clear", _Run(clear, later[work]), _written(clear, *later[: work + 1], clear)


def _of_scope(node: ast.AST) -> Iterator[Found]:
    if isinstance(node, ast.ExceptHandler):
        yield from _of_handler(node)
    elif isinstance(node, ast.Try):
        yield from _of_finally(node)
    elif isinstance(node, ast.AsyncWith):
        yield from _of_async_with(node)


def _of_finally(node: ast.Try) -> Iterator[Found]:
    if node.finalbody:
        tried = [ast.Try(**vars(node) | {"finalbody": []})] if node.handlers else node.body
        yield "unwrapped finally", node, _written(node, *tried, *node.finalbody)


def _of_async_with(node: ast.AsyncWith) -> Iterator[Found]:
    for item in node.items:
        held = item.context_expr.func if isinstance(item.context_expr, ast.Call) else item.context_expr
        is_lock = held is item.context_expr or (isinstance(held, ast.Attribute) and held.attr in _HOLDS)
        if is_lock and not item.optional_vars:
            yield "dropped lock", item.context_expr, _NO_LOCK
    guard, *rest = node.body
    is_bound = any(_names(item, ast.Store) & _names(guard, ast.Load) for item in node.items)
    if rest and _is_guard(guard) and not is_bound:
        yield "moved guard", node, _written(node, guard, ast.AsyncWith(**vars(node) | {"body": rest}))


def _is_clear(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="clear"), args=[])):
            return True
    return False


def _is_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], _JUMPS)


def _waits(node: ast.stmt) -> bool:
    """Whether others may run meanwhile."""
    if isinstance(node, _NAMED):
        return False
    return any(isinstance(one, ast.Await | ast.AsyncWith | ast.AsyncFor) for one in ast.walk(node))


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, context)}


def _written(place: ast.stmt, *statements: ast.stmt) -> str:
    """The text of statements, where another one stands."""
    return indent("\n".join(map(ast.unparse, statements)), " " * place.col_offset).lstrip()


def _dropped(node: ast.stmt) -> str:
    """What kind of change it is to leave the statement out; empty: it is not left out."""
    if isinstance(node, ast.Expr) and _is_effect(node):
        return "dropped await" if isinstance(node.value, ast.Await) else "dropped call"
    if isinstance(node, ast.AugAssign | ast.Delete) or _is_effect(node):
        return "dropped change"
    return "dropped jump" if isinstance(node, ast.Continue | ast.Break) else ""


def _is_effect(node: ast.stmt) -> bool:
    """A call, or a change of what others see."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call | ast.Await) and not _is_left_out(node)
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)


def _of_module_constant(node: ast.Assign | ast.AnnAssign) -> Iterator[Found]:
    """Times and sizes, which are decided at the head of a module."""
    match node.value:
        case ast.Constant(value=bool()):
            return
        case ast.Constant(value=int(value)) if value:
            yield "constant", node.value, repr(value * 10)
            yield "constant", node.value, repr(value // 10)
        case ast.Constant(value=float(value)) if value:
            yield "constant", node.value, repr(value * 10)
            yield "constant", node.value, repr(value / 10)


def _of_condition(node: ast.If | ast.IfExp | ast.While) -> Iterator[Found]:
    # Of a loop only what ends it: one without end is noticed by whoever waits, which says little of tests.
    if not isinstance(node, ast.While):
        yield "dropped condition", node.test, "True"
    if not (isinstance(node.test, ast.Constant) and node.test.value is False):
        yield "dropped condition", node.test, "False"


def _of_handler(node: ast.ExceptHandler) -> Iterator[Found]:
    caught = node.type
    if caught is None:
        return
    if ast.unparse(caught) not in {"Exception", "BaseException"}:
        yield "widened except", caught, "Exception"
    if isinstance(caught, ast.Tuple):
        for number in range(len(caught.elts)):
            yield "narrowed except", caught, _without(caught.elts, number)
    else:
        yield "narrowed except", caught, "()"


def _without(parts: Sequence[ast.expr], number: int) -> str:
    left = [ast.unparse(part) for at, part in enumerate(parts) if at != number]
    return f"({', '.join(left)}{',' if len(left) == 1 else ''})"


def _of_expression(node: ast.expr) -> Iterator[Found]:
    match node:
        case ast.Compare(ops=[op]):
            yield from _of_comparison(node, op)
        case ast.BoolOp():
            for number in range(len(node.values)):
                joint = " and " if isinstance(node.op, ast.And) else " or "
                left = [f"({ast.unparse(one)})" for at, one in enumerate(node.values) if at != number]
                yield "dropped condition", node, f"({joint.join(left)})"
        case ast.UnaryOp(op=ast.Not()):
            yield "dropped condition", node, f"bool({ast.unparse(node.operand)})"
        case ast.Constant():
            yield from _of_constant(node)
        case ast.BinOp() if type(node.op) in _OPPOSITE and not _is_text(node):
            yield "arithmetic", node, f"({ast.unparse(node.left)} {_OPPOSITE[type(node.op)]} {ast.unparse(node.right)})"
        case ast.Call(func=ast.Name(id=name)):
            yield from _of_call(node, name)


def _of_comparison(node: ast.Compare, op: ast.cmpop) -> Iterator[Found]:
    left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
    yield "comparison", node, f"({left} {_OTHER[type(op)]} {right})"
    if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        yield "comparison", node, f"({right} {_WRITTEN[type(op)]} {left})"


def _of_constant(node: ast.Constant) -> Iterator[Found]:
    match node.value:
        case bool(value):
            yield "constant", node, repr(not value)
        case int(value) | float(value):
            yield "constant", node, repr(value + 1)


def _is_text(node: ast.BinOp) -> bool:
    return any(isinstance(one, ast.JoinedStr | ast.Constant) and not _is_number(one) for one in (node.left, node.right))


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _of_call(node: ast.Call, name: str) -> Iterator[Found]:
    if name in _ENDS:
        yield "boundary", node.func, _ENDS[name]
    elif name == "Txn":
        for part in node.args:
            if isinstance(part, ast.Tuple):
                for number in range(len(part.elts)):
                    yield "dropped part of a transaction", part, _without(part.elts, number)
    elif name == "suppress" and node.args:
        yield "narrowed except", node, "suppress()"
        yield "widened except", node, "suppress(Exception)"
