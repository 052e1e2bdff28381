#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The man page and the completions of bash, zsh and fish, from the --help of a binary.

    tools/package/help_pages.py BINARY FOLDER        writes man1/warprow.1, bash/warprow, zsh/_warprow, fish/warprow.fish

--help is made from the table of commands and the flags that each command reads, so the pages are those of that very binary.
"""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

TEXT_COLUMN = 34  # src/cli/flags/help_text.cpp
LABEL = re.compile(r"  (?:-(?P<letter>\w), |    )--(?:(?P<no>\[no-\])(?P<switch>[\w-]+)|(?P<name>[\w-]+) (?P<value>\S+))")
CHOICES = re.compile(r"[\w.+-]+(\|[\w.+-]+)+")
FILES = {"PATH", "FILE", "FILE.jsonl", "MODEL", "DIR"}
SHARED_BY = 3  # a flag that so many commands have alike is described once in the man page


@dataclass(frozen=True)
class Flag:
    name: str
    letter: str
    value: str  # empty for a switch, which has --no-NAME too
    group: str
    help: str

    @property
    def words(self) -> list[str]:
        return [f"-{self.letter}"] * bool(self.letter) + [f"--{self.name}"] + [f"--no-{self.name}"] * (not self.value)

    @property
    def choices(self) -> list[str]:
        return self.value.split("|") if CHOICES.fullmatch(self.value) else []


@dataclass
class Command:
    words: tuple[str, ...]  # ("bench", "serve")
    summary: str
    usage: str = ""
    flags: list[Flag] = field(default_factory=list)


def rows(text: str) -> list[tuple[str, str]]:
    """Names and descriptions of a list under a heading, with lines that go on joined."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        match = re.match(r"  (\S+)\s+(\S.*)$", line)
        if match:
            found.append((match.group(1), match.group(2)))
        elif line.strip() and found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


def read_flags(text: str) -> list[Flag]:
    found: list[Flag] = []
    group = ""
    for line in text.splitlines():
        label = LABEL.match(line)
        if label and not line.startswith(" " * TEXT_COLUMN):
            rest = line[label.end() :]
            if rest.strip() and not (line[TEXT_COLUMN - 1 : TEXT_COLUMN] == " " and line[TEXT_COLUMN:] == rest.strip()):
                raise ValueError(f"not understood: {line!r}")
            name = label["switch"] or label["name"]
            found.append(Flag(name, label["letter"] or "", label["value"] or "", group, rest.strip()))
        elif line.startswith(" " * TEXT_COLUMN) and found:
            last = found.pop()
            found.append(Flag(last.name, last.letter, last.value, last.group, f"{last.help} {line.strip()}".strip()))
        elif line.strip() and not line.startswith(" "):
            group = line.strip()
    return found


def read_command(binary: Path, words: tuple[str, ...], summary: str) -> list[Command]:
    def help_of(flag: str) -> str:
        run = subprocess.run([binary, *words, flag], capture_output=True, text=True, check=True, timeout=60)
        return run.stdout

    short = help_of("--help")
    usage = re.search(r"^usage: (.*)$", short, re.MULTILINE)
    if not usage:
        raise ValueError(f"{' '.join(words)}: --help has no usage line")
    kinds = re.match(rf"warprow {' '.join(words)} ([\w|-]+) .*own --help", usage.group(1))
    if kinds:  # bench latency|throughput|...
        summaries = dict(rows(short.split("\n", 1)[1]))
        parts = [read_command(binary, (*words, kind), summaries.get(kind, summary)) for kind in kinds.group(1).split("|")]
        return [Command(words, summary)] + [command for part in parts for command in part]
    return [Command(words, summary, usage.group(1), read_flags(help_of("--help=all").split("\n\n", 2)[2]))]


