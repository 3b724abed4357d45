"""Command line of the demonstration."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import signal
import sys
import tempfile

from fuseboard import _home
from fuseboard._demo.config import DemoConfig, default_config
from fuseboard._demo.corpus import Corpus, load_corpus
from fuseboard._demo.daemon import DemoDaemon, DemoError
from fuseboard._demo.page import render_page
from fuseboard._demo.result import DemoResult
from fuseboard._demo.runs import Process, Run, order, run_live
from fuseboard._demo.table import render_table
from fuseboard._errors import FuseboardError

JOB = "demo"


def _say(text: str) -> None:
    print(text, flush=True)


def _progress(text: str) -> None:
    _say(f"    {text}")


def _device_type(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _notes(native: Run, fused: Run) -> list[str]:
    return [
        f"{name} window: {run.window['error']}"
        for name, run in (("native", native), ("fused", fused))
        if run.window.get("error")
    ]


def _check_fused(fused: Run) -> None:
    """Without a kernel there is nothing to switch: say why at once."""
    if not any(site["kind"] == "kernel" for site in fused.sites):
        reasons = "; ".join(f"{s['site']}: {s['reason']}" for s in fused.sites if s["operation"])
        raise DemoError(f"no kernel runs: {fused.problem or reasons or 'no site is known'}")


def run_demo(config: DemoConfig, corpus: Corpus) -> DemoResult:
    """All three runs against a daemon of their own.

    Raises:
        DemoError: The daemon or a training process failed.
    """
    home = _home.find_home()
    _say(f"installation: {home.root} ({home.origin})")
    with tempfile.TemporaryDirectory(prefix="fuseboard-demo-") as temporary:
        folder = pathlib.Path(temporary)
        text_path = folder / "text"
        text_path.write_bytes(corpus.text)
        with DemoDaemon(home, folder) as daemon:

            def start(variant: str) -> Process:
                return Process(order(variant, config, str(text_path), daemon, JOB), _progress)

            _say(f"1/3 native: {config.steps} steps with the model's own code")
            native = start("native").finish()
            _say(f"2/3 fused: the same {config.steps} steps from the same seed")
            fused = start("fused").finish()
            _check_fused(fused)
            _say("3/3 live: again, while an operator switches kernels")
            live, switches = run_live(start("live"), daemon, config.gap, _progress)
            _say("\n$ fusectl report")
            _say(daemon.fusectl("report"))
    return DemoResult(
        config=config,
        corpus=f"{corpus.origin} ({len(corpus.text):,} bytes)",
        device=native.device,
        native=native,
        fused=fused,
        live=live,
        switches=switches,
        notes=_notes(native, fused),
    )


def write_result(result: DemoResult, folder: pathlib.Path) -> None:
    """Writes demo.json and demo.html into a folder, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "demo.json").write_text(json.dumps(result.to_json(), indent=2) + "\n")
    (folder / "demo.html").write_text(render_page(result))
    _say(f"wrote {folder / 'demo.json'} and {folder / 'demo.html'}")


def _parse(args: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev demo",
        description="Trains a Llama natively and fused, switches kernels live, shows the savings.",
    )
    parser.add_argument("text", nargs="?", type=pathlib.Path, help="a file; default: licences")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="output folder")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--steps", type=int, help="steps of the native and of the fused run")
    return parser.parse_args(args)


def main(args: list[str] | None = None) -> int:
    """Runs the demonstration; returns the exit code: 0, 1 if a claim failed, 2 if it could not run."""
    options = _parse(args)
    # Unwinds, so that neither the daemon nor a training process is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        corpus = load_corpus(options.text)
        config = default_config(_device_type(options.device))
        if options.steps is not None:
            config = dataclasses.replace(config, steps=options.steps)
        if config.timed < 1:
            raise DemoError(
                f"--steps is {config.steps}, want at least {config.skip + config.counted + 1}"
            )
        _say(f"text: {corpus.origin}, {len(corpus.text):,} bytes")
        result = run_demo(config, corpus)
    except (DemoError, FuseboardError, OSError, ValueError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    _say(render_table(result))
    write_result(result, options.out)
    return 1 if any(claim.held is False for claim in result.claims()) else 0


if __name__ == "__main__":
    sys.exit(main())
