"""The native runtime of the CPU backend: a worker team and an interpreter of plans, as LLVM IR compiled once.

A plan is data, a table of step records (`STEP_FIELDS`). `run` walks it on the caller's thread. A step that is worth
sharing is published as one word, `ticket` = (serial number of the step << 32) | tasks not yet claimed; a thread claims a
task by exchanging the word for one less, runs it, and adds one to `done`. The caller claims tasks like any worker and
goes on to the next step when all are done: it never waits for a worker that is asleep, and a second caller who finds
the team busy runs its plan alone. Which thread runs a task changes nothing in the result.

Workers are pthreads, made at the first shared step. They spin for `SPIN_NANOSECONDS` after the last task and then sleep
on a condition variable. `weft_reset` makes the team new in a forked child; `weft_stop` ends it at exit.
"""

from __future__ import annotations

import platform

SPIN_NANOSECONDS = 80_000

# One record per step, all i64. A launch calls `function` for tasks of `chunk` points out of `extent`; a product calls it
# as BLAS for each tile, then `epilogue`. Matrices are (slot, byte offset, bytes per row, bytes per batch element).
STEP_FIELDS = (
    "kind", "function", "args", "extent", "chunk", "tasks", "serial", "epilogue", "epilogue_args",
    "m", "n", "k", "tile_m", "tile_n", "tiles_m", "tiles_n", "itemsize", "transpose_a", "transpose_b",
    "a_slot", "a_offset", "a_row", "a_batch", "b_slot", "b_offset", "b_row", "b_batch",
    "c_slot", "c_offset", "c_row", "c_batch", "spare",
)  # fmt: skip
LAUNCH, PRODUCT = 0, 1
PLAIN, TRANSPOSED = 111, 112  # as CBLAS numbers them

# The plan record handed to `weft_run`, all i64.
PLAN_FIELDS = ("steps", "count", "alone", "products", "get_threads", "set_threads")

# The team, in words of 8 bytes; words that different threads write lie on cache lines of their own.
_TICKET, _DONE, _STEP, _SLOTS, _STATE, _BUSY, _SLEEPERS, _STOP = 0, 16, 32, 33, 48, 49, 64, 80
_WORKERS, _BLAS_USERS, _BLAS_THREADS, _BLAS_LOCK, _MUTEX, _CONDITION, _THREADS = 81, 96, 97, 98, 112, 128, 144
MAX_WORKERS = 255
_TEAM_WORDS = _THREADS + MAX_WORKERS + 1


def _pause() -> str:
    if platform.machine().lower() in ("x86_64", "amd64"):
        return "call void @llvm.x86.sse2.pause()"
    if platform.machine().lower() in ("arm64", "aarch64"):
        return 'call void asm sideeffect "yield", ""()'
    return "fence seq_cst"


def _field(name: str) -> int:
    return STEP_FIELDS.index(name)


class _Function:
    """Helps to write one IR function: named field reads and fresh names."""

    def __init__(self, head: str):
        self.lines = [head + " {", "entry:"]
        self.count = 0

    def __call__(self, text: str) -> None:
        self.lines += [line if line.endswith(":") else "  " + line for line in text.split("\n")]

    def value(self, code: str) -> str:
        self.count += 1
        self.lines.append(f"  %v{self.count} = {code}")
        return f"%v{self.count}"

    def sum(self, a: str, b: str) -> str:
        return self.value(f"add i64 {a}, {b}")

    def product(self, a: str, b: str) -> str:
        return self.value(f"mul i64 {a}, {b}")

    def word(self, table: str, number: int, kind: str = "i64") -> str:
        return self.value(f"load {kind}, ptr {self.place(table, number)}")

    def place(self, table: str, number: int) -> str:
        return self.value(f"getelementptr i64, ptr {table}, i64 {number}")

    def field(self, name: str, kind: str = "i64") -> str:
        return self.word("%step", _field(name), kind)

    def atomic(self, number: int, order: str = "acquire") -> str:
        return self.value(f"load atomic i64, ptr {self.place('@team', number)} {order}, align 8")

    def publish(self, number: int, text: str, order: str = "release") -> None:
        place = self.place("@team", number)
        self(f"store atomic i64 {text}, ptr {place} {order}, align 8")

    def end(self) -> str:
        return "\n".join([*self.lines, "}", ""])


