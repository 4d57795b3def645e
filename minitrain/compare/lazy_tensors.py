"""Pages of mapped files, handed back to the system when nobody needs them any more."""

import ctypes
import mmap

from torch import Tensor

# <linux/mman.h>, since Linux 5.4: what a page holds stays, in its file or in swap
MADV_PAGEOUT = 21


def hand_back(tensor: Tensor) -> None:
    """Let the memory of ``tensor`` be used for something else; its values stay.

    A file larger than memory is then compared as well as a small one. Does nothing
    where the system knows no such advice.
    """
    storage = tensor.untyped_storage()
    begin = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = storage.data_ptr() + storage.nbytes() - begin
    if size > 0:
        libc = ctypes.CDLL(None)
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), MADV_PAGEOUT)
