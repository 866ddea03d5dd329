"""The native runtime of the CPU backend: a worker team and an interpreter of plans, as LLVM IR compiled once.

A plan is data, a table of step records (`STEP_FIELDS`). `weft_run` runs it on the caller's thread. A step worth
sharing is published as one word, `ticket` = (serial number of the step << 32) | tasks not yet claimed; a thread claims
a task by exchanging the word for one less, runs it, and adds one to `done`. The caller claims tasks like any worker and
goes on to the next step when all are done: it never waits for a worker that is asleep, and a second caller who finds
the team busy runs its plan alone. Which thread runs a task changes nothing in the result.

Workers are threads of the system (`runtime_threads`), made at the first shared step. They spin for `SPIN_NANOSECONDS`
after the last task and then sleep on a condition variable. `weft_reset` makes the team new in a forked
child; `weft_stop` ends it at exit.

The text below is LLVM IR with short forms that `expand` writes out: `%x = step FIELD` and `%x = plan FIELD` load a
field of a record (i64, or ptr where that is said), `%x = team FIELD [order]` loads a word of the team,
`team FIELD = value [order]` stores one, and `%x = place FIELD` is its address. Those with an order are atomic.
"""

from __future__ import annotations

import platform
import re

from weft.backends.cpu.runtime_team import TEAM_FUNCTIONS
from weft.backends.cpu.runtime_threads import threads_ir

SPIN_NANOSECONDS = 80_000
MAX_WORKERS = 255

# One record per step. A launch calls `function` for tasks of `chunk` points out of `extent`; a product calls it as
# CBLAS for each tile, then `epilogue`. Matrices are (slot, byte offset, bytes per row, bytes per inner and per outer
# batch element). The steps between BEGIN and END run `tasks` times: `args` holds (slot, base slot, byte offset, byte
# stride) of `extent` slots that move, `counter` is the slot that counts iterations, `target` the first step's number.
STEP_FIELDS = (
    "kind", "function", "args", "extent", "chunk", "tasks", "serial", "epilogue", "epilogue_args",
    "m", "n", "k", "tile_m", "tile_n", "tiles_m", "tiles_n", "itemsize", "transpose_a", "transpose_b",
    "a_slot", "a_offset", "a_row", "a_batch", "b_slot", "b_offset", "b_row", "b_batch",
    "c_slot", "c_offset", "c_row", "c_batch", "down", "inner", "a_outer", "b_outer", "c_outer", "counter", "target",
)  # fmt: skip
LAUNCH, PRODUCT, BEGIN, END = 0, 1, 2, 3
PLAIN, TRANSPOSED = 111, 112  # as CBLAS numbers them

# The record that `weft_run` takes; `alone` where the plan is too small to share, `products` where it calls OpenBLAS.
PLAN_FIELDS = ("steps", "count", "alone", "products", "get_threads", "set_threads")

# The team, by word of 8 bytes; words that different threads write lie on cache lines of their own. `serial` is the
# number of the next shared step, 0 as long as there are no workers.
_TEAM = {
    "ticket": 0, "done": 16, "step": 32, "slots": 33, "serial": 48, "busy": 49, "sleepers": 64, "stop": 80,
    "workers": 81, "blas_users": 96, "blas_threads": 97, "blas_lock": 98,
    "mutex": 112, "condition": 128, "threads": 144,
}  # fmt: skip
_TEAM_WORDS = _TEAM["threads"] + MAX_WORKERS + 1