def _work() -> str:
    """`work(step, slots, first, last)`: run those tasks of a step."""
    f = _Function("define internal void @work(ptr %step, ptr %slots, i64 %first, i64 %last)")
    f("%range = alloca [5 x i64]")
    kind = f.field("kind")
    f(f"%launch = icmp eq i64 {kind}, {LAUNCH}\nbr i1 %launch, label %one, label %tiles\none:")
    chunk, extent = f.field("chunk"), f.field("extent")
    begin, over = f.value(f"mul i64 %first, {chunk}"), f.value(f"mul i64 %last, {chunk}")
    end = f.value(f"call i64 @llvm.smin.i64(i64 {over}, i64 {extent})")
    f(f"store i64 {begin}, ptr %range")
    place = f.place("%range", 1)
    f(f"store i64 {end}, ptr {place}")
    function, args = f.field("function", "ptr"), f.field("args", "ptr")
    f(f"call void {function}(ptr %slots, ptr {args}, ptr %range)\nret void\ntiles:")
    f("%more = icmp slt i64 %first, %last\nbr i1 %more, label %tile, label %out\ntile:")
    f("%t = phi i64 [ %first, %tiles ], [ %t.next, %tile ]")
    f("call void @tile(ptr %step, ptr %slots, i64 %t, ptr %range)")
    f("%t.next = add i64 %t, 1\n%again = icmp slt i64 %t.next, %last\nbr i1 %again, label %tile, label %out\nout:\nret void")
    return f.end()


def _tile() -> str:
    """`tile(step, slots, t, range)`: one tile of a batched product, and its epilogue."""
    f = _Function("define internal void @tile(ptr %step, ptr %slots, i64 %t, ptr %range)")
    rows, columns = f.field("tiles_m"), f.field("tiles_n")
    per_batch = f.value(f"mul i64 {rows}, {columns}")
    batch, rest = f.value(f"sdiv i64 %t, {per_batch}"), f.value(f"srem i64 %t, {per_batch}")
    row, column = f.value(f"sdiv i64 {rest}, {columns}"), f.value(f"srem i64 {rest}, {columns}")
    edges = {}
    for name, number in (("m", row), ("n", column)):
        size, tile = f.field(name), f.field(f"tile_{name}")
        first = f.value(f"mul i64 {number}, {tile}")
        beyond = f.value(f"add i64 {first}, {tile}")
        last = f.value(f"call i64 @llvm.smin.i64(i64 {beyond}, i64 {size})")
        edges[name] = first, last, f.value(f"sub i64 {last}, {first}")
    (row0, row1, m), (col0, col1, n) = edges["m"], edges["n"]
    itemsize, k = f.field("itemsize"), f.field("k")
    places, pitches = {}, {}
    for name in "abc":
        slot, pitch = f.field(f"{name}_slot"), f.field(f"{name}_row")
        base = f.value(f"load ptr, ptr {f.value(f'getelementptr ptr, ptr %slots, i64 {slot}')}")
        down, along = {"a": (row0, "0"), "b": ("0", col0), "c": (row0, col0)}[name]
        if name != "c":  # a transposed operand is stepped through the other way round
            swapped = f.value(f"icmp eq i64 {f.field(f'transpose_{name}')}, {TRANSPOSED}")
            down, along = (
                f.value(f"select i1 {swapped}, i64 {along}, i64 {down}"),
                f.value(f"select i1 {swapped}, i64 {down}, i64 {along}"),
            )
        offset = f.sum(f.field(f"{name}_offset"), f.product(batch, f.field(f"{name}_batch")))
        offset = f.sum(offset, f.sum(f.product(down, pitch), f.product(along, itemsize)))
        places[name] = f.value(f"getelementptr i8, ptr {base}, i64 {offset}")
        pitches[name] = f.value(f"sdiv i64 {pitch}, {itemsize}")
    function = f.field("function", "ptr")
    ta, tb = (f.value(f"trunc i64 {f.field(f'transpose_{name}')} to i32") for name in "ab")

    def call(kind: str) -> str:
        return (
            f"call void {function}(i32 101, i32 {ta}, i32 {tb}, i64 {m}, i64 {n}, i64 {k}, {kind} 1.0, "
            f"ptr {places['a']}, i64 {pitches['a']}, ptr {places['b']}, i64 {pitches['b']}, {kind} 0.0, "
            f"ptr {places['c']}, i64 {pitches['c']})"
        )

    empty = f.value(f"icmp eq i64 {k}, 0")
    f(f"br i1 {empty}, label %clear, label %multiply\nclear:")
    f("%z = phi i64 [ 0, %entry ], [ %z.next, %clear ]\n%z.next = add i64 %z, 1")
    start = f.value(f"getelementptr i8, ptr {places['c']}, i64 {f.product('%z', f.field('c_row'))}")
    width = f.product(n, itemsize)
    f(f"call void @llvm.memset.p0.i64(ptr {start}, i8 0, i64 {width}, i1 false)")
    f(f"%z.more = icmp slt i64 %z.next, {m}\nbr i1 %z.more, label %clear, label %after\nmultiply:")
    f(f"%single = icmp eq i64 {itemsize}, 4\nbr i1 %single, label %s, label %d")
    f(f"s:\n{call('float')}\nbr label %after\nd:\n{call('double')}\nbr label %after\nafter:")
    epilogue, args = f.field("epilogue", "ptr"), f.field("epilogue_args", "ptr")
    f(f"%has = icmp ne ptr {epilogue}, null\nbr i1 %has, label %finish, label %out\nfinish:")
    for number, text in enumerate((batch, row0, row1, col0, col1)):
        place = f.place("%range", number)
        f(f"store i64 {text}, ptr {place}")
    f(f"call void {epilogue}(ptr %slots, ptr {args}, ptr %range)\nbr label %out\nout:\nret void")
    return f.end()


