"""Run torch's samples of its operators through Weft.

python -m tests.opinfo                      all of them; exit status 1 if anything differs that misses.py does not list
python -m tests.opinfo softmax "linalg.*"   some operators, with every failure: the call, the error
python -m tests.opinfo --report             totals, and the operators that fail, worst first
python -m tests.opinfo --samples 3          a part: so many samples of each operator and dtype
python -m tests.opinfo --docs               write docs/operators.md
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys

from tests.opinfo import database, report
from tests.opinfo.misses import problems
from tests.opinfo.runner import run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.opinfo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operators", nargs="*", help="names of torch's table, or patterns; variants are included")
    parser.add_argument("--report", action="store_true", help="print totals and one line per operator that fails")
    parser.add_argument("--docs", action="store_true", help="write docs/operators.md")
    parser.add_argument("--samples", type=int, help="at most so many samples of each operator and dtype")
    parser.add_argument("--seconds", type=int, default=300, help="for one operator (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8), help="processes")
    options = parser.parse_args(arguments)
    if options.docs:
        from tests.opinfo.page import write

        write()
        return 0
    keys = choose(options.operators)
    if not keys:
        print("no such operator", file=sys.stderr)
        return 2
    outcomes = run(keys, options.samples, options.seconds, options.jobs)
    if options.report:
        print(report.worst_first(outcomes))
        print(report.totals(outcomes))
        return 0
    if options.operators:
        print("\n".join(report.details(outcome) for outcome in outcomes))
    found = problems(outcomes, complete=options.samples is None)
    print("\n".join(found) if found else "every difference is listed in tests/opinfo/misses.py")
    print(report.totals(outcomes))
    return int(bool(found))


def choose(words: list[str]) -> list[str]:
    """The keys of operators that are meant: `max` is `max/binary` too."""
    every = list(database.operators())
    if not words:
        return every
    return [key for key in every if any(_is_meant(key, word) for word in words)]


def _is_meant(key: str, word: str) -> bool:
    name = key.partition("/")[0]
    return any(fnmatch.fnmatchcase(way, word) for way in (key, name, name.removeprefix("nn.functional.")))


if __name__ == "__main__":
    sys.exit(main())
