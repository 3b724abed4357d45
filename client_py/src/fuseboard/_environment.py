"""Who asks: the job this process belongs to, and what it runs on.

Also reads the environment's switches. Imports torch never: it looks at a torch that the caller has.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
import platform
import re
import socket
import sys
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from fuseboard._errors import FuseboardError
from fuseboard._version import __version__

_log = logging.getLogger("fuseboard")
_ON = frozenset(("1", "true", "yes", "on"))
_OFF = frozenset(("", "0", "false", "no", "off"))
_JOB_NAME = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
_NVIDIA_VERSION = pathlib.Path("/proc/driver/nvidia/version")

# Classes that wrap a model, by name so that none of their packages need be imported.
_WRAPPERS = {
    "DistributedDataParallel": "ddp",
    "FullyShardedDataParallel": "fsdp",
    "FSDPModule": "fsdp2",
    "DeepSpeedEngine": "deepspeed",
}


@dataclasses.dataclass(frozen=True)
class Environment:
    """What a process runs on; fields as in `plan.proto`."""

    torch_version: str = ""
    torch_cuda_version: str = ""
    transformers_version: str = ""
    driver_version: str = ""
    device_type: str = ""
    sm: int = 0
    gpu_name: str = ""
    compile: bool = False
    distributed_wrapper: str = ""
    client_version: str = __version__
    python_version: str = dataclasses.field(default_factory=platform.python_version)


@dataclasses.dataclass(frozen=True)
class Job:
    """One training process of one job; fields as in `plan.proto`."""

    name: str
    rank: int = 0
    world_size: int = 1
    instance_id: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))
    pid: int = dataclasses.field(default_factory=os.getpid)
    host: str = dataclasses.field(default_factory=socket.gethostname)


def switched_off(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether FUSEBOARD_DISABLE asks for nothing of this package to happen.

    1, true, yes and on do; 0, false, no, off and the empty string do not. Anything else does, with a
    warning: whoever touched the switch is safe on the model's own code.
    """
    value = environ.get("FUSEBOARD_DISABLE", "")
    word = value.strip().lower()
    if word not in _ON | _OFF:
        _log.warning("FUSEBOARD_DISABLE is %r, want 0 or 1: taken as 1, everything native", value)
    return word not in _OFF


def check_job_name(name: str) -> str:
    """Returns `name`.

    Raises:
        FuseboardError: BAD_JOB if the daemon would refuse it.
    """
    if not isinstance(name, str) or not _JOB_NAME.fullmatch(name):
        raise FuseboardError("BAD_JOB", f"job is {name!r}, want 1 to 128 of [A-Za-z0-9._:/-]")
    return name


def _legal_job_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._:/-]", "-", text)[:128]


def _job_name(environ: Mapping[str, str], script: str) -> str:
    named = environ.get("FUSEBOARD_JOB", "")
    if named:
        legal = _legal_job_name(named)
        if legal != named:
            _log.warning("FUSEBOARD_JOB is %r, taken as %r: [A-Za-z0-9._:/-] only", named, legal)
        return legal
    if environ.get("SLURM_JOB_NAME"):
        return _legal_job_name(environ["SLURM_JOB_NAME"])
    if environ.get("SLURM_JOB_ID"):
        return _legal_job_name("slurm/" + environ["SLURM_JOB_ID"])
    return _legal_job_name(pathlib.PurePath(script).stem) or "python"


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        _log.warning("%s is %r, want a number: taken as %d", name, text, default)
        return default


def _ranks(environ: Mapping[str, str]) -> tuple[int, int]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    rank, world_size = _number(environ, "RANK", 0), _number(environ, "WORLD_SIZE", 1)
    if world_size < 1 or not 0 <= rank < world_size:
        _log.warning("RANK is %d of WORLD_SIZE %d: taken as 0 of 1", rank, world_size)
        return 0, 1
    return rank, world_size


def describe_job(
    name: str | None, environ: Mapping[str, str] = os.environ, script: str | None = None
) -> Job:
    """The job of this process, with a new instance id.

    Args:
        name: The caller's own name for it, or None to derive one.
        environ: Environment variables.
        script: Path of the program; default: sys.argv[0].

    Raises:
        FuseboardError: BAD_JOB.
    """
    rank, world_size = _ranks(environ)
    if name is None:
        name = _job_name(environ, script if script is not None else (sys.argv or [""])[0])
    return Job(check_job_name(name), rank, world_size)


def driver_version(path: pathlib.Path = _NVIDIA_VERSION) -> str:
    """Version of the NVIDIA kernel driver, or empty."""
    try:
        first = path.read_text().splitlines()[0]
    except (OSError, IndexError, UnicodeDecodeError):
        return ""
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", first + " ")
    return match.group(1) if match else ""


def _wrapper(model: Any) -> str:
    for module in (model, getattr(model, "_orig_mod", None)):
        for parent in type(module).__mro__:
            if parent.__name__ in _WRAPPERS:
                return _WRAPPERS[parent.__name__]
    return ""


def _device(parameters: Iterable[Any]) -> Any:
    for parameter in parameters:
        if parameter.device.type != "meta":
            return parameter.device
    return None


def describe_environment(model: Any) -> Environment:
    """The environment of a torch module. REQUIRES: torch is imported."""
    torch = sys.modules["torch"]
    device = _device(model.parameters())
    on_gpu = device is not None and device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if on_gpu else None
    return Environment(
        torch_version=str(torch.__version__),
        torch_cuda_version=str(torch.version.cuda or ""),
        transformers_version=str(getattr(sys.modules.get("transformers"), "__version__", "")),
        driver_version=driver_version(),
        device_type=device.type if device is not None else "cpu",
        sm=10 * properties.major + properties.minor if properties else 0,
        gpu_name=str(properties.name) if properties else "",
        compile=hasattr(model, "_orig_mod")
        or getattr(model, "_compiled_call_impl", None) is not None,
        distributed_wrapper=_wrapper(model),
    )