def _help() -> str:
    """`help()`: claim one task and run it; whether there was one."""
    f = _Function("define internal i1 @help()")
    ticket = f.atomic(_TICKET)
    left = f.value(f"and i64 {ticket}, 4294967295")
    f(f"%any = icmp ne i64 {left}, 0\nbr i1 %any, label %claim, label %none\nclaim:")
    less = f.value(f"sub i64 {ticket}, 1")
    pair = f.value(f"cmpxchg ptr {f.place('@team', _TICKET)}, i64 {ticket}, i64 {less} acq_rel acquire")
    won = f.value(f"extractvalue {{ i64, i1 }} {pair}, 1")
    f(f"br i1 {won}, label %mine, label %lost\nmine:")
    step, slots = f.word("@team", _STEP, "ptr"), f.word("@team", _SLOTS, "ptr")
    tasks = f.word(step, _field("tasks"))
    first = f.value(f"sub i64 {tasks}, {left}")
    last = f.value(f"add i64 {first}, 1")
    f(f"call void @work(ptr {step}, ptr {slots}, i64 {first}, i64 {last})")
    f(f"%was = atomicrmw add ptr {f.place('@team', _DONE)}, i64 1 release\nret i1 true\nlost:\nret i1 true\nnone:\nret i1 false")
    return f.end()


def _clock() -> str:
    return """define internal i64 @clock() {
  %time = alloca [2 x i64]
  %ok = call i32 @clock_gettime(i32 CLOCK, ptr %time)
  %s = load i64, ptr %time
  %p = getelementptr i64, ptr %time, i64 1
  %ns = load i64, ptr %p
  %whole = mul i64 %s, 1000000000
  %now = add i64 %whole, %ns
  ret i64 %now
}
""".replace("CLOCK", "6" if platform.system() == "Darwin" else "1")