_RUNTIME = (
    TEAM_FUNCTIONS
    + r"""; Begin a repeat, or end an iteration of it: move the slots. The step to go on with, 0 for the next one.
define internal i64 @repeat(ptr %step, ptr %slots) {
entry:
  %kind = step kind
  %table = step args ptr
  %count = step extent
  %turns = step tasks
  %target = step target
  %counter = step counter
  %counter.place = getelementptr i64, ptr %slots, i64 %counter
  %begins = icmp eq i64 %kind, 2
  br i1 %begins, label %begin, label %end
begin:
  store i64 0, ptr %counter.place
  br label %move
end:
  %turn = load i64, ptr %counter.place
  %turn.next = add i64 %turn, 1
  store i64 %turn.next, ptr %counter.place
  %again = icmp slt i64 %turn.next, %turns
  br i1 %again, label %move, label %leave
leave:
  ret i64 0
move:
  %goes = phi i64 [ 0, %begin ], [ %target, %end ]
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %each, label %out
each:
  %n = phi i64 [ 0, %move ], [ %n.next, %each ]
  %n.next = add i64 %n, 1
  %row = getelementptr [4 x i64], ptr %table, i64 %n
  %slot = load i64, ptr %row
  %row1 = getelementptr i64, ptr %row, i64 1
  %base = load i64, ptr %row1
  %row2 = getelementptr i64, ptr %row, i64 2
  %offset = load i64, ptr %row2
  %row3 = getelementptr i64, ptr %row, i64 3
  %stride = load i64, ptr %row3
  %from = select i1 %begins, i64 %base, i64 %slot
  %by = select i1 %begins, i64 %offset, i64 %stride
  %from.place = getelementptr i64, ptr %slots, i64 %from
  %old = load i64, ptr %from.place
  %new = add i64 %old, %by
  %slot.place = getelementptr i64, ptr %slots, i64 %slot
  store i64 %new, ptr %slot.place
  %more = icmp slt i64 %n.next, %count
  br i1 %more, label %each, label %out
out:
  ret i64 %goes
}

; Run the steps of a plan: alone where it says so, the team is busy, or there is none.
define void @weft_run(ptr %plan, ptr %slots) {
entry:
  %products = plan products
  %blas = icmp ne i64 %products, 0
  br i1 %blas, label %single, label %start
single:
  call void @blas_enter(ptr %plan)
  br label %start
start:
  %steps = plan steps ptr
  %count = plan count
  %alone = plan alone
  %workers = team workers
  %stop = team stop acquire
  %none = icmp eq i64 %workers, 0
  %tiny = icmp ne i64 %alone, 0
  %closed = icmp ne i64 %stop, 0
  %either = or i1 %none, %tiny
  %solo = or i1 %either, %closed
  br i1 %solo, label %begin, label %try
try:
  %busy = place busy
  %pair = cmpxchg ptr %busy, i64 0, i64 1 acq_rel acquire
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %lead, label %begin
lead:
  %serial.now = team serial
  %fresh = icmp eq i64 %serial.now, 0
  br i1 %fresh, label %hire, label %begin
hire:
  call void @start()
  br label %begin
begin:
  %leads = phi i1 [ false, %start ], [ false, %try ], [ true, %lead ], [ true, %hire ]
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %each, label %last
each:
  %i = phi i64 [ 0, %begin ], [ %i.next, %next ], [ %target, %repeat ]
  %at = mul i64 %i, STEP_BYTES
  %step = getelementptr i8, ptr %steps, i64 %at
  %kind = step kind
  %control = icmp sgt i64 %kind, 1
  br i1 %control, label %repeat, label %plain
repeat:
  %target = call i64 @repeat(ptr %step, ptr %slots)
  %back = icmp ne i64 %target, 0
  br i1 %back, label %each, label %next
plain:
  %serial = step serial
  %shared = icmp eq i64 %serial, 0
  %together = and i1 %shared, %leads
  br i1 %together, label %team, label %self
team:
  call void @share(ptr %step, ptr %slots)
  br label %next
self:
  %tasks = step tasks
  call void @work(ptr %step, ptr %slots, i64 0, i64 %tasks)
  br label %next
next:
  %i.next = add i64 %i, 1
  %again = icmp slt i64 %i.next, %count
  br i1 %again, label %each, label %last
last:
  br i1 %leads, label %free, label %after
free:
  team busy = 0 release
  br label %after
after:
  br i1 %blas, label %restore, label %out
restore:
  call void @blas_leave(ptr %plan)
  br label %out
out:
  ret void
}

; OpenBLAS has one thread from the first plan that needs it until the last one has left.
define internal void @blas_lock() {
entry:
  %lock = place blas_lock
  br label %try
try:
  %pair = cmpxchg ptr %lock, i64 0, i64 1 acq_rel acquire
  %mine = extractvalue { i64, i1 } %pair, 1
  br i1 %mine, label %out, label %again
again:
  %yielded = call i32 @sched_yield()
  br label %try
out:
  ret void
}

define internal void @blas_enter(ptr %plan) {
entry:
  call void @blas_lock()
  %users = team blas_users
  %more = add i64 %users, 1
  team blas_users = %more
  %first = icmp eq i64 %users, 0
  br i1 %first, label %set, label %out
set:
  %get = plan get_threads ptr
  %threads = call i32 %get()
  %word = sext i32 %threads to i64
  team blas_threads = %word
  %put = plan set_threads ptr
  call void %put(i32 1)
  br label %out
out:
  team blas_lock = 0 release
  ret void
}

define internal void @blas_leave(ptr %plan) {
entry:
  call void @blas_lock()
  %users = team blas_users
  %fewer = sub i64 %users, 1
  team blas_users = %fewer
  %last = icmp eq i64 %fewer, 0
  br i1 %last, label %set, label %out
set:
  %word = team blas_threads
  %threads = trunc i64 %word to i32
  %put = plan set_threads ptr
  call void %put(i32 %threads)
  br label %out
out:
  team blas_lock = 0 release
  ret void
}

; Make the workers. One that cannot be made leaves 0 as its thread.
define internal void @start() {
entry:
  %mutex = place mutex
  %condition = place condition
  %a = call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  %b = call i32 @pthread_cond_init(ptr %condition, ptr null)
  team serial = 1
  %workers = team workers
  %threads = place threads
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %made ]
  %i.next = add i64 %i, 1
  %thread = getelementptr i64, ptr %threads, i64 %i
  %failed = call i32 @pthread_create(ptr %thread, ptr null, ptr @worker, ptr null)
  %lacks = icmp ne i32 %failed, 0
  br i1 %lacks, label %lack, label %made
lack:
  store i64 0, ptr %thread
  br label %made
made:
  %more = icmp slt i64 %i.next, %workers
  br i1 %more, label %next, label %out
out:
  ret void
}

; End the workers and wait for them; plans run alone from then on.
define void @weft_stop() {
entry:
  team stop = 1 seq_cst
  %serial = team serial
  %alive = icmp ne i64 %serial, 0
  br i1 %alive, label %wake, label %out
wake:
  call void @wake_all()
  %workers = team workers
  %threads = place threads
  br label %next
next:
  %i = phi i64 [ 0, %wake ], [ %i.next, %joined ]
  %i.next = add i64 %i, 1
  %place = getelementptr i64, ptr %threads, i64 %i
  %thread = load i64, ptr %place
  %exists = icmp ne i64 %thread, 0
  br i1 %exists, label %join, label %joined
join:
  %ended = call i32 @pthread_join(i64 %thread, ptr null)
  br label %joined
joined:
  %more = icmp slt i64 %i.next, %workers
  br i1 %more, label %next, label %out
out:
  ret void
}

; Forget the team, as after a fork, and have `workers` at the next shared step.
define void @weft_reset(i64 %workers) {
entry:
  call void @llvm.memset.p0.i64(ptr @team, i8 0, i64 TEAM_BYTES, i1 false)
  team workers = %workers
  ret void
}

declare i64 @llvm.smin.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""
)


def _pause(machine: str) -> tuple[str, str]:
    """The instruction that tells a processor we are spinning, and its declaration."""
    machine = machine.lower()
    if machine in ("x86_64", "amd64"):
        return "call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()\n"
    if machine in ("arm64", "aarch64"):
        return "call void @llvm.aarch64.hint(i32 1)", "declare void @llvm.aarch64.hint(i32)\n"
    return "fence seq_cst", ""


_RECORDS = {"step": STEP_FIELDS, "plan": PLAN_FIELDS}
_FORMS = re.compile(
    r"(?m)^  (?:%(?P<name>[\w.]+) = (?P<table>step|plan|team|place) (?P<field>\w+)(?: (?P<how>\w+))?"
    r"|team (?P<target>\w+) = (?P<value>%?[\w.]+)(?: (?P<order>\w+))?)$"
)


def expand(text: str) -> str:
    """LLVM IR from a text with the short forms of the module docstring."""
    count = 0

    def write(found: re.Match[str]) -> str:
        nonlocal count
        count += 1
        name, table, field, how = found["name"], found["table"], found["field"], found["how"]
        place = f"%{name}" if table == "place" else f"%at{count}"
        if table in _RECORDS:
            position = f"  {place} = getelementptr i64, ptr %{table}, i64 {_RECORDS[table].index(field)}\n"
            return position + f"  %{name} = load {how or 'i64'}, ptr {place}"
        position = f"  {place} = getelementptr i64, ptr @team, i64 {_TEAM[field or found['target']]}"
        if table == "place":
            return position
        order = how or found["order"]
        atomic, ending = (" atomic", f" {order}, align 8") if order else ("", "")
        if table == "team":
            return f"{position}\n  %{name} = load{atomic} i64, ptr {place}{ending}"
        return f"{position}\n  store{atomic} i64 {found['value']}, ptr {place}{ending}"

    return _FORMS.sub(write, text)


def runtime_ir(system: str = "", machine: str = "") -> str:
    """The runtime as LLVM IR, for this computer or another; `runtime_gemm.module_part` belongs into the same module."""
    pause, declaration = _pause(machine or platform.machine())
    text = _RUNTIME.replace("PAUSE", pause).replace("SPIN_NANOSECONDS", str(SPIN_NANOSECONDS))
    text = text.replace("TEAM_WORDS", str(_TEAM_WORDS)).replace("TEAM_BYTES", str(8 * _TEAM_WORDS))
    text = text.replace("STEP_BYTES", str(8 * len(STEP_FIELDS)))
    return expand(text) + threads_ir(system or platform.system()) + declaration
