"""Pinned host memory, with a CPU in the place of the GPU: nothing is lost, reused memory is that of the last copy, and what is
pinned is unpinned."""

import mmap

import pytest
import torch

from asyncrl.device.pinning import HostArena, PinnedFile, alone_in_memory


class Pinned:
    """Keeps account of what is pinned."""

    def __init__(self, refuses=""):
        self.refuses, self.held, self.calls = refuses, {}, 0

    def pin(self, address, size):
        self.calls += 1
        if not self.refuses:
            assert address not in self.held
            self.held[address] = size
        return self.refuses

    def unpin(self, address):
        del self.held[address]


@pytest.mark.parametrize("refuses", ["", "no more memory"])
def test_an_arena_copies_and_is_reused(refuses):
    pinning = Pinned(refuses)
    arena = HostArena(pinning, device="cpu")
    tensors = [torch.randn(3, 5), torch.arange(7, dtype=torch.int8), torch.randn(4, 6).t(), torch.tensor(2.0), torch.empty(0, 3)]
    copies = arena.copies(tensors)
    assert all(torch.equal(copy, tensor) and copy.dtype == tensor.dtype for copy, tensor in zip(copies, tensors, strict=True))
    tensors[0].zero_()
    assert copies[0].any()
    arena.copies(tensors[:2])
    assert pinning.calls == 1  # it was large enough
    assert not copies[0].any()
    arena.copies([torch.randn(1000)])
    assert pinning.calls == 2
    assert len(pinning.held) == (0 if refuses else 1)
    arena.close()
    arena.close()
    assert not pinning.held


def test_an_arena_s_pages_are_its_own():
    """CUDA refuses to copy a tensor of which only a part lies on a pinned page."""
    pinning = Pinned()
    arena = HostArena(pinning, device="cpu")
    arena.copies([torch.randn(2000)])
    assert [address % mmap.PAGESIZE for address in pinning.held] == [0]
    arena.close()


def test_tensors_of_another_device_get_memory_of_their_own():
    pinning = Pinned()
    tensor = torch.randn(5)
    (copy,) = HostArena(pinning).copies([tensor])
    tensor.zero_()
    assert copy.all()
    assert not pinning.calls


def test_only_the_part_is_written_to_a_file():
    whole = torch.arange(10)
    assert alone_in_memory(whole) is whole
    part = alone_in_memory(whole[2:4])
    assert part.tolist() == [2, 3]
    assert part.untyped_storage().nbytes() == part.nbytes


@pytest.mark.parametrize("refuses", ["", "not here"])
def test_a_file_is_shared_memory(tmp_path, refuses):
    path, pinning = tmp_path / "weights", Pinned(refuses)
    path.write_bytes(bytes(range(100)))
    file = PinnedFile(str(path), pinning)
    assert file.pinned is (not refuses)
    assert file.bytes.tolist() == list(range(100))
    file.bytes[3] = 200
    assert path.read_bytes()[3] == 200
    assert file.is_of(str(path))
    with path.open("ab") as more:
        more.write(b"x")
    assert not file.is_of(str(path))
    path.unlink()
    assert not file.is_of(str(path))
    file.close()
    file.close()
    assert not pinning.held
    assert file.bytes[3] == 200