def _worker() -> str:
    """A worker's life: help, spin, sleep, until `stop`."""
    f = _Function("define internal ptr @worker(ptr %nothing)")
    f("br label %busy\nbusy:\n%found = call i1 @help()\nbr i1 %found, label %busy, label %idle\nidle:")
    f("%since = call i64 @clock()\nbr label %spin\nspin:")
    f("%round = phi i64 [ 0, %idle ], [ %round.next, %wait ], [ %round.next, %look ]\n%round.next = add i64 %round, 1")
    ticket, stop = f.atomic(_TICKET), f.atomic(_STOP)
    left = f.value(f"and i64 {ticket}, 4294967295")
    f(f"%work = icmp ne i64 {left}, 0\nbr i1 %work, label %busy, label %rest\nrest:")
    f(f"%stopped = icmp ne i64 {stop}, 0\nbr i1 %stopped, label %out, label %wait\nwait:")
    f(f"{_pause()}\n%phase = and i64 %round, 31\n%often = icmp ne i64 %phase, 31\nbr i1 %often, label %spin, label %look\nlook:")
    f("%now = call i64 @clock()\n%passed = sub i64 %now, %since")
    f(f"%early = icmp slt i64 %passed, {SPIN_NANOSECONDS}\nbr i1 %early, label %spin, label %sleep\nsleep:")
    mutex, condition = f.place("@team", _MUTEX), f.place("@team", _CONDITION)
    f(f"%l = call i32 @pthread_mutex_lock(ptr {mutex})\nbr label %check\ncheck:")
    f(f"%c = atomicrmw add ptr {f.place('@team', _SLEEPERS)}, i64 1 seq_cst")
    ticket, stop = f.atomic(_TICKET, "seq_cst"), f.atomic(_STOP, "seq_cst")
    left = f.value(f"and i64 {ticket}, 4294967295")
    reason = f.value(f"or i64 {left}, {stop}")
    f(f"%wake = icmp ne i64 {reason}, 0\nbr i1 %wake, label %up, label %lie\nlie:")
    f(f"%w = call i32 @pthread_cond_wait(ptr {condition}, ptr {mutex})\nbr label %check\nup:")
    f(f"%u = call i32 @pthread_mutex_unlock(ptr {mutex})\nbr label %busy2\nbusy2:")
    f(f"%over = icmp ne i64 {stop}, 0\nbr i1 %over, label %out, label %busy\nout:\nret ptr null")
    return f.end()


def _share() -> str:
    """`share(step, slots, serial)`: publish a step, help with it, and wait until it is done."""
    f = _Function("define internal void @share(ptr %step, ptr %slots, i64 %serial)")
    tasks = f.field("tasks")
    for number, text in ((_STEP, "%step"), (_SLOTS, "%slots")):
        place = f.place("@team", number)
        f(f"store ptr {text}, ptr {place}")
    f.publish(_DONE, "0", "monotonic")
    high = f.value("shl i64 %serial, 32")
    f.publish(_TICKET, f.value(f"or i64 {high}, {tasks}"), "seq_cst")
    sleepers = f.atomic(_SLEEPERS, "seq_cst")
    f(f"%asleep = icmp ne i64 {sleepers}, 0\nbr i1 %asleep, label %wake, label %work\nwake:")
    f.publish(_SLEEPERS, "0", "seq_cst")
    mutex, condition = f.place("@team", _MUTEX), f.place("@team", _CONDITION)
    f(f"%l = call i32 @pthread_mutex_lock(ptr {mutex})\n%b = call i32 @pthread_cond_broadcast(ptr {condition})")
    f(f"%u = call i32 @pthread_mutex_unlock(ptr {mutex})\nbr label %work\nwork:")
    f("%found = call i1 @help()\nbr i1 %found, label %work, label %wait\nwait:")
    f("%round = phi i64 [ 0, %work ], [ %round.next, %pause ], [ %round.next, %yield ]\n%round.next = add i64 %round, 1")
    done = f.atomic(_DONE)
    f(f"%all = icmp eq i64 {done}, {tasks}\nbr i1 %all, label %out, label %more\nmore:")
    f("%short = icmp slt i64 %round, 2000\nbr i1 %short, label %pause, label %yield")
    f(f"pause:\n{_pause()}\nbr label %wait\nyield:\n%y = call i32 @sched_yield()\nbr label %wait\nout:\nret void")
    return f.end()


