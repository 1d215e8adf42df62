"""docs/cli.md from the commands: what each does, its arguments, flags and output. As a program: writes it.

The output comes from a stack that is started for it, which takes a minute or two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from registry.cli.command_tree import LazyCommand
from registry.cli.main import EXIT_CODES, make_command
from tests.support.cli_examples import play

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


_INTRO = """\
Made from the commands by `make docs`. Global options may stand anywhere in the line. The examples are what a terminal
shows of one session with a local stack, from `loraplane dev up` to `loraplane dev down`. What differs each time is a
word in angle brackets, or left out where a rollout tells how far it is."""
_EXAMPLES = re.compile(r"\n```console\n.*?```\n", re.DOTALL)


def page(examples: Mapping[str, Sequence[str]]) -> str:
    """The whole page. `examples`: by the name of the command, such as ``pool create``, what a terminal shows."""
    root = make_command()
    head = f"# The command line\n\n{_INTRO} [Errors](errors.md) lists the reasons.\n\n{EXIT_CODES}\n"
    parts = [head, "## Global options\n" + _table(root.params)]
    for path, command in commands().items():
        parts.append(_command(f"loraplane {path}", command) + _shown(examples.get(path, ())))
    return "\n".join(parts)


def commands() -> dict[str, Any]:
    """All commands by their names; those of a group as ``pool create``, after the group itself."""
    found: dict[str, Any] = {}
    for name, child in sorted(make_command().commands.items()):
        assert isinstance(child, LazyCommand)
        found[name] = child.load()
        found |= {f"{name} {inner}": one for inner, one in sorted(_inner(found[name]).items())}
    return found


def without_examples(text: str) -> str:
    """A page as it is for no examples."""
    return _EXAMPLES.sub("", text)


def _shown(examples: Sequence[str]) -> str:
    text = "\n".join(examples)
    return f"\n```console\n{text}```\n" if text else ""


def _inner(command: Any) -> dict[str, Any]:
    return dict(getattr(command, "commands", {}))


def _command(path: str, command: Any) -> str:
    words = usage_words(command)
    level = "##" if path.count(" ") == 1 else "###"
    return f"{level} {path}\n{_paragraphs(command.help)}\n\n    {path} {words}".rstrip() + "\n" + _table(command.params)


def usage_words(command: Any) -> str:
    """The arguments of a command, as its usage has them."""
    return " ".join(_word(one) for one in command.params if one.param_type_name == "argument")


def _word(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]" if not name.startswith("[") else name


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(one.split()) for one in (text or "").split("\n\n"))


def _table(params: list[Any]) -> str:
    rows = list(_rows(params))
    return "\n| argument or flag | variable | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n" if rows else ""


def _rows(params: list[Any]) -> Iterator[str]:
    for one in params:
        if one.param_type_name == "argument":
            yield f"| `{_word(one)}` | | {_cell(one.help)} |"
        else:
            names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
            value = "" if one.is_flag else _cell(f"`{one.metavar or one.name.upper()}`")
            yield f"| {names} {value} | {f'`{one.envvar}`' if one.envvar else ''} | {_cell(one.help)} |"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def main() -> None:
    PAGE.write_text(page(play()))


if __name__ == "__main__":
    main()
