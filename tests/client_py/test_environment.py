"""Who asks: names, ranks and environments as the daemon hears them."""

from __future__ import annotations

import pathlib

import pytest
from fuseboard import _environment
from fuseboard._errors import FuseboardError


@pytest.mark.parametrize(
    ("environ", "script", "name"),
    [
        ({"FUSEBOARD_JOB": "a/b", "SLURM_JOB_NAME": "s"}, "t.py", "a/b"),
        ({"FUSEBOARD_JOB": "my job!"}, "t.py", "my-job-"),
        ({"SLURM_JOB_NAME": "pre train", "SLURM_JOB_ID": "7"}, "t.py", "pre-train"),
        ({"SLURM_JOB_ID": "7"}, "t.py", "slurm/7"),
        ({}, "/home/me/train_llama.py", "train_llama"),
        ({}, "-c", "-c"),
        ({}, "", "python"),
        ({}, "x" * 300 + ".py", "x" * 128),
    ],
)
def test_the_jobs_name_comes_from_the_nearest_source(
    environ: dict[str, str], script: str, name: str
) -> None:
    assert _environment.describe_job(None, environ, script).name == name


def test_every_start_has_another_instance_id() -> None:
    one, two = (_environment.describe_job("j", {}) for _ in range(2))
    assert one.instance_id != two.instance_id and len(one.instance_id) == 36


@pytest.mark.parametrize(
    ("environ", "ranks", "warns"),
    [
        ({}, (0, 1), False),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8), False),
        ({"RANK": "8", "WORLD_SIZE": "8"}, (0, 1), True),
        ({"RANK": "-1", "WORLD_SIZE": "8"}, (0, 1), True),
        ({"WORLD_SIZE": "0"}, (0, 1), True),
        ({"RANK": "one", "WORLD_SIZE": "2"}, (0, 2), True),
        ({"RANK": "", "WORLD_SIZE": ""}, (0, 1), False),
    ],
)
def test_ranks_are_read_and_nonsense_is_named(
    environ: dict[str, str],
    ranks: tuple[int, int],
    warns: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = _environment.describe_job("j", environ)
    assert (job.rank, job.world_size) == ranks
    assert bool(caplog.records) is warns


def test_a_bad_name_of_the_callers_own_is_an_error_with_the_value() -> None:
    with pytest.raises(FuseboardError, match="'a b'"):
        _environment.describe_job("a b", {})


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6\n", "535.54.03"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n",
            "580.159.04",
        ),
        ("", ""),
        ("nonsense\n", ""),
    ],
)
def test_the_drivers_version_is_read_from_proc(
    tmp_path: pathlib.Path, text: str, version: str
) -> None:
    (tmp_path / "version").write_text(text)
    assert _environment.driver_version(tmp_path / "version") == version
    assert _environment.driver_version(tmp_path / "absent") == ""


def test_the_environment_of_a_model_on_the_cpu() -> None:
    torch = pytest.importorskip("torch")
    got = _environment.describe_environment(torch.nn.Linear(2, 2))
    assert (got.torch_version, got.device_type, got.sm) == (torch.__version__, "cpu", 0)
    assert (got.compile, got.distributed_wrapper, got.gpu_name) == (False, "", "")
    assert got.torch_cuda_version == (torch.version.cuda or "")


def test_a_model_without_parameters_or_on_meta_counts_as_on_the_cpu() -> None:
    torch = pytest.importorskip("torch")
    for model in (torch.nn.ReLU(), torch.nn.Linear(2, 2, device="meta")):
        assert _environment.describe_environment(model).device_type == "cpu"


def test_compiled_and_wrapped_models_are_recognised() -> None:
    torch = pytest.importorskip("torch")
    assert _environment.describe_environment(torch.compile(torch.nn.Linear(2, 2))).compile
    in_place = torch.nn.Linear(2, 2)
    in_place.compile()
    assert _environment.describe_environment(in_place).compile
    wrapper = type("DistributedDataParallel", (torch.nn.Linear,), {})
    engine = type("MyEngine", (type("DeepSpeedEngine", (torch.nn.Linear,), {}),), {})
    assert _environment.describe_environment(wrapper(2, 2)).distributed_wrapper == "ddp"
    assert _environment.describe_environment(engine(2, 2)).distributed_wrapper == "deepspeed"
