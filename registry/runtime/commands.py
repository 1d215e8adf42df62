"""Commands of click, made from functions: a flag stands beside its parameter.

``pool: Annotated[str | None, flag("--pool", help="The pool.")] = None`` is an option, and `argument` in place of `flag`
a word; either may be left out if the parameter has a default. The fields of a dataclass that is a parameter's type
are parameters like the others, so that commands share them; a `click.Context` is that of the run.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from registry.runtime.program import version_line


@dataclass(frozen=True, slots=True)
class _Declared:
    """The flag or argument beside the type of a parameter. `names`: of an option; an argument has none."""

    names: tuple[str, ...]
    help: str
    least: float | None
    most: float | None
    more: Mapping[str, Any]


def flag(*names: str, help: str, min: float | None = None, max: float | None = None, **more: Any) -> Any:  # noqa: A002, ANN401 - click's own names
    """An option. `min` and `max` are what a number may be; `more` is what `click.Option` takes."""
    bounds = "" if min is None else f" From {min}." if max is None else f" From {min} to {max}."
    return _Declared(names, help + bounds, min, max, {"show_envvar": True, "show_default": True, **more})


def argument(*, help: str, **more: Any) -> Any:  # noqa: A002, ANN401 - click's own names
    """A word that stands where it stands, or all that follow; `more` is what `click.Argument` takes."""
    return _Declared((), help, None, None, more)


class _Argument(click.Argument):
    """An argument that errors call by its name."""

    def get_error_hint(self, _ctx: click.Context | None) -> str:
        """See `click.Parameter`."""
        return f"'{self.metavar or self.name}'"


class _Number(click.ParamType[float]):
    """Number within bounds; what is none is told in the words that settings of daemons have for it."""

    def __init__(self, kind: type[float], least: float | None, most: float | None) -> None:
        self.name = "integer" if kind is int else "number"
        self._kind, self._least, self._most = kind, least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 - a word, or a default
        """See `click.ParamType`."""
        try:
            number = self._kind(value)
        except ValueError:
            kind = f"a{'n' * (self._kind is int)} {self.name}"
            self.fail(f"Input should be a valid {self.name}, unable to parse string as {kind}", param, ctx)
        if self._least is not None and not number >= self._least:
            self.fail(f"Input should be greater than or equal to {self._least}", param, ctx)
        if self._most is not None and not number <= self._most:
            self.fail(f"Input should be less than or equal to {self._most}", param, ctx)
        return number


def command(name: str, function: Callable[..., None], **more: Any) -> click.Command:  # noqa: ANN401 - what `click.Command` takes
    """A command that calls a function, whose docstring is its help."""
    about = inspect.getdoc(function) or ""
    brief = " ".join(about.partition("\n\n")[0].split())
    callback, params = called(function), list(parameters(function))
    return click.Command(name, callback=callback, params=params, help=about, short_help=brief, **more)


def parameters(function: Callable[..., Any]) -> Iterator[click.Parameter]:
    """Options and arguments for the parameters of a function, or for the fields of a dataclass."""
    for one in _parameters_of(function):
        if isinstance(one.annotation, type) and is_dataclass(one.annotation):
            yield from parameters(one.annotation)
        elif get_origin(one.annotation) is Annotated:
            yield _parameter(one)


def _parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Parameters of a function or a dataclass. A field's type is read in the module of the class that has the field."""
    kinds = get_type_hints(function, include_extras=True)
    given = inspect.signature(function).parameters.values()
    return [one.replace(annotation=kinds.get(one.name, one.annotation)) for one in given]


def _parameter(one: inspect.Parameter) -> click.Parameter:
    kind, declared = get_args(one.annotation)
    if get_origin(kind) in {UnionType, Union}:  # or None, where it is not given
        kind = get_args(kind)[0]
    is_list = get_origin(kind) is list
    if is_list:
        kind = get_args(kind)[0]
    given = {
        "help": declared.help,
        "type": _type(kind, declared),
        "required": one.default is one.empty,
        **declared.more,
    }
    if one.default is not one.empty:
        given["default"] = one.default
    if not declared.names:
        return _Argument([one.name], nargs=-1 if is_list else 1, **given)
    return click.Option([*declared.names, one.name], is_flag=kind is bool or None, multiple=is_list, **given)


def _type(kind: Any, declared: _Declared) -> click.ParamType[Any] | type:  # noqa: ANN401 - any type
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if kind in {int, float}:
        return _Number(kind, declared.least, declared.most)
    return click.Path(path_type=Path, readable=False) if kind is Path else kind


def called(function: Callable[..., None]) -> Callable[..., None]:
    """The same function, called with what its parameters as a command were given."""
    own = _parameters_of(function)

    def call(**values: Any) -> None:  # noqa: ANN401 - whatever the parameters hold
        for one in own:
            if isinstance(one.annotation, type) and is_dataclass(one.annotation):
                shared = {field.name: values.pop(field.name) for field in fields(one.annotation)}
                values[one.name] = one.annotation(**shared)
            elif one.annotation is click.Context:
                values[one.name] = click.get_current_context()
        function(**values)

    return call


class Group(click.Group):
    """A group that lists its commands in the order in which they are declared, also to who names none."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """See `click.Group`."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Group`."""
        if not args and not ctx.resilient_parsing:
            sys.stdout.write(ctx.get_help() + "\n")
            ctx.fail("name a command")
        return super().parse_args(ctx, args)


def version_flag(program: str) -> click.Option:
    """The option --version of a program."""

    def tell(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
        if wanted and not context.resilient_parsing:
            sys.stdout.write(version_line(program) + "\n")
            context.exit()

    about = "Print the version."
    return click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=tell, help=about)


def complaint(error: click.UsageError) -> str:
    """Mistake in a command line, told without a full stop."""
    if isinstance(error, click.NoSuchOption):
        close = f" (Possible options: {', '.join(sorted(error.possibilities))})" if error.possibilities else ""
        return f"No such option: {error.option_name}{close}"
    return error.format_message().rstrip(".")
