"""Checks what a caller passes to `patch`, before anything happens."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Iterable

from fuseboard._environment import check_job_name
from fuseboard._errors import FuseboardError


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of `patch`, checked; names mean what they mean there."""

    require: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    deferred_logits: bool = True
    live: bool = True
    job: str | None = None
    address: str | None = None


OPTION_NAMES = tuple(field.name for field in dataclasses.fields(Options))


def near_match(name: str, known: Collection[str]) -> str:
    """The end of a sentence that names the known name nearest to `name`, or is empty."""
    matches = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def check_options(
    require: Iterable[str],
    disable: Iterable[str],
    deferred_logits: bool,
    live: bool,
    job: str | None,
    address: str | None,
    unknown: Iterable[str],
) -> Options:
    """Checks types and option names. Whether the kernels exist only the daemon can tell.

    Raises:
        TypeError: An unknown option, or one of the wrong type; names it and the value.
        FuseboardError: BAD_JOB, BAD_ADDRESS.
    """
    for name in unknown:
        raise TypeError(f"patch() has no option {name!r}{near_match(name, OPTION_NAMES)}")
    for name, flag in (("deferred_logits", deferred_logits), ("live", live)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name} is {flag!r}, want True or False")
    for name, text in (("job", job), ("address", address)):
        if text is not None and not isinstance(text, str):
            raise TypeError(f"{name} is {text!r}, want a string")
    if job is not None:
        check_job_name(job)
    return Options(
        _names("require", require), _names("disable", disable), deferred_logits, live, job, address
    )


def _names(option: str, names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, (str, bytes)):
        raise TypeError(f"{option} is {names!r}, want a list of kernel names: [{names!r}]")
    try:
        listed = tuple(names)
    except TypeError:
        raise TypeError(f"{option} is {names!r}, want a list of kernel names") from None
    for name in listed:
        if not isinstance(name, str) or not name:
            raise TypeError(f"{option} has {name!r}, want names of kernels")
    return listed


def check_kernel_names(options: Options, known: Collection[str]) -> None:
    """Checks the names in `require` and `disable` against what the daemon knows.

    Raises:
        FuseboardError: UNKNOWN_KERNEL; names the option, the kernel and the nearest known name.
    """
    for option, names in (("require", options.require), ("disable", options.disable)):
        for name in names:
            if name not in known and not (option == "disable" and name == "*"):
                raise FuseboardError(
                    "UNKNOWN_KERNEL",
                    f"{option}: no kernel is called {name!r}{near_match(name, known)}",
                )
