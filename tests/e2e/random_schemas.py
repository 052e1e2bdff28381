# SPDX-License-Identifier: Apache-2.0
"""Random JSON schemas, equal for equal seeds, and what a truncated answer must satisfy.

They use the features that applications use: objects with required and optional members, nested objects and arrays, enums,
constants, patterns, formats, optional bounds, alternatives, references.
"""

import json
import random
import re

NAMES = ("id name title age city email price count tags items status created owner address street score level color size note "
         "code active unit total kind version author year rating").split()
WORDS = "red green blue small large open closed north south alpha beta gamma yes no maybe first last".split()
PATTERNS = ["^[A-Z]{2}[0-9]{3}$", "^(cat|dog|bird)s?$", "^[a-z]+(-[a-z]+){0,2}$", "^\\d{4}/\\d{2}$", "^#[0-9a-f]{6}$",
            "^[A-Z][a-z]{1,9}$"]
FORMATS = ["date", "uuid", "ipv4"]


class _Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.definitions = {}

    def pick(self, *makers):
        return self.random.choice(makers)()

    def string(self):
        return self.pick(lambda: {"type": "string"},
                         lambda: {"type": "string", "maxLength": self.random.randint(3, 40)},
                         lambda: {"type": "string", "minLength": 2, "maxLength": self.random.randint(8, 24)},
                         lambda: {"type": "string", "pattern": self.random.choice(PATTERNS)},
                         lambda: {"type": "string", "format": self.random.choice(FORMATS)},
                         lambda: {"type": "string", "enum": self.random.sample(WORDS, self.random.randint(2, 6))},
                         lambda: {"const": self.random.choice(WORDS)})

    def integer(self):
        low = self.random.randint(-1000, 1000)
        return self.pick(lambda: {"type": "integer", "minimum": low, "maximum": low + self.random.randint(0, 5000)},
                         lambda: {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 100},
                         lambda: {"type": "integer", "minimum": 0, "maximum": 2 ** 31},
                         lambda: {"enum": [1, 2, 3, 5, 8]})

    def number(self):
        return self.pick(lambda: {"type": "number", "minimum": 0, "maximum": self.random.randint(1, 1000)},
                         lambda: {"type": "number", "exclusiveMinimum": -1.5, "maximum": 2.25})

    def scalar(self):
        return self.pick(self.string, self.string, self.integer, self.number, lambda: {"type": "boolean"},
                         lambda: {"type": ["boolean", "null"]}, lambda: {"type": "null"})

    def array(self, depth):
        low = self.random.randint(0, 2)
        schema = {"type": "array", "items": self.any(depth - 1), "minItems": low, "maxItems": low + self.random.randint(0, 3)}
        if self.random.random() < 0.3:
            del schema["maxItems"]
        if self.random.random() < 0.15:
            schema = {"type": "array", "prefixItems": [self.scalar(), self.scalar()], "items": False, "minItems": 2}
        return schema

    def object(self, depth):
        names = self.random.sample(NAMES, self.random.randint(1, 5))
        schema = {"type": "object", "properties": {name: self.any(depth - 1) for name in names}}
        schema["required"] = [name for name in names if self.random.random() < 0.7]
        if self.random.random() < 0.8:
            schema["additionalProperties"] = False
        return schema

    def reference(self):
        name = self.random.choice(NAMES)
        self.definitions.setdefault(name, self.scalar())
        return {"$ref": f"#/$defs/{name}"}

    def any(self, depth):
        if depth <= 0:
            return self.scalar()
        return self.pick(self.scalar, self.scalar, self.scalar, lambda: self.array(depth), lambda: self.object(depth),
                         lambda: {"anyOf": [self.scalar(), self.scalar()]}, self.reference)

    def schema(self):
        schema = self.object(3)
        if self.definitions:
            schema["$defs"] = self.definitions
        return schema


def random_schema(seed):
    return _Maker(seed).schema()


def relaxed(schema):
    """The schema without constraints that only a complete value can satisfy."""
    if isinstance(schema, list):
        return [relaxed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in ("required", "minItems")}
    for key in ("items", "prefixItems", "anyOf"):
        if key in kept:
            kept[key] = relaxed(kept[key])
    for key in ("properties", "$defs"):
        if key in kept:
            kept[key] = {name: relaxed(member) for name, member in kept[key].items()}
    return kept


class _Ended(Exception):
    """The text ended inside a value. `value` is its complete part, if `known`."""

    def __init__(self, value=None, known=False):
        super().__init__()
        self.value, self.known = value, known


class _Reader:
    """Reads truncated JSON. Raises ValueError if no JSON text begins like this."""

    def __init__(self, text):
        self.text, self.at = text, 0

    def skip(self):
        while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
            self.at += 1
        if self.at == len(self.text):
            raise _Ended

    def expect(self, characters):
        self.skip()
        found = self.text[self.at]
        if found not in characters:
            raise ValueError(f"{found!r} at {self.at}, expected one of {characters!r}")
        self.at += 1
        return found

    def value(self):
        self.skip()
        first = self.text[self.at]
        if first == "{":
            return self.object()
        if first == "[":
            return self.array()
        if first == '"':
            return self.string()
        return self.scalar()

    def scalar(self):
        word = re.compile(r"[-+.\w]*").match(self.text, self.at).group()
        if self.at + len(word) == len(self.text):  # the text may continue
            number = re.fullmatch(r"-?(0|[1-9]\d*)?((?<=\d)\.\d*)?((?<=\d)[eE][+-]?\d*)?", word)
            if word and (number or any(name.startswith(word) for name in ("true", "false", "null"))):
                raise _Ended
        self.at += len(word)
        return json.loads(word)

    def string(self):
        whole = re.compile(r'"([^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*').match(self.text, self.at)
        if whole.end() == len(self.text):
            raise _Ended
        if self.text[whole.end()] == "\\":
            if re.fullmatch(r"\\(u[0-9a-fA-F]{0,3})?", self.text[whole.end():]):
                raise _Ended
            raise ValueError(f"a bad escape at {whole.end()}")
        start, self.at = self.at, whole.end() + 1
        return json.loads(self.text[start:self.at])

    def array(self):
        self.at += 1
        values = []
        try:
            self.skip()
            if self.text[self.at] == "]":
                self.at += 1
                return values
            while True:
                values.append(self.value())
                if self.expect(",]") == "]":
                    return values
        except _Ended as ended:
            raise _Ended(values + ([ended.value] if ended.known else []), True) from None

    def object(self):
        self.at += 1
        members = {}
        key = None
        try:
            self.skip()
            if self.text[self.at] == "}":
                self.at += 1
                return members
            while True:
                key = None
                self.skip()
                if self.text[self.at] != '"':
                    raise ValueError(f"no key at {self.at}")
                key = self.string()
                self.expect(":")
                members[key] = self.value()
                if self.expect(",}") == "}":
                    return members
        except _Ended as ended:
            if ended.known:
                members[key] = ended.value
            raise _Ended(members, True) from None


def read_beginning(text):
    """The complete part of a truncated JSON text, or None. Raises ValueError if no JSON text begins like this."""
    try:
        return _Reader(text).value()
    except _Ended as ended:
        return ended.value if ended.known else None