def _run() -> str:
    """`weft_run(plan, slots)`: walk the steps. Alone where the plan says so, the team is busy, or there is none."""
    f = _Function("define void @weft_run(ptr %plan, ptr %slots)")
    steps, count, alone, products = (f.word("%plan", number, kind) for number, kind in enumerate(("ptr", "i64", "i64", "i64")))
    f(f"%blas = icmp ne i64 {products}, 0\nbr i1 %blas, label %single, label %start\nsingle:")
    f("call void @blas_enter(ptr %plan)\nbr label %start\nstart:")
    workers, stop = f.word("@team", _WORKERS), f.atomic(_STOP)
    f(f"%none = icmp eq i64 {workers}, 0\n%tiny = icmp ne i64 {alone}, 0\n%closed = icmp ne i64 {stop}, 0")
    f("%o = or i1 %none, %tiny\n%solo = or i1 %o, %closed\nbr i1 %solo, label %walk, label %try\ntry:")
    pair = f.value(f"cmpxchg ptr {f.place('@team', _BUSY)}, i64 0, i64 1 acq_rel acquire")
    f(f"%mine = extractvalue {{ i64, i1 }} {pair}, 1\nbr i1 %mine, label %lead, label %walk\nlead:")
    state = f.word("@team", _STATE)
    f(f"%fresh = icmp eq i64 {state}, 0\nbr i1 %fresh, label %hire, label %walk\nhire:")
    f("call void @start()\nbr label %walk\nwalk:")
    f("%leads = phi i1 [ false, %start ], [ false, %try ], [ true, %lead ], [ true, %hire ]")
    f(f"%some = icmp sgt i64 {count}, 0\nbr i1 %some, label %each, label %last\neach:")
    f("%i = phi i64 [ 0, %walk ], [ %i.next, %next ]")
    f(f"%at = mul i64 %i, {8 * len(STEP_FIELDS)}\n%step = getelementptr i8, ptr {steps}, i64 %at")
    tasks, serial = f.field("tasks"), f.field("serial")
    f(f"%parallel = icmp eq i64 {serial}, 0\n%together = and i1 %parallel, %leads\nbr i1 %together, label %team, label %self")
    place = f"getelementptr i64, ptr @team, i64 {_STATE}"
    f(f"team:\n%p = {place}\n%number = load i64, ptr %p\n%number.next = add i64 %number, 1\nstore i64 %number.next, ptr %p")
    f("call void @share(ptr %step, ptr %slots, i64 %number)\nbr label %next")
    f(f"self:\ncall void @work(ptr %step, ptr %slots, i64 0, i64 {tasks})\nbr label %next")
    f(f"next:\n%i.next = add i64 %i, 1\n%again = icmp slt i64 %i.next, {count}\nbr i1 %again, label %each, label %last\nlast:")
    f("br i1 %leads, label %free, label %after\nfree:")
    f.publish(_BUSY, "0")
    f("br label %after\nafter:\nbr i1 %blas, label %restore, label %out\nrestore:")
    f("call void @blas_leave(ptr %plan)\nbr label %out\nout:\nret void")
    return f.end()


def _blas(enter: bool) -> str:
    """Set OpenBLAS to one thread for the first plan that needs it, and back after the last one."""
    f = _Function(f"define internal void @blas_{'enter' if enter else 'leave'}(ptr %plan)")
    lock, users, threads = (f.place("@team", number) for number in (_BLAS_LOCK, _BLAS_USERS, _BLAS_THREADS))
    getter, setter = (f.word("%plan", PLAN_FIELDS.index(name), "ptr") for name in ("get_threads", "set_threads"))
    f("br label %lock\nlock:")
    f(f"%p = cmpxchg ptr {lock}, i64 0, i64 1 acq_rel acquire\n%ok = extractvalue {{ i64, i1 }} %p, 1")
    f("br i1 %ok, label %inside, label %again\nagain:\n%y = call i32 @sched_yield()\nbr label %lock\ninside:")
    f(f"%n = load i64, ptr {users}\n%m = {'add' if enter else 'sub'} i64 %n, 1\nstore i64 %m, ptr {users}")
    f(f"%edge = icmp eq i64 {'%n' if enter else '%m'}, 0\nbr i1 %edge, label %change, label %out\nchange:")
    if enter:
        f(f"%t = call i32 {getter}()\n%w = sext i32 %t to i64\nstore i64 %w, ptr {threads}")
        f(f"%many = icmp ne i32 %t, 1\nbr i1 %many, label %set, label %out\nset:\ncall void {setter}(i32 1)\nbr label %out")
    else:
        f(f"%w = load i64, ptr {threads}\n%t = trunc i64 %w to i32")
        f(f"%many = icmp ne i32 %t, 1\nbr i1 %many, label %set, label %out\nset:\ncall void {setter}(i32 %t)\nbr label %out")
    f(f"out:\nstore atomic i64 0, ptr {lock} release, align 8\nret void")
    return f.end()


