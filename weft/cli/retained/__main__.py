"""`python -m weft.cli.retained`: run the checks and print what fails; 1 if anything did."""

from __future__ import annotations

import platform
import sys
import time

from weft.cli.retained import SIZES, all_checks, failures


def main() -> int:
    started, failed = time.perf_counter(), list(failures())
    for name, text in failed:
        print(f"{name}: {text}")
    where = f"{platform.python_implementation()} {platform.python_version()}"
    seconds = time.perf_counter() - started
    print(
        f"{where}: {len(all_checks()) * len(SIZES)} checks of retained results, {len(failed)} failed, {seconds:.1f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
