"""How large a run is. `make test` runs every test at a size that one waits for; `make test-all` runs them at full size.

A test asks `sized` for its numbers, and `sample` for the part it tries of what there is to try: another part in each
run, drawn by the seed that a run prints. No test is left out of a run, but of one with many cases some are left out on
PostgreSQL (tests/conftest.py). HOLDFAST_TEST_SIZE=full asks for full size, HOLDFAST_TEST_SEED=7 for the parts of the
run that printed 7.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

SIZE = os.environ.get("HOLDFAST_TEST_SIZE", "quick")
if SIZE not in ("quick", "full"):
    raise RuntimeError(f"HOLDFAST_TEST_SIZE is {SIZE!r}: say quick or full, or leave it unset")
FULL = SIZE == "full"
# In the environment, so that the processes of pytest-xdist draw by the same seed.
SEED = int(os.environ.setdefault("HOLDFAST_TEST_SEED", str(random.SystemRandom().randrange(1, 1_000_000))))
HEADER = f"size: {SIZE}, seed: {SEED} (HOLDFAST_TEST_SEED={SEED} draws the same samples again)"


def sized(quick: T, full: T) -> T:
    return full if FULL else quick


def sample(things: Iterable[T], quick: int, *about: object) -> list[T]:
    """`quick` of them in their order, or all at full size. `about` names what they are of: each draws for itself."""
    found = list(things)
    if FULL or len(found) <= quick:
        return found
    draw = random.Random(repr((SEED, *about)))
    return [found[at] for at in sorted(draw.sample(range(len(found)), quick))]
