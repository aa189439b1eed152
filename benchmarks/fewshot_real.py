"""Measure few-shot accuracy of real weights on real data, over several seeds: the figures of docs/experiments.md.

    python benchmarks/fewshot_real.py WEIGHTS DATA [DATA ...] --sizes 224,448 --seeds 5 --out fewshot.json

WEIGHTS is anything that `vitrine.load` reads, DATA anything that `vitrine check` reads (class folders with train
and test, `pets:/data/pets`). Uses the GPU if there is one. In addition to the paper's ridge regression at l2 = 1024
it prints the other probes, and ridge regression at other l2, to show the effect of that choice.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import vitrine
from vitrine.cli.lines import show
from vitrine.cli.running import plain
from vitrine.cli.views import result_lines

OTHER_L2 = "1,16,128,1024,8192"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights")
    parser.add_argument("data", nargs="+")
    parser.add_argument("--sizes", default="224", help="image sizes in pixels, separated by commas")
    parser.add_argument("--shots", default="1,5,10,25")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--cache-dir", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{options.weights} on {device}, torch {torch.__version__}, {options.precision}")
    common = {
        "shots": options.shots,
        "seeds": options.seeds,
        "batch_size": options.batch_size,
        "workers": options.workers,
        "precision": options.precision,
        "cache_dir": options.cache_dir,
    }
    results: dict[str, dict[str, object]] = {}
    for data in options.data:
        for size in map(int, options.sizes.split(",")):
            results[f"{data} at {size} px"] = measured(options.weights, data, size=size, **common)
            if options.out is not None:  # after each, so that an interrupted run keeps its results
                options.out.write_text(json.dumps(results, indent=2))


def measured(weights: str, data: str, **options: Any) -> dict[str, object]:
    reports = {}
    for name, extra in {
        "ridge, l2 1024": {},
        f"ridge, l2 {OTHER_L2}": {"l2": OTHER_L2},
        "knn": {"probe": "knn"},
        "logistic": {"probe": "logistic"},
    }.items():
        began = time.perf_counter()
        report = vitrine.fewshot(weights, data, **options, **extra)
        print(
            f"\n{options['size']} px, {name}, {time.perf_counter() - began:.1f} s (features only the first time)"
        )
        show(result_lines("fewshot", report), sys.stdout)
        reports[name] = plain(report)
    return reports


if __name__ == "__main__":
    main()
