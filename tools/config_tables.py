#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generates the table of settings in docs/configuration.md from the source.

Its contents come from src/config/fields.cpp and src/config/engine_config.h. The meaning is the flag's help text. The
table lies between `<!-- fields -->` and `<!-- /fields -->`.

    tools/config_tables.py [--root DIR] [--check]        --check changes nothing and fails if the page differs
"""

import argparse
import difflib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

PAGE = "docs/configuration.md"
FIELDS = "src/config/fields.cpp"
CONFIG = "src/config/engine_config.h"
BEGIN, END = "<!-- fields -->", "<!-- /fields -->"
HEAD = "| flag | variable | default | range | meaning |\n|---|---|---|---|---|\n"
KEYS = {"name", "member", "group", "help", "alias", "common", "choices", "is_bytes", "min", "max", "multiple_of", "auto_value"}
SWITCHES = ("bool", "std::optional<bool>")  # without a value the second is auto
# Flags at the end of the table that are not settings.
OTHER_ROWS = ["| `--config FILE` | `WARPROW_CONFIG` | none | | the file above; not a key of itself |"]


@dataclass(frozen=True)
class Field:
    name: str
    type: str
    default: str | int | bool | float
    help: str
    alias: str = ""
    choices: str = ""
    is_bytes: bool = False
    min: int = 0
    max: int | None = None
    multiple_of: int = 1
    auto_value: int | None = None


def number(text: str, constants: dict[str, int]) -> int:
    """Evaluates 1024, kMaxTokens, -1, int64_t{1} << 24 or 1 << 24."""
    text = re.sub(r"int(?:32|64)_t\{(\d+)\}", r"\1", text.strip())
    if text in constants:
        return constants[text]
    match = re.fullmatch(r"(-?\d+)(?:\s*<<\s*(\d+))?", text)
    if not match:
        raise ValueError(f"'{text}' is no number that this script reads")
    return int(match.group(1)) << int(match.group(2) or 0)


def read_constants(*sources: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for source in sources:
        for name, value in re.findall(r"^(?:inline )?constexpr int(?:32|64)_t (k\w+) = ([^;]+);", source, re.MULTILINE):
            found[name] = number(value, found)
    return found


def read_members(config: str, constants: dict[str, int]) -> dict[str, tuple[str, str | int | bool | float]]:
    """The type and default of each member of EngineConfig."""
    body = re.search(r"struct EngineConfig \{(.*?)\n\};", config, re.DOTALL)
    if not body:
        raise ValueError(f"{CONFIG}: no struct EngineConfig")
    members: dict[str, tuple[str, str | int | bool | float]] = {}
    for kind, name, value in re.findall(r"^\s*([\w:]+(?:<\w+>)?) (\w+)(?: = ([^;]+))?;", body.group(1), re.MULTILINE):
        default: str | int | bool | float
        if kind == "std::string":
            default = value.strip('"')
        elif kind == "bool":
            default = {"true": True, "false": False}[value]
        elif kind == "std::optional<bool>":
            default = "auto"
        elif kind == "double":
            default = float(value)
        else:
            default = number(value, constants)
        members[name] = (kind, default)
    return members


def read_fields(fields: str, config: str) -> list[Field]:
    constants = read_constants(config, fields)
    members = read_members(config, constants)
    table = re.search(r"constexpr Field kFields\[\] = \{\n(.*?)\n\};", fields, re.DOTALL)
    if not table:
        raise ValueError(f"{FIELDS}: no table kFields")
    found = []
    # An initialiser is a key and a value. clang-format may break the value into several string literals.
    item = re.compile(r'\.(\w+) =\s+((?:"(?:\\.|[^"\\])*"\s*)+|[^,"]+?)(?:,\s*|\s*$)')
    for row in re.findall(r"^    \{(.*?)\},?$(?=\n    \{|\Z)", table.group(1), re.DOTALL | re.MULTILINE):
        values: dict[str, str] = {}
        position = 0
        while position < len(row):
            match = item.match(row, position)
            if not match or match.group(1) not in KEYS:
                raise ValueError(f"{FIELDS}: not understood: {row[position:position + 60]!r}")
            values[match.group(1)] = "".join(re.findall(r'"((?:\\.|[^"\\])*)"', match.group(2))) or match.group(2).strip()
            position = match.end()
        kind, default = members[values["member"].removeprefix("&EngineConfig::")]
        found.append(
            Field(
                name=values["name"],
                type=kind,
                default=default,
                help=values["help"],
                alias=values.get("alias", ""),
                choices=values.get("choices", ""),
                is_bytes=values.get("is_bytes") == "true",
                min=number(values.get("min", "0"), constants),
                max=number(values["max"], constants) if "max" in values else None,
                multiple_of=number(values.get("multiple_of", "1"), constants),
                auto_value=number(values["auto_value"], constants) if "auto_value" in values else None,
            )
        )
    if len(found) != table.group(1).count(".name = "):
        raise ValueError(f"{FIELDS}: {table.group(1).count('.name = ')} rows, of which {len(found)} were understood")
    return found


def flag_text(field: Field) -> str:
    if field.type in SWITCHES:
        return f"`--[no-]{field.name}`"
    if field.name == "model":
        return "`-m`, `--model MODEL`"
    if field.type == "std::string":
        return f"`--{field.name}`"
    alias = f"`-{field.alias}`, " if field.alias else ""
    return f"{alias}`--{field.name} {'X' if field.type == 'double' else 'SIZE' if field.is_bytes else 'N'}`"


def default_text(field: Field) -> str:
    if field.type in SWITCHES:
        return str(field.default).lower()
    if field.auto_value is not None and field.default == field.auto_value:
        return "auto"
    return str(field.default) or "none"


def limit_text(value: int) -> str:
    is_power = value >= 1 << 20 and value & (value - 1) == 0
    return f"2^{value.bit_length() - 1}" if is_power else str(value)


def range_text(field: Field) -> str:
    if field.choices:
        return ", ".join(field.choices.split("|"))
    if field.type == "double":
        return "above 0, to 1"  # parse_share reads all shares
    if field.max is None:
        return ""
    # A minimum of 0 is printed only if 0 does not mean auto.
    says_least = field.min != 0 or field.auto_value != 0
    text = f"{limit_text(field.min)} to {limit_text(field.max)}" if says_least else f"to {limit_text(field.max)}"
    return text + (f", a multiple of {field.multiple_of}" if field.multiple_of != 1 else "")


def cell(text: str) -> str:
    return f" {text} " if text else " "


def table_text(fields: list[Field]) -> str:
    lines = []
    for field in fields:
        variable = f"`WARPROW_{field.name.upper().replace('-', '_')}`"
        cells = (flag_text(field), variable, default_text(field), range_text(field), field.help.replace("|", "\\|"))
        lines.append("|" + "|".join(cell(text) for text in cells) + "|\n")
    return HEAD + "".join(lines) + "".join(f"{row}\n" for row in OTHER_ROWS)


def updated(page: str, fields: list[Field]) -> str:
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"{PAGE}: needs one {BEGIN} and one {END}")
    before, rest = page.split(BEGIN + "\n")
    after = rest.split(END)[1]
    return before + BEGIN + "\n" + table_text(fields) + END + after


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page differs")
    args = parser.parse_args(argv)
    sources = [(args.root / path).read_text(encoding="utf-8") for path in (FIELDS, CONFIG)]
    page = (args.root / PAGE).read_text(encoding="utf-8")
    wanted = updated(page, read_fields(*sources))
    if wanted == page:
        return 0
    if args.check:
        sys.stdout.writelines(difflib.unified_diff(page.splitlines(True), wanted.splitlines(True), PAGE, f"{PAGE}, as wanted"))
        print(f"error: {PAGE} differs from {FIELDS}: run tools/config_tables.py")
        return 1
    (args.root / PAGE).write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
