"""Plans of the products, on every processor: none of them changes a bit of what comes out."""

from collections.abc import Iterator
from itertools import product

import attrs
import pytest
import torch
from gguf import GGMLQuantizationType

from talon_core.runtime.blocks import Blocks
from talon_kernels.native import tuning
from talon_kernels.native.tuning import (
    BY_PANELS,
    DIRECT,
    DISTANCES,
    NARROW,
    PANEL,
    PANELS,
    SHORT_NARROW,
    SHORT_WIDE,
    TWICE,
    WIDE,
    WIDTHS,
)
from talon_kernels.skinny_linear import skinny_linear
from talon_tests.emulated import Emulated
from talon_tests.last_page import before_the_end
from talon_tests.tiny_gguf import random_blocks

KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
HIGHEST, DIRECT_ROWS, BAND = 8, 8, tuning.BAND
"""Most rows of a tile, of one that reads blocks directly, and of one over a panel."""
TWICE_EIGHT = 2 * DIRECT_ROWS
"""Rows of which a library with 32 registers reads blocks twice, each time for half of them, if its plan says so."""
HEIGHTS = (*range(1, HIGHEST + 1), 11, 17)
"""Rows of the input: those of each tile, and of two and of three."""


@pytest.fixture(autouse=True)
def _followed_as_before(library) -> Iterator[None]:
    """What a test says that the library is to follow ends with it."""
    before = {trial: tuning._planned(library, *trial) for trial in tuning.TRIALS}
    before[DIRECT, TWICE_EIGHT] = BY_PANELS  # of which the library tells nothing
    before |= tuning._plans(tuning._kept(tuning._path(library)))
    yield
    tuning._follow(library, before)


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def in_blocks(kind, outputs, inputs):
    return Blocks(torch.from_numpy(random_blocks(kind, outputs, inputs, 1)), int(GGMLQuantizationType[kind]), inputs)


def follow(library, source, rows, *plan):
    """Let tiles of all these heights be of such a plan; whether there is one of any."""
    return sum(library.plan(source, height, *plan) for height in rows) > 0


def ahead(library, source):
    """How far ahead weights may be fetched; one distance of an emulator, which fetches nothing."""
    return DISTANCES[source][-1:] if isinstance(library, Emulated) else DISTANCES[source]


def by_panels(library):
    """Let no block be read directly."""
    follow(library, DIRECT, (*range(1, DIRECT_ROWS + 1), TWICE_EIGHT), *attrs.astuple(BY_PANELS))


@pytest.mark.parametrize(
    ("source", "dtype", "inputs"),
    [
        *((SHORT_WIDE, torch.float32, inputs) for inputs in (70, 200, 1024)),
        *((SHORT_NARROW, torch.bfloat16, inputs) for inputs in (70, 1000, 2048)),
        *((WIDE, torch.float32, 1025), (NARROW, torch.bfloat16, 2060)),
    ],
)
def test_no_plan_of_weights_that_are_read_in_place_changes_a_bit(library, source, dtype, inputs):
    x, weight = numbers(HEIGHTS[-1], inputs), numbers(50, inputs, seed=1).to(dtype)
    weight = before_the_end(weight)  # what is fetched ahead lies behind it, where nothing may be read
    followed = {rows: skinny_linear(x[:rows], weight, backend="native") for rows in HEIGHTS}
    for plan in product(WIDTHS, ahead(library, source)):
        assert follow(library, source, range(1, HIGHEST + 1), *plan, 4096)
        for rows in HEIGHTS:
            assert torch.equal(skinny_linear(x[:rows], weight, backend="native"), followed[rows])


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [("Q4_1", 224), ("Q8_0", 1184), ("Q6_K", 768), ("F16", 97), ("bfloat16", 61), ("bfloat16", 1001)],
)
def test_no_plan_of_panels_changes_a_bit(library, kind, inputs):
    """Of blocks with any number of rows, of bfloat16 with so many that it is widened into panels as well."""
    heights = (33, 37) if kind == "bfloat16" else (*range(1, 10), 17)
    weight = numbers(53, inputs, seed=1).bfloat16() if kind == "bfloat16" else in_blocks(kind, 53, inputs)
    wide = weight.float() if kind == "bfloat16" else weight.widened()
    x = numbers(heights[-1], inputs)
    expected = {rows: skinny_linear(x[:rows], wide, backend="native") for rows in heights}
    by_panels(library)
    for plan in product(WIDTHS, ahead(library, PANEL), (*PANELS, 100)):
        assert follow(library, PANEL, range(1, BAND + 1), *plan)
        for rows in heights:
            assert torch.equal(skinny_linear(x[:rows], weight, backend="native"), expected[rows])


@pytest.mark.parametrize("kind", KINDS)
def test_no_way_to_read_blocks_changes_a_bit(library, kind):
    inputs = 768 if kind.endswith("K") else 224
    x, blocks = numbers(DIRECT_ROWS, inputs), in_blocks(kind, 50, inputs)
    for rows in range(1, DIRECT_ROWS + 1):
        expected = skinny_linear(x[:rows], blocks.widened(), backend="native")
        for columns, distance in product((0, 1, 2, 3, 4), ahead(library, DIRECT)):
            known = library.plan(DIRECT, rows, columns, distance, 0)
            assert known or rows > BAND or columns > 1  # of some heights and widths there are no tiles
            assert torch.equal(skinny_linear(x[:rows], blocks, backend="native"), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_that_are_read_twice_change_no_bit(library, kind):
    inputs = 768 if kind.endswith("K") else 224
    x, blocks = numbers(TWICE_EIGHT + 1, inputs), in_blocks(kind, 50, inputs)
    few_registers = library.plan(DIRECT, TWICE_EIGHT, *attrs.astuple(BY_PANELS)) == 0
    for rows in range(3, TWICE_EIGHT + 2):
        expected = skinny_linear(x[:rows], blocks.widened(), backend="native")
        for twice, half in ((BY_PANELS, 1), (TWICE, 1), (TWICE, 0)):  # at last the smaller half is not read directly
            assert library.plan(DIRECT, TWICE_EIGHT, *attrs.astuple(twice)) == (0 if few_registers else 2)
            library.plan(DIRECT, rows // 2, half, 64, 0)
            assert torch.equal(skinny_linear(x[:rows], blocks, backend="native"), expected)
        library.plan(DIRECT, rows // 2, 1, 64, 0)
    x, blocks = numbers(DIRECT_ROWS, 1792), in_blocks(kind, 25, 1792)
    library.plan(DIRECT, BAND, 0, 0, 0)  # eight long rows are two bands, for which there are no tiles now
    expected = skinny_linear(x, blocks.widened(), backend="native")
    assert torch.equal(skinny_linear(x, blocks, backend="native"), expected)
