#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests tools/config_tables.py, and that docs/configuration.md agrees with the source."""

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import config_tables  # noqa: E402

CONFIG = """
inline constexpr int32_t kAuto = -1;  // a value of chunk
struct EngineConfig {
  std::string model;        // file
  std::string mode = "a";   // a | b
  // Two lines
  // of comment.
  int32_t rows = 0;         // 0: decide
  int32_t chunk = kAuto;
  int32_t block = 16;
  double share = 0.9;
  bool pin = false;
};
"""
FIELDS = """
constexpr int64_t kMost = int64_t{1} << 24;

constexpr Field kFields[] = {
    {.name = "model", .member = &EngineConfig::model, .group = "Model", .help = "a file, or "
                                                                                "a {name}"},
    {.name = "mode",
     .member = &EngineConfig::mode,
     .group = "Model",
     .help = "which, of two",
     .common = true,
     .choices = "a|b"},
    {.name = "rows",
     .member = &EngineConfig::rows,
     .group = "Model",
     .help = "rows",
     .max = kMost,
     .auto_value = 0},
    {.name = "chunk", .member = &EngineConfig::chunk, .group = "Model", .help = "chunk", .max = 100, .auto_value = kAuto},
    {.name = "block",
     .member = &EngineConfig::block,
     .group = "Model",
     .help = "block",
     .alias = "b",
     .min = 16,
     .max = 1024,
     .multiple_of = 16},
    {.name = "share", .member = &EngineConfig::share, .group = "Model", .help = "share", .max = 1},
    {.name = "pin", .member = &EngineConfig::pin, .group = "Model", .help = "pin"},
};
"""
TABLE = """| flag | variable | default | range | meaning |
|---|---|---|---|---|
| `-m`, `--model MODEL` | `WARPROW_MODEL` | none | | a file, or a {name} |
| `--mode` | `WARPROW_MODE` | a | a, b | which, of two |
| `--rows N` | `WARPROW_ROWS` | auto | to 2^24 | rows |
| `--chunk N` | `WARPROW_CHUNK` | auto | 0 to 100 | chunk |
| `-b`, `--block N` | `WARPROW_BLOCK` | 16 | 16 to 1024, a multiple of 16 | block |
| `--share X` | `WARPROW_SHARE` | 0.9 | above 0, to 1 | share |
| `--[no-]pin` | `WARPROW_PIN` | false | | pin |
| `--config FILE` | `WARPROW_CONFIG` | none | | the file above; not a key of itself |
"""


def table(fields=FIELDS, config=CONFIG):
    return config_tables.table_text(config_tables.read_fields(fields, config))


class Table(unittest.TestCase):
    def test_rows_come_from_the_source(self):
        self.assertEqual(table(), TABLE)

    def test_a_meaning_is_the_help_text(self):
        self.assertIn("| to 2^24 | one \\| two |", table(FIELDS.replace('.help = "rows"', '.help = "one | two"')))

    def test_a_changed_default_limit_or_row_changes_the_page(self):
        page = f"before\n{config_tables.BEGIN}\n{TABLE}{config_tables.END}\nafter\n"
        self.assertEqual(config_tables.updated(page, config_tables.read_fields(FIELDS, CONFIG)), page)
        for fields, config in (
            (FIELDS, CONFIG.replace("block = 16", "block = 32")),
            (FIELDS.replace(".max = 1024", ".max = 2048"), CONFIG),
            (FIELDS.replace('"a|b"', '"a|b|c"'), CONFIG),
            (FIELDS.replace('"pin", .member', '"pin-threads", .member'), CONFIG),
        ):
            changed = config_tables.updated(page, config_tables.read_fields(fields, config))
            self.assertNotEqual(changed, page)
            self.assertTrue(changed.startswith("before\n") and changed.endswith("after\n"))

    def test_what_is_not_understood_is_an_error(self):
        for fields in (
            FIELDS.replace(".min = 16", ".least = 16"),
            FIELDS.replace(".max = kMost", ".max = kOther"),
            FIELDS.replace("kFields", "kOthers"),
            FIELDS.replace("&EngineConfig::pin,", "nullptr,"),
        ):
            with self.assertRaises((ValueError, KeyError)):
                config_tables.read_fields(fields, CONFIG)
        with self.assertRaises(ValueError):
            config_tables.updated("no markers", [])


class Page(unittest.TestCase):
    def test_the_page_has_the_settings_of_the_source(self):
        self.assertEqual(config_tables.main(["--root", str(ROOT), "--check"]), 0)


if __name__ == "__main__":
    unittest.main()
