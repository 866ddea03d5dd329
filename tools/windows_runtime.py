"""Runs the CPU backend's native runtime as a Windows program, under Wine: `python -m tools.windows_runtime`.

Needs Debian's gcc-mingw-w64-x86-64 and wine64. The runtime and a kernel are compiled for Windows by llvmlite, as the
backend does it there (but as COFF, which mingw's linker reads), and linked with the C program below. It shares steps
among four workers that fall asleep in between, ends and renews the team, runs a repeat, calls a tile of a product, and
compares every number. It says nothing of Python on Windows, of LLVM's loader there, or of Windows itself.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np

import weft
from tests.replay.devices import Renderer, cpu
from weft.backends.cpu import runtime, runtime_gemm
from weft.render.llvm import module as llvm_module

TRIPLE = "x86_64-w64-windows-gnu"
KERNEL = "softmax_of_rows"
ROWS, COLUMNS = 1000, 37

PROGRAM = r"""
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <windows.h>

void weft_run(int64_t *plan, void **slots);
void weft_stop(void);
void weft_reset(int64_t workers);
void weft_sgemm(int, int, int, int64_t, int64_t, int64_t, float, const float *, int64_t, const float *, int64_t, float,
                float *, int64_t);
void KERNEL(void **slots, int64_t *args, int64_t *range);

#define CHECK(what) if (!(what)) { printf("failed: %s (line %d)\n", #what, __LINE__); return 1; }

static float from[ROWS * COLUMNS], to[ROWS * COLUMNS];
static volatile LONG tasks_run, threads_seen;
static DWORD first_thread;

/* One task: marks its points, and notes whether another thread than the caller's has run any. */
static void mark(void **slots, int64_t *args, int64_t *range) {
    for (int64_t n = range[0]; n < range[1]; n++) ((int32_t *)slots[0])[n]++;
    InterlockedIncrement(&tasks_run);
    if (GetCurrentThreadId() != first_thread) InterlockedIncrement(&threads_seen);
}

/* One iteration of a repeat: adds what slot 1 points to, which moves on, to the total in slot 0. */
static void add(void **slots, int64_t *args, int64_t *range) { *(int64_t *)slots[0] += *(int64_t *)slots[1]; }