def read_commands(binary: Path) -> tuple[str, list[Command]]:
    """The text of --help, and all commands."""
    overview = subprocess.run([binary, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
    listed = overview.split("\nCommands\n")[1].split("\n\n")[0]
    return overview, [command for name, summary in rows(listed) for command in read_command(binary, (name,), summary)]


# ---- man page
def roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = text.replace("|", "|\\:")  # a line may break there
    return re.sub(r"^\.", r"\\&.", text, flags=re.MULTILINE)


def roff_flags(flags: list[Flag]) -> list[str]:
    lines = []
    for group in dict.fromkeys(flag.group for flag in flags):
        lines += [".PP", f"{roff(group)}:"]
        for flag in flags:
            if flag.group == group:
                names = [f"\\fB\\-{flag.letter}\\fR"] * bool(flag.letter)
                names += [f"\\fB\\-\\-{roff(flag.name)}\\fR \\fI{roff(flag.value)}\\fR" if flag.value else f"\\fB\\-\\-[no\\-]{roff(flag.name)}\\fR"]
                lines += [".TP", ", ".join(names), roff(flag.help)]
    return lines


def man_page(version: str, overview: str, commands: list[Command]) -> str:
    shared = [flag for flag, count in Counter(flag for c in commands for flag in c.flags).items() if count >= SHARED_BY]
    before, codes = overview.split("\nExit codes\n")
    about = [part for part in before.split("\n\n")[3:] if part.strip() and not part.startswith("  ")]
    lines = [f'.TH WARPROW 1 "" "warprow {version}" "User Commands"', ".SH NAME", "warprow \\- run transformer language models"]
    lines += [".SH SYNOPSIS", ".B warprow", "\\fICOMMAND\\fR \\fIMODEL\\fR [\\fIFLAGS\\fR]", ".SH DESCRIPTION"]
    for part in about:
        lines += [".PP", roff(part)]
    lines += [".PP", "Flags that several commands have are under COMMON FLAGS.", ".SH COMMANDS"]
    for command in commands:
        lines += [f".SS {roff(' '.join(command.words))}", roff(f"{command.summary[0].upper()}{command.summary[1:]}.")]
        if command.usage:
            lines += [".PP", f"\\fB{roff(command.usage)}\\fR"]
        lines += roff_flags([flag for flag in command.flags if flag not in shared])
    lines += [".SH COMMON FLAGS"] + roff_flags(shared) + [".SH EXIT STATUS"]
    for code, meaning in rows(codes):
        lines += [".TP", code, roff(meaning)]
    return "\n".join(lines) + "\n"


# ---- completions
def parents(commands: list[Command]) -> dict[tuple[str, ...], list[Command]]:
    """The commands of each level: () has generate, serve, ...; ("bench",) has latency, ..."""
    levels: dict[tuple[str, ...], list[Command]] = {}
    for command in commands:
        levels.setdefault(command.words[:-1], []).append(command)
    return levels


def bash_completion(commands: list[Command]) -> str:
    levels = parents(commands)
    nested = [words[0] for words in levels if words]
    lines = ["# SPDX-License-Identifier: Apache-2.0", "_warprow() {", '  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words=""']
    lines += ['  local command=${COMP_WORDS[1]:-} at=1', '  case $command in', f'    {"|".join(nested)}) command="$command ${{COMP_WORDS[2]:-}}" at=2 ;;', "  esac"]
    lines += ["  COMPREPLY=()", "  if ((COMP_CWORD <= at)); then", "    case $COMP_CWORD-${COMP_WORDS[1]:-} in"]
    for level, below in levels.items():
        words = " ".join(command.words[-1] for command in below)
        lines.append(f'      {"2-" + level[0] if level else "1-*"}) words="{words}{"" if level else " --help --version"}" ;;')
    lines += ["    esac", '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")', "    return", "  fi", '  case "$command $before" in']
    values: dict[str, list[str]] = {}
    for command in commands:
        for flag in command.flags:
            if flag.choices:
                for word in flag.words:
                    values.setdefault(" ".join(flag.choices), []).append(f"'{' '.join(command.words)} {word}'")
    for choices, patterns in values.items():
        lines.append(f'    {"|".join(patterns)}) words="{choices}" ;;')
    lines += ["    *)", "      [[ $word == -* ]] || return", "      case $command in"]
    for command in commands:
        if command.usage:
            words = " ".join(word for flag in command.flags for word in flag.words)
            lines.append(f"        '{' '.join(command.words)}') words=\"{words} --help\" ;;")
    lines += ["      esac", "      ;;", "  esac", '  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")', "}", "complete -o default -F _warprow warprow"]
    return "\n".join(lines) + "\n"


def zsh_text(text: str) -> str:
    return text.replace("'", "'\\''").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")


def zsh_flag(flag: Flag) -> list[str]:
    action = f":{zsh_text(flag.value)}:" + (f"({' '.join(flag.choices)})" if flag.choices else "_files" if flag.value in FILES else " ") if flag.value else ""
    return [f"'*{word}[{zsh_text(flag.help)}]{action}'" for word in flag.words]


def zsh_completion(commands: list[Command]) -> str:
    lines = ["#compdef warprow", "# SPDX-License-Identifier: Apache-2.0", "_warprow() {", "  local -a list"]
    for level, below in sorted(parents(commands).items(), reverse=True):  # the longer words first
        at = len(level) + 2
        condition = f"CURRENT == {at}" + "".join(f' && "$words[{i + 2}]" == {word}' for i, word in enumerate(level))
        described = " ".join(f"'{command.words[-1]}:{zsh_text(command.summary)}'" for command in below)
        lines += [f"  if [[ {condition.replace('==', '-eq', 1)} ]]; then", f"    list=({described})", "    _describe command list", "    return", "  fi"]
    nested = [level[0] for level in parents(commands) if level]
    lines += ['  local command="$words[2]" skip=1', '  case "$command" in', f'    {"|".join(nested)}) command="$command $words[3]" skip=2 ;;', "  esac"]
    lines += ['  words=("$words[1]" "${(@)words[skip + 2,-1]}")', "  ((CURRENT -= skip))", '  case "$command" in']
    for command in commands:
        if command.usage:
            flags = [text for flag in command.flags for text in zsh_flag(flag)] + ["'*:model:_files'"]
            lines += [f"    '{' '.join(command.words)}')", "      _arguments \\"] + [f"        {text} \\" for text in flags[:-1]] + [f"        {flags[-1]}", "      ;;"]
    return "\n".join([*lines, "  esac", "}", '_warprow "$@"']) + "\n"


def fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish_completion(commands: list[Command]) -> str:
    lines = ["# SPDX-License-Identifier: Apache-2.0", "complete -c warprow -n __fish_use_subcommand -l version -d 'show the version'"]
    for level, below in parents(commands).items():
        names = " ".join(command.words[-1] for command in below)
        seen = f"__fish_seen_subcommand_from {level[0]}; and not __fish_seen_subcommand_from {names}" if level else "__fish_use_subcommand"
        for command in below:
            lines.append(f"complete -c warprow -f -n {fish_text(seen)} -a {command.words[-1]} -d {fish_text(command.summary)}")
    nested = {level[0] for level in parents(commands) if level}
    for command in commands:
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.words)
        if command.words[0] not in nested:  # else 'bench serve' would count as 'serve'
            seen = "; and ".join([seen] + [f"not __fish_seen_subcommand_from {word}" for word in sorted(nested)])
        for flag in command.flags:
            letter = f" -s {flag.letter}" if flag.letter else ""
            value = "" if not flag.value else f" -x -a {fish_text(' '.join(flag.choices))}" if flag.choices else " -r"
            lines.append(f"complete -c warprow -n {fish_text(seen)} -l {flag.name}{letter}{value} -d {fish_text(flag.help)}")
            if not flag.value:
                lines.append(f"complete -c warprow -n {fish_text(seen)} -l no-{flag.name} -d {fish_text('not: ' + flag.help)}")
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    binary, folder = Path(argv[0]).resolve(), Path(argv[1])
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    overview, commands = read_commands(binary)
    pages = {
        "man1/warprow.1": man_page(version, overview, commands),
        "bash/warprow": bash_completion(commands),
        "zsh/_warprow": zsh_completion(commands),
        "fish/warprow.fish": fish_completion(commands),
    }
    for name, text in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