def _life() -> str:
    """`start`, `weft_stop` and `weft_reset(workers)`."""
    f = _Function("define internal void @start()")
    mutex, condition = f.place("@team", _MUTEX), f.place("@team", _CONDITION)
    f(f"%a = call i32 @pthread_mutex_init(ptr {mutex}, ptr null)\n%b = call i32 @pthread_cond_init(ptr {condition}, ptr null)")
    place = f.place("@team", _STATE)
    f(f"store i64 1, ptr {place}")
    workers = f.word("@team", _WORKERS)
    f(f"br label %next\nnext:\n%i = phi i64 [ 0, %entry ], [ %n, %made ]\n%n = add i64 %i, 1\n%w = add i64 %i, {_THREADS}")
    f("%t = getelementptr i64, ptr @team, i64 %w\n%c = call i32 @pthread_create(ptr %t, ptr null, ptr @worker, ptr null)")
    f("%failed = icmp ne i32 %c, 0\nbr i1 %failed, label %lack, label %made\nlack:\nstore i64 0, ptr %t\nbr label %made\nmade:")
    f(f"%more = icmp slt i64 %n, {workers}\nbr i1 %more, label %next, label %out\nout:\nret void")
    start = f.end()
    f = _Function("define void @weft_stop()")
    f.publish(_STOP, "1", "seq_cst")
    state, workers = f.word("@team", _STATE), f.word("@team", _WORKERS)
    f(f"%alive = icmp ne i64 {state}, 0\nbr i1 %alive, label %wake, label %out\nwake:")
    mutex, condition = f.place("@team", _MUTEX), f.place("@team", _CONDITION)
    f(f"%l = call i32 @pthread_mutex_lock(ptr {mutex})\n%b = call i32 @pthread_cond_broadcast(ptr {condition})")
    f(f"%u = call i32 @pthread_mutex_unlock(ptr {mutex})\nbr label %next\nnext:")
    f(f"%i = phi i64 [ 0, %wake ], [ %n, %joined ]\n%n = add i64 %i, 1\n%w = add i64 %i, {_THREADS}")
    f("%p = getelementptr i64, ptr @team, i64 %w\n%t = load i64, ptr %p\n%is = icmp ne i64 %t, 0")
    f("br i1 %is, label %join, label %joined\njoin:\n%j = call i32 @pthread_join(i64 %t, ptr null)\nbr label %joined\njoined:")
    f(f"%more = icmp slt i64 %n, {workers}\nbr i1 %more, label %next, label %out\nout:\nret void")
    stop = f.end()
    f = _Function("define void @weft_reset(i64 %workers)")
    f(f"call void @llvm.memset.p0.i64(ptr @team, i8 0, i64 {8 * _TEAM_WORDS}, i1 false)")
    place = f.place("@team", _WORKERS)
    f(f"store i64 %workers, ptr {place}\nret void")
    return start + stop + f.end()


