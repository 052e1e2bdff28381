#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of bench/gpu_table.py without a GPU."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "bench"))
import gpu_table  # noqa: E402


def report(*records):
    return {"date": "d", "machine": "m", "version": "v", "records": list(records)}


def done(job, result, model="0.6B"):
    return {"model": model, "job": job, "result": result}


def failed(job, why, model="0.6B"):
    return {"model": model, "job": job, "failed": why}


class Values(unittest.TestCase):
    def test_later_results_beat_earlier_ones_and_failures_do_not(self):
        first = report(done("throughput", {"tokens_per_second": 100e3}))
        second = report(done("throughput", {"tokens_per_second": 120e3}))
        third = report(failed("throughput", "exit 4: no memory"))
        self.assertEqual(gpu_table.values_of([first, second, third])["0.6B", "throughput"], 120.0)

    def test_a_failed_command_explains_all_its_rows(self):
        values = gpu_table.values_of([report(failed("decode", "out of time", "8B"))])
        self.assertEqual({values["8B", f"decode {batch}"] for batch in gpu_table.DECODE_BATCHES}, {"out of time"})

    def test_sampling_is_what_it_adds_to_greedy(self):
        greedy = done("greedy", {"decode_ms_per_step": 2.0})
        seeded = done("seeded", {"decode_ms_per_step": 2.25})
        self.assertEqual(gpu_table.values_of([report(greedy, seeded)])["0.6B", "seeded"], 0.25)
        self.assertNotIn(("0.6B", "seeded"), gpu_table.values_of([report(seeded)]))

    def test_every_row_is_measured_by_a_command(self):
        for model in gpu_table.MODELS:
            measured = {key for job in gpu_table.jobs(model) for key in gpu_table.keys_of(job.name)}
            self.assertEqual({row.key for row in gpu_table.ROWS if row.model == model} - measured, set())


class Table(unittest.TestCase):
    def test_goals_are_compared_in_their_direction(self):
        less = gpu_table.Row("0.6B", "k", "label", 3.0, 2.0, 1.0)
        more = gpu_table.Row("0.6B", "k", "label", 1.0, 2.0, 3.0, more_is_better=True)
        self.assertEqual([gpu_table.verdict(less, value) for value in (0.5, 1.5, 2.5, "not run")],
                         ["aim met", "must met", "missed", ""])
        self.assertEqual([gpu_table.verdict(more, value) for value in (3.5, 2.5, 1.5)],
                         ["aim met", "must met", "missed"])

    def test_rows_that_were_not_run_say_so(self):
        lines = gpu_table.table([report()]).splitlines()
        self.assertEqual(len(lines), 2 + len(gpu_table.ROWS))
        self.assertTrue(all("| not run |" in line for line in lines[2:]))


if __name__ == "__main__":
    unittest.main()
