"""How many programs of a compiled kernel a multiprocessor holds at a time."""

from __future__ import annotations

import attrs

PARTS = 4
"""Each multiprocessor has four schedulers with registers of their own; a warp stays with one of them."""


@attrs.frozen
class Multiprocessor:
    """What the programs on a multiprocessor share.

    The numbers of NVIDIA's are those of the CUDA C++ Programming Guide, "Compute Capabilities", and of AMD's those of
    the ISA of CDNA 3, section 3.6.

    Attributes:
        lanes: threads of a warp.
        warps: most of them at a time.
        shared: bytes of shared memory.
        kept: bytes of it that are taken for each program besides its own.
        shared_step: bytes in whose multiples it is given out.
        registers: of 32 bits, of all threads.
        register_step: those in whose multiples they are given to a warp.
    """

    lanes: int
    warps: int
    shared: int
    kept: int = 1024
    shared_step: int = 128
    registers: int = 65536
    register_step: int = 256

    def holds(self, registers: int, shared: int, warps: int) -> int:
        """Programs at a time.

        Args:
            registers: of a thread.
            shared: bytes of shared memory of a program.
            warps: of a program.

        Returns:
            0 if there is not room for one. How many programs there may be whatever they need, 16 or more on every GPU,
            is not looked at: programs of four warps come to no more.
        """
        of_warp = _rounded(max(1, registers) * self.lanes, self.register_step)
        by_registers = PARTS * (self.registers // PARTS // of_warp) // warps
        by_shared = (
            self.shared // _rounded(shared + self.kept, self.shared_step) if shared + self.kept else by_registers
        )
        return min(self.warps // warps, by_registers, by_shared)


CDNA3 = Multiprocessor(64, 32, 64 * 1024, kept=0, shared_step=512, registers=131072, register_step=512)
"""A compute unit of gfx942: four units of eight wavefronts, each with 512 vector registers a lane."""

AMD = {"gfx942": CDNA3}
"""By architecture. Others have wavefronts of 32 lanes or more shared memory, and no test compiles anything for them."""


def nvidia(threads: int, shared: int) -> Multiprocessor:
    """A multiprocessor of NVIDIA's, from compute capability 8.0 on: it keeps 1 kB of shared memory for each program.

    One of 7.5 keeps none, so that it may hold a program more than this says.

    Args:
        threads: most at a time.
        shared: bytes of shared memory.
    """
    return Multiprocessor(32, threads // 32, shared)


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step
