"""What a device has to say about a window: when its work is done, and how much memory it needed."""

from __future__ import annotations

from fuseboard._measure import Measurement, Method


def peak_rss_bytes(status_path: str = "/proc/self/status") -> int | None:
    """The largest resident set of this process so far, or None if it cannot be read.

    It never falls: two variants can be compared only in a process each.
    """
    try:
        with open(status_path) as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


class CpuDevice:
    """A machine without a GPU: nothing to wait for; memory is the process's."""

    def synchronize(self) -> None:
        """Returns at once."""

    def reset_peak(self) -> None:
        """Does nothing: the peak of a process cannot be reset."""

    def peak(self) -> Measurement | None:
        """Peak resident set since the process began."""
        peak = peak_rss_bytes()
        return None if peak is None else Measurement(float(peak), Method.PEAK_RSS, 1)


class CudaDevice:
    """The current GPU.

    NOTE: torch has one peak per device. A window resets it when it begins, so afterwards
    torch.cuda.max_memory_allocated() tells the peak since then, not since the caller's own reset.
    """

    def synchronize(self) -> None:
        """Waits for everything that was launched."""
        import torch

        torch.cuda.synchronize()

    def reset_peak(self) -> None:
        """Begins a new peak at what is allocated now."""
        import torch

        torch.cuda.reset_peak_memory_stats()

    def peak(self) -> Measurement | None:
        """Peak of allocated bytes since the reset."""
        import torch

        return Measurement(float(torch.cuda.max_memory_allocated()), Method.ALLOCATOR, 1)
