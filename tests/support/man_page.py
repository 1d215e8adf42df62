"""docs/loraplane.1, the man page, from the commands. As a program: writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from registry.cli.main import EXIT_CODES, make_command
from tests.support.cli_page import commands, usage_words

PAGE = Path(__file__).parents[2] / "docs" / "loraplane.1"


def page() -> str:
    """The whole page, in the macros of man(7)."""
    root = make_command()
    lines = [
        '.TH LORAPLANE 1 "" "LoraPlane" "User Commands"',
        *(".SH NAME", "loraplane \\- LoRA adapters on a fleet of engines"),
        *(".SH SYNOPSIS", ".B loraplane", "[\\fIoption\\fR ...] \\fIcommand\\fR [\\fIargument\\fR ...]"),
        *(".SH DESCRIPTION", *_text(root.help)),
        *(".SH OPTIONS", "They may stand anywhere in the line.", *_params(root.params)),
        ".SH COMMANDS",
    ]
    for path, command in commands().items():
        lines += [f".SS {_escaped(f'loraplane {path} {usage_words(command)}'.rstrip())}", *_text(command.help)]
        lines += _params(command.params)
    exits = EXIT_CODES.removeprefix("Exit codes: ")
    lines += [".SH EXIT STATUS", *_text(exits[0].upper() + exits[1:])]
    return "\n".join(lines) + "\n"


def _params(params: list[Any]) -> Iterator[str]:
    for one in params:
        if one.param_type_name != "argument":
            names = ", ".join(f"\\fB{_escaped(name)}\\fR" for name in (*one.opts, *one.secondary_opts))
            value = "" if one.is_flag else f" \\fI{_escaped(one.metavar or one.name.upper())}\\fR"
            yield from (
                ".TP",
                names + value,
                *_text(f"{one.help or ''} {f'Variable: {one.envvar}.' if one.envvar else ''}"),
            )


def _text(text: str | None) -> list[str]:
    """Paragraphs, as man(7) takes them."""
    paragraphs = [_escaped(" ".join(one.split())) for one in (text or "").split("\n\n")]
    return "\n.PP\n".join(one for one in paragraphs if one).splitlines()


def _escaped(text: str) -> str:
    """What troff would take for its own, told as text."""
    told = text.replace("\\", "\\e").replace("-", "\\-")
    told = "".join(one if one.isascii() else f"\\[u{ord(one):04X}]" for one in told)
    return f"\\&{told}" if told.startswith((".", "'")) else told


def main() -> None:
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
