"""The operators' fixtures: the binding, its kernels, and the devices to run on.

The binding and the kernel libraries come from FUSEBOARD_HOME, else from the newest of build/*/stage. A
test that asks for `kernel` runs once with the composites (-1) and once with the kernel libraries.
"""

import os
import pathlib

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]


def find_home():
    """The installation under test."""
    if "FUSEBOARD_HOME" in os.environ:
        return pathlib.Path(os.environ["FUSEBOARD_HOME"])
    built = sorted(ROOT.glob("build/*/stage/lib/fuseboard/torch"), key=lambda p: p.stat().st_mtime)
    if not built:
        pytest.exit("no binding was built: set FUSEBOARD_HOME or build with FB_TORCH_DIR", 2)
    return built[-1].parents[2]


HOME = find_home()
LIBRARIES = HOME / "lib" / "fuseboard"


def binding_path():
    """The binding for the torch that runs the tests."""
    version = torch.__version__.split("+")[0]
    flavour = f"cu{torch.version.cuda}" if torch.version.cuda else "cpu"
    return LIBRARIES / "torch" / f"{version}-{flavour}" / "libfuseboard_torch.so"


torch.ops.load_library(str(binding_path()))


def kernel_path(operation):
    """The kernel library of an operation."""
    return LIBRARIES / "kernels" / f"{operation}.so"


def load(operation):
    """The handle of an operation's kernel library."""
    return torch.ops.fuseboard.load_kernel(str(kernel_path(operation)))


def pytest_configure(config):
    """Declares the marker of tests that need a CUDA device."""
    config.addinivalue_line("markers", "gpu: needs a CUDA device")


def pytest_collection_modifyitems(items):
    """Skips tests of the device where there is none."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(params=["composite", "kernel"])
def handle_of(request):
    """A function from an operation to a handle: -1, or that of its library."""
    if request.param == "composite":
        return lambda operation: -1
    return load


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Each kind of device."""
    return request.param


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
