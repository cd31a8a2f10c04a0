"""FedAvg against SCAFFOLD on an even and on a skewed split of 5,000 MNIST digits."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedrift.backends import prestart
from fedrift.cli.progress import watcher
from fedrift.config.spec import Spec

PICTURE, PAGE = Path("demo.png"), Path("demo.html")
RUNS = Path("runs") / "demo"
SPLITS = {"even (iid)": "iid", "skewed (2 classes each)": "classes:2"}
ALGORITHMS = ("fedavg", "scaffold")
NEXT = """[bold]What to try next[/bold]
  fedrift partition dirichlet:0.1 --data mnist5k --clients 10
  fedrift run scaffold --data mnist5k --partition dirichlet:0.1 --epochs 5 --out runs/first
  fedrift list algorithms --verbose
  (the command is .venv/bin/fedrift until you activate .venv)"""


def main() -> None:
    prestart()  # workers begin to load torch while this process does
    from fedrift import api
    from fedrift.engine.result import Result
    from fedrift.figures import style
    from fedrift.report import write

    console = Console()
    results: dict[str, dict[str, list[Result]]] = {}
    for split, partition in SPLITS.items():
        results[split] = {}
        for algorithm in ALGORITHMS:
            console.rule(f"{algorithm}, {split}")
            spec = Spec(
                algorithm=algorithm,
                data="mnist5k",
                partition=partition,
                model="cnn",
                clients=10,
                rounds=7,
                epochs=5,
                batch_size=32,
                lr=0.03,
                workers="auto",
            )
            folder = RUNS / f"{algorithm}-{partition.replace(':', '')}"
            watch = watcher(spec, silent=False)
            try:
                results[split][algorithm] = [api.run_spec(spec, callbacks=[watch], out=folder)]
            finally:
                watch.close()

    table = Table("split", "algorithm", "best accuracy", "final", "sent, MB", "fingerprint")
    for split, runs in results.items():
        for algorithm, (result,) in runs.items():
            table.add_row(
                split,
                algorithm,
                f"{max(result.accuracy):.1%}",
                f"{result.accuracy[-1]:.1%}",
                f"{(result.ledger.bytes_up + result.ledger.bytes_down) / 1e6:,.0f}",
                result.fingerprint,
            )
    console.print(table)
    style.curve_panels(results, PICTURE)
    write([RUNS], PAGE)
    console.print(
        f"\nCurves: [bold]{PICTURE}[/bold]; the whole story, to open in a browser: ", end=""
    )
    console.print(f"[bold]{PAGE}[/bold]\n\n{NEXT}")


if __name__ == "__main__":
    main()
