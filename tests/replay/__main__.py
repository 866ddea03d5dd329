"""Compare the rendered kernels and plans of fixed programs with the recorded digests, or record them anew.

python -m tests.replay                       what differs from the record; exit status 1 if anything does
python -m tests.replay --record              write the record anew
python -m tests.replay --show NAME           print plans and kernels of the programs whose name contains NAME
python -m tests.replay --texts FOLDER        write those of all programs into a folder, to compare two checkouts
python -m tests.replay softmax --device gpu  only programs whose name contains a word, on one device
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.replay.record import RECORDED, differences, list_programs, read, render_chunk, render_texts, write

CHUNKS = 32  # handed to processes one by one


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only programs whose name contains one of these")
    parser.add_argument("--device", help="only on this device: cpu, gpu or gpu+libraries")
    parser.add_argument("--record", action="store_true", help="write what is found to the record")
    parser.add_argument("--show", metavar="NAME", help="print plans and kernels of programs, compare nothing")
    parser.add_argument("--texts", metavar="FOLDER", type=Path, help="write plans and kernels of programs to files")
    parser.add_argument(
        "--jobs", type=int, default=min(os.cpu_count() or 1, 8), help="processes (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    words = [options.show] if options.show else options.words
    chosen = [
        key
        for key in list_programs()
        if (not words or any(word in key[0] for word in words)) and options.device in (None, key[1])
    ]
    if not chosen:
        print("no such program", file=sys.stderr)
        return 2
    if options.show:
        for line, text in render_texts(chosen):
            print(f"=== {line}\n\n{text}")
        return 0
    jobs = [chosen[n::CHUNKS] for n in range(CHUNKS) if chosen[n::CHUNKS]]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(options.jobs, len(jobs)), spawn) as pool:
        rendered = pool.map(render_chunk, jobs, [options.texts] * len(jobs))
        found = {line.key: line for lines in rendered for line in lines}
    if options.record:
        everything = len(chosen) == len(list_programs())
        write(found if everything else {**read(), **found})
        print(f"{len(found)} programs recorded in {RECORDED.name}")
        return 0
    recorded = {key: line for key, line in read().items() if key in set(chosen) or not (words or options.device)}
    changed = differences(recorded, found)
    print("\n".join(changed) if changed else f"{len(found)} programs render as recorded")
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
