"""Children forked after patch(): they never touch gRPC, end cleanly, and keep no connection alive."""

from __future__ import annotations

import gc
import os
import pathlib
import sys
import textwrap
import weakref
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch")

from fakes.fake_daemon import FakeDaemon
from fuseboard._channel import never_destroy

from tests import warm

PRELUDE = """
import gc, os, sys, threading, time, warnings
warnings.simplefilter("error", ResourceWarning)
import torch
import fuseboard
from fuseboard._registry import registry
from fakes import fake_model
fake_model.install()
model = fake_model.Model()
fuseboard.patch(model, address=sys.argv[1])
assert fuseboard.report().revision == 1
"""


@pytest.fixture
def daemon(fake_home: pathlib.Path, short_tmp: pathlib.Path) -> Iterator[FakeDaemon]:
    started = FakeDaemon(str(short_tmp / "job.sock"), short_tmp / "state").start()
    yield started
    started.stop()


def run(daemon: FakeDaemon, body: str, **environment: str) -> str:
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = warm.run(
        warm.TORCH,
        PRELUDE + textwrap.dedent(body),
        [daemon.address],
        {**os.environ, **paths, **environment},
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_data_loader_workers_work_and_end_and_the_parent_goes_on(
    daemon: FakeDaemon, eventually: Callable[..., None]
) -> None:
    out = run(
        daemon,
        """
        from torch.utils.data import DataLoader
        for epoch in range(3):
            loader = DataLoader(range(64), batch_size=4, num_workers=2, multiprocessing_context="fork")
            assert sum(int(b.sum()) for b in loader) == 64 * 63 // 2
            fuseboard.step()
        print(registry.sessions()[0].uplink is not None, registry.forked)
        """,
    )
    assert out.split() == ["True", "False"]
    reports = daemon.calls("ReportProgress")
    assert [r.get("leaving") for r in reports].count(True) == 1
    assert reports[-1]["step"] == "3"


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)", "pass"])
def test_a_child_that_ends_by_itself_sends_nothing_and_hangs_nowhere(
    daemon: FakeDaemon, end: str
) -> None:
    out = run(
        daemon,
        f"""
        for _ in range(2):
            child = os.fork()
            if child == 0:
                assert registry.forked and fuseboard.report().revision == 1
                fuseboard.step()
                gc.collect()
                {end}
                break
            assert os.waitpid(child, 0)[1] == 0
        else:
            print("parent", flush=True)
        """,
    )
    assert out == "parent\n"
    assert [c.get("leaving") for c in daemon.calls("ReportProgress")].count(True) == 1


def test_a_child_may_unpatch_and_drop_the_model(daemon: FakeDaemon) -> None:
    run(
        daemon,
        """
        child = os.fork()
        if child == 0:
            fuseboard.unpatch()
            assert fake_model.FakePatcher.latest.restored == 1
            del model
            gc.collect()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert fuseboard.report().sites
        """,
    )


def test_a_child_that_patches_runs_native_and_says_why(daemon: FakeDaemon) -> None:
    out = run(
        daemon,
        """
        import logging
        logging.getLogger("fuseboard").setLevel(logging.ERROR)
        child = os.fork()
        if child == 0:
            other = fake_model.Model()
            print(fuseboard.patch(other, address=sys.argv[1]).problem, flush=True)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """,
    )
    assert "forked from a process that uses Fuseboard" in out


def test_a_child_does_not_keep_its_parents_connection_alive(
    daemon: FakeDaemon, eventually: Callable[..., None], short_tmp: pathlib.Path
) -> None:
    calls = short_tmp / "state" / "calls.jsonl"
    out = run(
        daemon,
        f"""
        import pathlib
        while '"WatchPlan"' not in pathlib.Path({str(calls)!r}).read_text():
            time.sleep(0.02)
        child = os.fork()
        if child == 0:
            os.close(1)
            os.close(2)
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)
        os._exit(0)  # As if killed: no good-bye.
        """,
    )
    child = int(out)
    try:
        eventually(lambda: daemon.watchers == 0, "end of the dead parent's stream")
        assert pathlib.Path(f"/proc/{child}").exists()
    finally:
        os.kill(child, 9)


def test_what_a_child_must_not_destroy_survives_its_last_reference() -> None:
    class Owner:
        pass

    owner = Owner()
    alive = weakref.ref(owner)
    never_destroy(owner)
    del owner
    gc.collect()
    assert alive() is not None


def test_forks_while_the_threads_are_busy_never_hang(daemon: FakeDaemon) -> None:
    run(
        daemon,
        """
        session = registry.sessions()[0]
        stop = threading.Event()

        def busy():
            while not stop.is_set():
                session.acknowledge_in_force()
                fuseboard.explain(model)
                time.sleep(0.002)

        threads = [threading.Thread(target=busy, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            child = os.fork()
            if child == 0:
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
        """,
    )


def test_no_started_program_inherits_our_grpc_setting(daemon: FakeDaemon) -> None:
    assert run(daemon, "print(os.environ.get('GRPC_ENABLE_FORK_SUPPORT'))") == "None\n"
