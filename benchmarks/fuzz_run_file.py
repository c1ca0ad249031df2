"""Damaged run files without end, given to everybody who reads one: how many were read, refused, and misread.

    python benchmarks/fuzz_run_file.py --count 10000

A misread, an exception that is no `RunFileError` or a file that takes longer than `SLOW`, is printed with the seed and
the number that make it again, and the exit status is 1.
"""

import argparse
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from damage import mutations, read_by_all, small_run

SLOW = 20.0
"""Seconds of computing for all readers together; a few tenths are usual."""
MOST_SHOWN = 20


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="damaged files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the one with this number alone, with its traceback")
    options = parser.parse_args()
    outcomes: Counter[tuple[str, str]] = Counter()
    misread: Counter[str] = Counter()
    slowest = 0.0
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        sound, folder = small_run(Path(name) / "sound"), Path(name) / "damaged"
        folder.mkdir()
        data = (sound / "run.jsonl").read_bytes()
        first, last = (0, options.count) if options.only is None else (options.only, options.only + 1)
        for number, (kind, damaged) in enumerate(islice(mutations(data, options.seed), first, last), start=first):
            (folder / "run.jsonl").write_bytes(damaged)
            began = time.process_time()  # the machine may be busy with something else
            try:
                for reader, outcome in read_by_all(folder, sound).items():
                    outcomes[reader, outcome] += 1
            except AssertionError as problem:
                misread[kind] += 1
                if misread.total() <= MOST_SHOWN:
                    print(f"misread: --seed {options.seed} --only {number} ({kind}): {problem}", flush=True)
                if options.only is not None:
                    traceback.print_exc()
            took = time.process_time() - began
            if number % 500 == 499:
                print(f"{number + 1:,} files", file=sys.stderr, flush=True)
            slowest = max(slowest, took)
            if took > SLOW:
                misread["slow"] += 1
                print(f"slow: --seed {options.seed} --only {number} ({kind}): {took:.0f} s", flush=True)
    readers = list(dict.fromkeys(reader for reader, _ in outcomes))
    print(f"{'reader':<28}{'read':>8}{'refused':>9}")
    for reader in readers:
        print(f"{reader:<28}{outcomes[reader, 'read']:>8}{outcomes[reader, 'refused']:>9}")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    spent = time.monotonic() - start
    print(f"{misread.total()} misread {dict(misread) or ''}")
    print(f"the slowest took {slowest:.1f} s, all {spent:.0f} s, in at most {memory:.0f} MB")
    return 1 if misread else 0


if __name__ == "__main__":
    sys.exit(main())
