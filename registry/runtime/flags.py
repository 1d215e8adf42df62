"""Command line made from settings.

Each field is a flag, and an environment variable that the flag overrides.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from registry.runtime.process import EXIT_USAGE
from registry.runtime.program import variable_of, version_line

S = TypeVar("S", bound=BaseModel)


@dataclass(frozen=True)
class Flag:
    """Form of a settings field on the command line; stands in the field's ``Annotated``.

    Args:
        metavar: what stands for the value in the help.
        help: what it is for.
        repeatable: the flag may be given several times; its variable then holds values with blanks between them.
        also: another variable that is known elsewhere and is read when ours is not set.
        switch: the flag stands alone and means yes; its variable holds ``true`` or ``false``. Where neither is said by
            default, ``--no-FLAG`` means no.
    """

    metavar: str
    help: str
    repeatable: bool = False
    also: str | None = None
    switch: bool = False


class _Parser(ArgumentParser):
    """Tells a mistake in one line, without all flags there are."""

    def error(self, message: str) -> NoReturn:
        """Ends the process."""
        self.exit(EXIT_USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


@dataclass(frozen=True)
class _Option:
    field: str
    flag: Flag
    required: bool
    default: object

    @property
    def name(self) -> str:
        return "--" + self.field.replace("_", "-")

    @property
    def variables(self) -> tuple[str, ...]:
        ours = variable_of(self.name)
        return (ours, self.flag.also) if self.flag.also else (ours,)

    def add_to(self, parser: ArgumentParser) -> None:
        if self.flag.switch:
            parser.add_argument(self.name, dest=self.field, action="store_const", const="true", help=self._help())
            if self.default is None:
                no = f"--no-{self.name.removeprefix('--')}"
                text = f"The opposite of {self.name}"
                parser.add_argument(no, dest=self.field, action="store_const", const="false", help=text)
            return
        action = "append" if self.flag.repeatable else "store"
        parser.add_argument(self.name, dest=self.field, metavar=self.flag.metavar, action=action, help=self._help())

    def _help(self) -> str:
        default = "required" if self.required else f"default: {self.default}" if self.default else ""
        values = "several values with blanks between" if self.flag.repeatable else ""
        remarks = "; ".join(part for part in (", ".join(self.variables), values, default) if part)
        return f"{self.flag.help} [{remarks}]".replace("%", "%%")

    def value(self, given: Mapping[str, Any], environment: Mapping[str, str]) -> Any:  # noqa: ANN401 - as typed
        """Value from the command line or else the environment; None without either."""
        if given[self.field] is not None:
            return given[self.field]
        text = next((environment[name] for name in self.variables if environment.get(name)), None)
        return text.split() if text is not None and self.flag.repeatable else text


def read_settings(
    model: type[S], *, program: str, summary: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> S:
    """The settings that a process is started with.

    Raises:
        SystemExit: with 2, after one line on stderr that names the flag, when something is missing or wrong; with 0
            after ``--help``.
    """
    options = list(_options(model))
    parser = _Parser(prog=program, description=summary, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=version_line(program), help="print the version and exit")
    for option in options:
        option.add_to(parser)
    given = vars(parser.parse_args(arguments))
    values = {option.field: option.value(given, environment) for option in options}
    try:
        return model.model_validate({field: value for field, value in values.items() if value is not None})
    except ValidationError as error:
        parser.exit(EXIT_USAGE, f"{program}: {complaint_of(error)}\n")


def _options(model: type[BaseModel]) -> Iterator[_Option]:
    for name, field in model.model_fields.items():
        yield _Option(name, _flag_of(name, field), field.is_required(), field.default)


def _flag_of(name: str, field: FieldInfo) -> Flag:
    flags = [each for each in field.metadata if isinstance(each, Flag)]
    if len(flags) != 1:
        raise TypeError(f"the setting {name} has no Flag")
    return flags[0]


def complaint_of(error: ValidationError) -> str:
    """The first complaint in one line, with the flag that it is about; a model's own names its flags itself."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    said = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return said
    flag = "--" + str(first["loc"][0]).replace("_", "-")
    if first["type"] == "missing":
        return f"{flag} is missing: give it, or set {variable_of(flag)}"
    return f"{flag}: {said}"
