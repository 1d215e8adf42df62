"""docs/cli.md from the commands: what each does, its arguments and flags. As a program: writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from registry.cli.command_tree import LazyCommand
from registry.cli.main import EXIT_CODES, make_command

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def page() -> str:
    """The whole page."""
    root = make_command()
    intro = "Made from the commands by `make docs`. Global options may stand anywhere in the line."
    head = f"# The command line\n\n{intro} [Errors](errors.md) lists the reasons.\n\n{EXIT_CODES}\n"
    parts = [head, "## Global options\n" + _table(root.params)]
    for name, child in sorted(root.commands.items()):
        assert isinstance(child, LazyCommand)
        loaded = child.load()
        parts += [_command(f"loraplane {name}", loaded)]
        parts += [_command(f"loraplane {name} {inner}", one) for inner, one in sorted(_inner(loaded).items())]
    return "\n".join(parts)


def _inner(command: Any) -> dict[str, Any]:
    return dict(getattr(command, "commands", {}))


def _command(path: str, command: Any) -> str:
    words = " ".join(_word(one) for one in command.params if one.param_type_name == "argument")
    level = "##" if path.count(" ") == 1 else "###"
    return f"{level} {path}\n{_paragraphs(command.help)}\n\n    {path} {words}".rstrip() + "\n" + _table(command.params)


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
        elif "completion" not in one.name:
            names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
            value = "" if one.is_flag else _cell(f"`{one.metavar or one.name.upper()}`")
            yield f"| {names} {value} | {f'`{one.envvar}`' if one.envvar else ''} | {_cell(one.help)} |"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def main() -> None:
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