def _own_gemm(kind: str, name: str) -> str:
    """A product with the signature of CBLAS (row-major, beta 0) for machines without it: rows of 8 columns at a time."""
    size, short = (4, "f32") if kind == "float" else (8, "f64")
    f = _Function(
        f"define void @{name}(i32 %order, i32 %ta, i32 %tb, i64 %m, i64 %n, i64 %k, {kind} %alpha, "
        f"ptr %a, i64 %lda, ptr %b, i64 %ldb, {kind} %beta, ptr %c, i64 %ldc)"
    )
    f("%sa = icmp eq i32 %ta, 112\n%sb = icmp eq i32 %tb, 112")
    f("%ai = select i1 %sa, i64 1, i64 %lda\n%ak = select i1 %sa, i64 %lda, i64 1")
    f("%bk = select i1 %sb, i64 1, i64 %ldb\n%bj = select i1 %sb, i64 %ldb, i64 1")
    f("%one = insertelement <8 x i64> poison, i64 %bj, i64 0")
    f("%bjs = shufflevector <8 x i64> %one, <8 x i64> poison, <8 x i32> zeroinitializer")
    f("%lanes = mul <8 x i64> %bjs, <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7>\nbr label %row\nrow:")
    f("%i = phi i64 [ 0, %entry ], [ %i.next, %row.end ]\n%i0 = mul i64 %i, %ai\n%c0 = mul i64 %i, %ldc\nbr label %column\ncolumn:")
    f("%j = phi i64 [ 0, %row ], [ %j.next, %column.end ]\n%left = sub i64 %n, %j\n%l1 = insertelement <8 x i64> poison, i64 %left, i64 0")
    f("%ls = shufflevector <8 x i64> %l1, <8 x i64> poison, <8 x i32> zeroinitializer")
    f("%mask = icmp slt <8 x i64> <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7>, %ls\n%j0 = mul i64 %j, %bj\nbr label %inner\ninner:")
    f(f"%q = phi i64 [ 0, %column ], [ %q.next, %inner ]\n%sum = phi <8 x {kind}> [ zeroinitializer, %column ], [ %sum.next, %inner ]")
    f("%q1 = mul i64 %q, %ak\n%q2 = add i64 %q1, %i0\n%q3 = mul i64 %q, %bk\n%q4 = add i64 %q3, %j0")
    f(f"%pa = getelementptr {kind}, ptr %a, i64 %q2\n%x = load {kind}, ptr %pa, align {size}\n%pb = getelementptr {kind}, ptr %b, i64 %q4")
    f(f"%pbs = getelementptr {kind}, ptr %pb, <8 x i64> %lanes")
    f(f"%y = call <8 x {kind}> @llvm.masked.gather.v8{short}.v8p0(<8 x ptr> align {size} %pbs, <8 x i1> %mask, <8 x {kind}> zeroinitializer)")
    f(f"%x1 = insertelement <8 x {kind}> poison, {kind} %x, i64 0")
    f(f"%xs = shufflevector <8 x {kind}> %x1, <8 x {kind}> poison, <8 x i32> zeroinitializer")
    f(f"%sum.next = call <8 x {kind}> @llvm.fma.v8{short}(<8 x {kind}> %xs, <8 x {kind}> %y, <8 x {kind}> %sum)")
    f("%q.next = add i64 %q, 1\n%q.more = icmp slt i64 %q.next, %k\nbr i1 %q.more, label %inner, label %column.end\ncolumn.end:")
    f(f"%c1 = add i64 %c0, %j\n%pc = getelementptr {kind}, ptr %c, i64 %c1")
    f(f"call void @llvm.masked.store.v8{short}.p0(<8 x {kind}> %sum.next, ptr align {size} %pc, <8 x i1> %mask)")
    f("%j.next = add i64 %j, 8\n%j.more = icmp slt i64 %j.next, %n\nbr i1 %j.more, label %column, label %row.end\nrow.end:")
    f("%i.next = add i64 %i, 1\n%i.more = icmp slt i64 %i.next, %m\nbr i1 %i.more, label %row, label %out\nout:\nret void")
    declarations = (
        f"declare <8 x {kind}> @llvm.masked.gather.v8{short}.v8p0(<8 x ptr>, <8 x i1>, <8 x {kind}>)\n"
        f"declare <8 x {kind}> @llvm.fma.v8{short}(<8 x {kind}>, <8 x {kind}>, <8 x {kind}>)\n"
        f"declare void @llvm.masked.store.v8{short}.p0(<8 x {kind}>, ptr, <8 x i1>)\n"
    )
    return f.end() + declarations


def runtime_ir() -> str:
    """The whole runtime as one module."""
    parts = [
        f"@team = internal global [{_TEAM_WORDS} x i64] zeroinitializer, align 128",
        "declare i64 @llvm.smin.i64(i64, i64)",
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
        "declare i32 @clock_gettime(i32, ptr)",
        "declare i32 @sched_yield()",
        "declare i32 @pthread_mutex_init(ptr, ptr)",
        "declare i32 @pthread_mutex_lock(ptr)",
        "declare i32 @pthread_mutex_unlock(ptr)",
        "declare i32 @pthread_cond_init(ptr, ptr)",
        "declare i32 @pthread_cond_wait(ptr, ptr)",
        "declare i32 @pthread_cond_broadcast(ptr)",
        "declare i32 @pthread_create(ptr, ptr, ptr, ptr)",
        "declare i32 @pthread_join(i64, ptr)",
    ]
    if "x86" in _pause():
        parts.append("declare void @llvm.x86.sse2.pause()")
    parts += [_tile(), _work(), _help(), _clock(), _worker(), _share(), _blas(True), _blas(False), _life(), _run()]
    return "\n".join(parts) + _own_gemm("float", "weft_sgemm") + _own_gemm("double", "weft_dgemm")
