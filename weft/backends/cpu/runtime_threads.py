"""What the native runtime needs of the system: threads, a lock with a condition, a clock, as LLVM text.

The runtime calls POSIX's functions by their names. Linux and macOS have them; on Windows the same names are defined
here by what its kernel offers (slim locks, condition variables, the performance counter).
"""

from __future__ import annotations

import ctypes
import sys

_POSIX = r"""
; Nanoseconds of a clock that is never set.
define internal i64 @clock() {
entry:
  %time = alloca [2 x i64]
  %ok = call i32 @clock_gettime(i32 MONOTONIC, ptr %time)
  %seconds = load i64, ptr %time
  %fraction = getelementptr i64, ptr %time, i64 1
  %ns = load i64, ptr %fraction
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %ns
  ret i64 %now
}

declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
"""

_WINDOWS = r"""
; Nanoseconds of a clock that is never set: whole seconds apart from the rest, or the product would not fit.
define internal i64 @clock() {
entry:
  %ticks.place = alloca i64
  %rate.place = alloca i64
  %a = call i32 @QueryPerformanceCounter(ptr %ticks.place)
  %b = call i32 @QueryPerformanceFrequency(ptr %rate.place)
  %ticks = load i64, ptr %ticks.place
  %rate = load i64, ptr %rate.place
  %seconds = udiv i64 %ticks, %rate
  %rest = urem i64 %ticks, %rate
  %whole = mul i64 %seconds, 1000000000
  %scaled = mul i64 %rest, 1000000000
  %ns = udiv i64 %scaled, %rate
  %now = add i64 %whole, %ns
  ret i64 %now
}

define internal i32 @sched_yield() {
entry:
  %switched = call i32 @SwitchToThread()
  ret i32 0
}

define internal i32 @pthread_mutex_init(ptr %mutex, ptr %attributes) {
entry:
  call void @InitializeSRWLock(ptr %mutex)
  ret i32 0
}

define internal i32 @pthread_mutex_lock(ptr %mutex) {
entry:
  call void @AcquireSRWLockExclusive(ptr %mutex)
  ret i32 0
}

define internal i32 @pthread_mutex_unlock(ptr %mutex) {
entry:
  call void @ReleaseSRWLockExclusive(ptr %mutex)
  ret i32 0
}

define internal i32 @pthread_cond_init(ptr %condition, ptr %attributes) {
entry:
  call void @InitializeConditionVariable(ptr %condition)
  ret i32 0
}

; Without a limit of time (-1).
define internal i32 @pthread_cond_wait(ptr %condition, ptr %mutex) {
entry:
  %woken = call i32 @SleepConditionVariableSRW(ptr %condition, ptr %mutex, i32 -1, i32 0)
  ret i32 0
}

define internal i32 @pthread_cond_broadcast(ptr %condition) {
entry:
  call void @WakeAllConditionVariable(ptr %condition)
  ret i32 0
}

; What the function returns, null, is a thread's exit code 0 as well.
define internal i32 @pthread_create(ptr %thread, ptr %attributes, ptr %function, ptr %argument) {
entry:
  %handle = call ptr @CreateThread(ptr null, i64 0, ptr %function, ptr %argument, i32 0, ptr null)
  store ptr %handle, ptr %thread
  %lacks = icmp eq ptr %handle, null
  %failed = zext i1 %lacks to i32
  ret i32 %failed
}

define internal i32 @pthread_join(i64 %thread, ptr %result) {
entry:
  %handle = inttoptr i64 %thread to ptr
  %ended = call i32 @WaitForSingleObject(ptr %handle, i32 -1)
  %closed = call i32 @CloseHandle(ptr %handle)
  ret i32 0
}

declare i32 @QueryPerformanceCounter(ptr)
declare i32 @QueryPerformanceFrequency(ptr)
declare i32 @SwitchToThread()
declare void @InitializeSRWLock(ptr)
declare void @AcquireSRWLockExclusive(ptr)
declare void @ReleaseSRWLockExclusive(ptr)
declare void @InitializeConditionVariable(ptr)
declare i32 @SleepConditionVariableSRW(ptr, ptr, i32, i32)
declare void @WakeAllConditionVariable(ptr)
declare ptr @CreateThread(ptr, i64, ptr, ptr, i32, ptr)
declare i32 @WaitForSingleObject(ptr, i32)
declare i32 @CloseHandle(ptr)
"""

# Where Windows keeps what the text above declares, and what LLVM calls by itself: for large stack frames and blocks of
# memory, and to multiply and add on processors without an instruction for it.
LIBRARIES = {
    "kernel32": (
        "QueryPerformanceCounter", "QueryPerformanceFrequency", "SwitchToThread", "InitializeSRWLock",
        "AcquireSRWLockExclusive", "ReleaseSRWLockExclusive", "InitializeConditionVariable",
        "SleepConditionVariableSRW", "WakeAllConditionVariable", "CreateThread", "WaitForSingleObject", "CloseHandle",
    ),
    "ntdll": ("__chkstk", "memcpy", "memmove", "memset"),
    "ucrtbase": ("fma", "fmaf"),
}  # fmt: skip


def threads_ir(system: str) -> str:
    """The text for a system, as `platform.system` names it."""
    if system == "Windows":
        return _WINDOWS
    return _POSIX.replace("MONOTONIC", "6" if system == "Darwin" else "1")


def object_format(system: str, machine: str) -> str:
    """What a target triple takes so that LLVM's loader knows the object files: ELF on Windows as well, but on ARM64,
    for which LLVM makes no such files."""
    return "-elf" if (system, machine) == ("Windows", "AMD64") else ""


def system_symbols() -> dict[str, int]:
    """Addresses that LLVM's loader has to be given: on Windows those of the system, elsewhere none."""
    if sys.platform != "win32":
        return {}
    found = {}
    for library, names in LIBRARIES.items():
        functions = ctypes.WinDLL(library)
        for name in names:
            found[name] = ctypes.cast(getattr(functions, name), ctypes.c_void_p).value or 0
    return found