int main(void) {
    static int32_t points[1000];
    static int64_t step[3][STEP_FIELDS], plan[PLAN_FIELDS], args[64];
    void *slots[8] = {points};
    first_thread = GetCurrentThreadId();

    for (int round = 0; round < 3; round++) {  /* three teams, one after the other */
        weft_reset(3);
        memset(points, 0, sizeof points);
        tasks_run = 0;
        memset(step, 0, sizeof step);
        step[0][STEP_function] = (int64_t)mark;
        step[0][STEP_args] = (int64_t)args;
        step[0][STEP_extent] = 1000;
        step[0][STEP_chunk] = 7;
        step[0][STEP_tasks] = 143;
        memset(plan, 0, sizeof plan);
        plan[PLAN_steps] = (int64_t)step;
        plan[PLAN_count] = 1;
        for (int run = 0; run < 20000; run++) {
            weft_run(plan, slots);
            if (run % 2000 == 0) Sleep(20);  /* long enough for the workers to fall asleep */
        }
        CHECK(tasks_run == 20000 * 143)
        for (int n = 0; n < 1000; n++) CHECK(points[n] == 20000)
        weft_stop();
        weft_run(plan, slots);  /* alone, after the end of the team */
        CHECK(points[999] == 20001)
    }
    CHECK(threads_seen > 0)

    int64_t values[10], total = 0, moves[4] = {1, 2, 0, 8};
    for (int n = 0; n < 10; n++) values[n] = 1 << n;
    slots[0] = &total, slots[1] = 0, slots[2] = values, slots[3] = 0;
    memset(step, 0, sizeof step);
    step[0][STEP_kind] = BEGIN, step[2][STEP_kind] = END;
    for (int n = 0; n < 3; n += 2) {
        step[n][STEP_args] = (int64_t)moves, step[n][STEP_extent] = 1, step[n][STEP_tasks] = 10;
        step[n][STEP_counter] = 3, step[n][STEP_target] = 1;
    }
    step[1][STEP_function] = (int64_t)add, step[1][STEP_args] = (int64_t)args;
    step[1][STEP_extent] = step[1][STEP_chunk] = step[1][STEP_tasks] = step[1][STEP_serial] = 1;
    plan[PLAN_count] = 3;
    weft_run(plan, slots);
    CHECK(total == 1023)

    float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {1, -1, 2, 0, 3, 5}, c[4];
    weft_sgemm(101, PLAIN, PLAIN, 2, 2, 3, 1, a, 3, b, 2, 0, c, 2);
    CHECK(c[0] == 14 && c[1] == 14 && c[2] == 32 && c[3] == 26)

    for (int n = 0; n < ROWS * COLUMNS; n++) from[n] = (float)((n * 7919) % 1000) / 100 - 5;
    slots[0] = from, slots[1] = to;
    memset(args, 0, sizeof args);
    args[0] = 0, args[2] = 1;  /* slot and byte offset of each buffer, then the outermost extent */
    args[4] = ROWS;
    memset(step, 0, sizeof step);
    step[0][STEP_function] = (int64_t)KERNEL, step[0][STEP_args] = (int64_t)args;
    step[0][STEP_extent] = ROWS, step[0][STEP_chunk] = 16, step[0][STEP_tasks] = (ROWS + 15) / 16;
    plan[PLAN_count] = 1;
    weft_reset(3);
    weft_run(plan, slots);
    weft_stop();
    for (int row = 0; row < ROWS; row++) {
        double sum = 0;
        for (int n = 0; n < COLUMNS; n++) sum += exp(from[row * COLUMNS + n]);
        for (int n = 0; n < COLUMNS; n++)
            CHECK(fabs(to[row * COLUMNS + n] - exp(from[row * COLUMNS + n]) / sum) < 1e-6)
    }
    printf("the runtime for Windows: %ld tasks, %ld of them on other threads; all numbers are right\n",
           (long)tasks_run, (long)threads_seen);
    return 0;
}
"""


def softmax_kernel() -> tuple[str, str]:
    """Text and name of the one kernel of a softmax, as a CPU with AVX2 has it."""
    device = cpu()
    x = weft.tensor(np.zeros((ROWS, COLUMNS), np.float32), device=device)
    weft.eval(x.softmax(-1))
    assert isinstance(device.backend, Renderer)
    (kernel,) = [one for one in device.backend.kernels.values() if len(one.buffers) == 2]
    text = llvm_module.render(kernel)
    return text, llvm_module.symbol_of(text)


def write_object(text: str, path: Path) -> None:
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(cpu="haswell", opt=2, reloc="pic")
    path.write_bytes(machine.emit_object(llvm.parse_assembly(text, llvm.create_context())))


def definitions(symbol: str) -> str:
    """What the C program takes from the runtime: the numbers of fields, and the kernel's name."""
    names = {f"STEP_{name}": n for n, name in enumerate(runtime.STEP_FIELDS)}
    names |= {f"PLAN_{name}": n for n, name in enumerate(runtime.PLAN_FIELDS)}
    names |= {"STEP_FIELDS": len(runtime.STEP_FIELDS), "PLAN_FIELDS": len(runtime.PLAN_FIELDS)}
    names |= {"BEGIN": runtime.BEGIN, "END": runtime.END, "PLAIN": runtime.PLAIN, "ROWS": ROWS, "COLUMNS": COLUMNS}
    return "".join(f"#define {name} {value}\n" for name, value in {**names, "KERNEL": symbol}.items())


def main() -> int:
    compiler = shutil.which("x86_64-w64-mingw32-gcc")
    wine = shutil.which("wine64") or shutil.which("wine") or next(iter(Path("/usr/lib/wine").glob("wine64")), None)
    if not compiler or not wine:
        print("This needs mingw and Wine (Debian: gcc-mingw-w64-x86-64, wine64).", file=sys.stderr)
        return 1
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    text, symbol = softmax_kernel()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        write_object(runtime.runtime_ir("Windows", "AMD64") + runtime_gemm.module_part(), home / "runtime.o")
        write_object(text, home / "kernel.o")
        (home / "main.c").write_text(definitions(symbol) + PROGRAM)
        parts = [str(home / name) for name in ("main.c", "runtime.o", "kernel.o")]
        subprocess.run([compiler, "-O1", "-Wall", "-Werror", "-o", str(home / "program.exe"), *parts], check=True)
        quiet = {"WINEPREFIX": str(home / "wine"), "WINEDEBUG": "-all", "HOME": folder, "PATH": "/usr/bin:/bin"}
        return subprocess.run([str(wine), str(home / "program.exe")], env=quiet, timeout=300).returncode


if __name__ == "__main__":
    sys.exit(main())
