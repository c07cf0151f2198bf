"""A head on a large synthetic preference file: time and memory. `python benchmarks/bench_heads.py [PAIRS]`, default 1,000,000.

Pairs of answers of about 100 words each from a Zipf-like vocabulary of 50,000, one person a pair, labels by a hidden linear
score: fitted through the command line with the default features (2¹⁸ hashed unigrams), Λ = 1,000, two processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

VOCABULARY = 50_000
WORDS = 100
CHUNK = 5_000


def write_preferences(path: Path, pairs: int, seed: int = 0) -> None:
    """Writes the file; no line depends on how many there are."""
    chance = np.random.default_rng(seed)
    words = np.array([f"w{number:05d}" for number in range(VOCABULARY)])
    worth = chance.standard_normal(VOCABULARY)
    law = np.cumsum(1 / np.arange(10, VOCABULARY + 10))
    law /= law[-1]
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, pairs, CHUNK):
            count = min(CHUNK, pairs - start)
            drawn = np.searchsorted(law, chance.random((count, 2, WORDS)))
            first = worth[drawn].sum(axis=2) @ [1, -1] + 3 * chance.standard_normal(count) > 0
            texts = words[drawn]
            for number in range(count):
                one, other = (" ".join(text) for text in texts[number])
                chosen, rejected = (one, other) if first[number] else (other, one)
                record = {"prompt": f"p{start + number}", "chosen": chosen, "rejected": rejected, "annotator": start + number}
                file.write(json.dumps(record) + "\n")


def _resident(pid: int) -> int:
    """Bytes of memory of a process and its children; shared pages count once for each."""
    total, waiting = 0, [pid]
    while waiting:
        current = waiting.pop()
        try:
            status = Path(f"/proc/{current}/status").read_text()
            total += 1024 * int(next((line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")), "0"))
            waiting += [int(child) for child in Path(f"/proc/{current}/task/{current}/children").read_text().split()]
        except OSError:
            continue
    return total


def measure(pairs: int) -> dict[str, float]:
    """Seconds and peak gigabytes (2³⁰ bytes) of `privalign reward fit`."""
    with tempfile.TemporaryDirectory() as folder:
        prefs = Path(folder) / "preferences.jsonl"
        write_preferences(prefs, pairs)
        command = [sys.executable, "-c", "from privalign.cli import main; main()", "reward", "fit", str(prefs)]
        command += ["--lambda", "1000", "--out", str(Path(folder) / "head.json"), "--json"]
        environment = {**os.environ, "XDG_CONFIG_HOME": folder}
        started = time.monotonic()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        peak = 0

        def watch() -> None:
            nonlocal peak
            while process.poll() is None:
                peak = max(peak, _resident(process.pid))
                time.sleep(0.2)

        watcher = threading.Thread(target=watch)
        watcher.start()
        code = process.wait()
        watcher.join()
        if code:
            raise SystemExit(code)
        return {"pairs": pairs, "seconds": time.monotonic() - started, "peak_gb": peak / 2**30, "file_gb": prefs.stat().st_size / 2**30}


if __name__ == "__main__":
    print(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
