"""Commands about the tool itself: explain, schema, completion."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import click
from click.shell_completion import get_completion_class

from registry.cli import options
from registry.cli.change.manifest import manifest_schema
from registry.cli.failure import usage
from registry.cli.session import session_of
from registry.cli.views.output import Printer, write_out

Schema = Mapping[str, Any]
_KIND = "adapter"


def explain(
    context: click.Context,
    field: Annotated[str, options.argument(metavar="FIELD", help="Such as adapter.spec.placement.")] = _KIND,
    *,
    recursive: Annotated[bool, options.flag("--recursive", "-R", help="List nested fields too.")] = False,
) -> None:
    """Explain a field of a manifest and its values."""
    printer, whole = session_of(context).printer(), manifest_schema()
    kind, *path = field.split(".")
    if kind.lower() not in {_KIND, "adapters"}:
        raise usage(f"{kind!r} is nothing to explain; begin with adapter, as in adapter.spec.placement")
    found: Schema = whole
    for part in path:
        found = _field(found, part, whole)
    if printer.is_plain:
        printer.plain({**found, "$defs": whole["$defs"]})
    elif printer.is_table:
        _tell(printer, ".".join([_KIND, *path]), found, whole, recursive=recursive)
    else:
        printer.lines(_properties(found, whole))


def _field(schema: Schema, name: str, whole: Schema) -> Schema:
    fields = _properties(schema, whole)
    if name in fields:
        return fields[name]
    close = difflib.get_close_matches(name, fields, n=1)
    known = f"known here: {', '.join(fields)}" if fields else "there is nothing below it"
    raise usage(f"{name!r} is no field; {f'did you mean {close[0]}?' if close else known}")


def _properties(schema: Schema, whole: Schema) -> dict[str, Schema]:
    """The fields of a mapping, or of each mapping of a list, whichever way the schema names it."""
    found: dict[str, Schema] = {}
    for one in _choices(schema, whole):
        found |= one.get("properties", {}) or (_properties(one["items"], whole) if "items" in one else {})
    return found


def _choices(schema: Schema, whole: Schema) -> Iterator[Schema]:
    if "$ref" in schema:
        yield whole["$defs"][schema["$ref"].rpartition("/")[2]]
    elif "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from _choices(one, whole)
    else:
        yield schema


def _tell(printer: Printer, path: str, schema: Schema, whole: Schema, *, recursive: bool) -> None:
    printer.fields({"FIELD": path, "TAKES": _type(schema, whole), **_default(schema)})
    printer.lines(["", f"{_meaning(schema)}."])
    if "description" in schema and "title" in schema and not _is_whole(schema):
        text = schema["description"]
        printer.lines([f"{text[:1].upper()}{text[1:]}."])
    fields = list(_rows(schema, whole, "", recursive=recursive))
    if fields:
        printer.lines([""])
        printer.table(("FIELD", "TAKES", "MEANING"), fields)


def _is_whole(schema: Schema) -> bool:
    return "$defs" in schema


def _meaning(schema: Schema) -> str:
    """Meaning of a field; of the whole manifest, what that is."""
    text: str = schema["description"] if _is_whole(schema) else schema["title"]
    return text.partition("\n")[0].rstrip(".")


def _rows(schema: Schema, whole: Schema, before: str, *, recursive: bool) -> Iterator[tuple[str, str, str]]:
    required = {name for one in _choices(schema, whole) for name in one.get("required", ())}
    for name, field in _properties(schema, whole).items():
        needed = "required, " if name in required else ""
        yield f"{before}{name}", needed + _type(field, whole), _meaning(field)
        if recursive:
            yield from _rows(field, whole, f"{before}{name}.", recursive=True)


def _type(schema: Schema, whole: Schema) -> str:
    kinds = dict.fromkeys(_one_type(one) for one in _choices(schema, whole) if one.get("type") != "null")
    return " or ".join(kinds)


def _one_type(schema: Schema) -> str:
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    names = {"string": "text", "boolean": "true or false", "array": "list", "object": "mapping"}
    names |= dict.fromkeys(("integer", "number"), "number")
    kind = names[schema["type"]]
    if "minimum" in schema:
        return f"{kind} from {schema['minimum']} to {schema['maximum']}"
    return kind


def _default(schema: Schema) -> dict[str, str]:
    default = schema.get("default")
    if default in (None, {}, []):
        return {}
    return {"DEFAULT": default if isinstance(default, str) else json.dumps(default)}


def schema() -> None:
    """Print the JSON schema of manifests, for editors."""
    write_out(json.dumps(manifest_schema(), indent=2) + "\n")


def completion(
    context: click.Context,
    shell: Annotated[Literal["bash", "zsh", "fish"], options.argument(help="The shell that reads it.")],
) -> None:
    """Print a shell's completion script for commands, flags, kinds, names, pools and replicas.

    bash: source <(loraplane completion bash), in ~/.bashrc. zsh: the same after compinit, in ~/.zshrc. fish: loraplane
    completion fish | source.
    """
    script = get_completion_class(shell)(context.find_root().command, {}, "loraplane", "_LORAPLANE_COMPLETE")
    write_out(script.source())
