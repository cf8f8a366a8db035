"""Fuzz the C kernels with libFuzzer, under the address and undefined-behaviour sanitizers.

    python3 .ci/fuzz.py SECONDS [TARGET…]     all targets of tests/fuzz/, in turn, in so many seconds

What a target finds goes on in build/fuzz/: inputs that reach new code in corpus/, those that fail in failures/.
"""

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGETS = ("dense", "sparse", "factored", "bags", "catch_up", "shrink")
HARNESS = ("fuzz", "steps", "reference")
KERNELS = ("bags", "balls", "dense", "factored", "lazy", "sparse", "step", "tiles")  # tests/fuzz/fuzz.c dispatches
SANITIZERS = "address,undefined"
CFLAGS = (
    *("-std=gnu11", "-O1", "-gline-tables-only", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-psabi"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    *(f"-fsanitize=fuzzer-no-link,{SANITIZERS}", "-fno-sanitize-recover=all"),
)
AVX2 = ("-mavx2", "-mbmi2", "-mfma", "-mf16c")
WIDER = {  # gcc compiles these by a pragma that clang does not know
    "tiles_avx2": (*AVX2, "-DTABLE=ARITHMETIC_AVX2"),
    "tiles_avx512": (*AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl")), "-DTABLE=ARITHMETIC_AVX512"),
}
LENGTH = 128  # bytes of an input, at most: arrays are filled from a few of them
CLANG = os.environ.get("CLANG", "clang")


def has_fuzzer(folder: Path) -> bool:
    """Whether there is a clang that links libFuzzer."""
    if not shutil.which(CLANG):
        return False
    empty = folder / "empty.c"
    empty.write_text("int LLVMFuzzerTestOneInput(const char *d, long n) { return d && n < 0; }\n", encoding="utf-8")
    command = [CLANG, f"-fsanitize=fuzzer,{SANITIZERS}", empty, "-o", folder / "empty"]
    return not subprocess.run(command, capture_output=True).returncode


def build(folder: Path, targets: list[str]) -> None:
    """Compile what is older than its sources, and link every target."""
    native, tests = ROOT / "src" / "matrix_adagrad" / "native", ROOT / "tests" / "fuzz"
    newest_header = max(header.stat().st_mtime for header in (*native.glob("*.h"), *tests.glob("*.h")))
    jobs = [(native / f"{name}.c", folder / f"{name}.o", ()) for name in KERNELS]
    if os.uname().machine == "x86_64":
        jobs += [(native / "tiles.c", folder / f"{name}.o", flags) for name, flags in WIDER.items()]
    kernels = [own[1] for own in jobs]
    jobs += [(tests / f"{name}.c", folder / f"fuzz_{name}.o", (f"-I{native}",)) for name in (*HARNESS, *targets)]

    def compile_one(job: tuple[Path, Path, tuple[str, ...]]) -> None:
        source, made, flags = job
        if not made.exists() or made.stat().st_mtime < max(source.stat().st_mtime, newest_header):
            subprocess.run([CLANG, *CFLAGS, *flags, "-c", source, "-o", made], check=True)

    jobs.sort(key=lambda job: "tiles" not in job[1].name)  # these take longest
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, jobs))
    harness = [folder / f"fuzz_{name}.o" for name in HARNESS]
    for name in targets:
        own = [folder / f"fuzz_{name}.o", *harness, *kernels, "-lm", "-o", folder / name]
        subprocess.run([CLANG, f"-fsanitize=fuzzer,{SANITIZERS}", *own], check=True)


def fuzz(folder: Path, name: str, seconds: int) -> bool:
    """Run a target, or only its corpus if there is no time. Print its figures, and return whether it ran clean."""
    corpus, failures = folder / "corpus" / name, folder / "failures"
    for made in (corpus, failures):
        made.mkdir(parents=True, exist_ok=True)
    seeds = ROOT / "tests" / "fuzz" / "corpus" / name
    how_long = f"-max_total_time={seconds}" if seconds else "-runs=0"
    options = (
        *(how_long, f"-max_len={LENGTH}", "-len_control=0", "-timeout=120", "-print_final_stats=1"),
        *("-entropic_scale_per_exec_time=1", f"-artifact_prefix={failures}/{name}-"),
    )
    command = [folder / name, *options, corpus, seeds]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")
    found = re.findall(r"cov: (\d+) ft: (\d+)", done.stdout)
    executions = re.findall(r"stat::number_of_executed_units: (\d+)", done.stdout)
    edges, features = found[-1] if found else (0, 0)
    print(
        f"fuzz: {name}: {executions[-1] if executions else 0} executions, {edges} edges and {features} features covered"
        f"{'' if not done.returncode else ', and it failed:'}",
        flush=True,
    )
    if done.returncode:
        print(*done.stdout.splitlines()[-60:], sep="\n")
    return not done.returncode


def main(seconds: str, *names: str) -> str | None:
    """Build and run the targets, and return which of them failed."""
    assert set(names) <= set(TARGETS), f"no such target: {set(names) - set(TARGETS)}"
    targets, folder = list(names or TARGETS), ROOT / "build" / "fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    if not has_fuzzer(folder):
        return (
            f"fuzz: {CLANG} with libFuzzer and the sanitizers is missing: install clang, and libclang-rt-dev on Debian"
        )
    build(folder, targets)
    failed = [name for name in targets if not fuzz(folder, name, int(seconds) // len(targets))]
    return f"fuzz: these failed, on the inputs in build/fuzz/failures: {', '.join(failed)}" if failed else None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
