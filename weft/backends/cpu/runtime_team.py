"""The worker team of the native runtime, as LLVM text: claiming tasks, spinning, sleeping, publishing a step.

The text uses the short forms that `runtime.expand` replaces.
"""

TEAM_FUNCTIONS = r"""
@team = internal global [TEAM_WORDS x i64] zeroinitializer, align 128

; Run the tasks [first, last) of a step.
define internal void @work(ptr %step, ptr %slots, i64 %first, i64 %last) {
entry:
  %range = alloca [5 x i64]
  %kind = step kind
  %launch = icmp eq i64 %kind, 0
  br i1 %launch, label %one, label %tiles
one:
  %chunk = step chunk
  %extent = step extent
  %begin = mul i64 %first, %chunk
  %over = mul i64 %last, %chunk
  %end = call i64 @llvm.smin.i64(i64 %over, i64 %extent)
  store i64 %begin, ptr %range
  %range.end = getelementptr i64, ptr %range, i64 1
  store i64 %end, ptr %range.end
  %function = step function ptr
  %args = step args ptr
  call void %function(ptr %slots, ptr %args, ptr %range)
  ret void
tiles:
  %some = icmp slt i64 %first, %last
  br i1 %some, label %tile, label %out
tile:
  %t = phi i64 [ %first, %tiles ], [ %t.next, %tile ]
  call void @tile(ptr %step, ptr %slots, i64 %t, ptr %range)
  %t.next = add i64 %t, 1
  %again = icmp slt i64 %t.next, %last
  br i1 %again, label %tile, label %out
out:
  ret void
}

; Claim one task of the published step and run it; whether there was one.
define internal i1 @help() {
entry:
  %ticket = team ticket acquire
  %left = and i64 %ticket, 4294967295
  %any = icmp ne i64 %left, 0
  br i1 %any, label %claim, label %none
claim:
  %less = sub i64 %ticket, 1
  %word = place ticket
  %pair = cmpxchg ptr %word, i64 %ticket, i64 %less acq_rel acquire
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %mine, label %lost
mine:
  ; The step cannot end before this task is done, so its record stays valid.
  %step.word = team step
  %step = inttoptr i64 %step.word to ptr
  %slots.word = team slots
  %slots = inttoptr i64 %slots.word to ptr
  %tasks = step tasks
  %first = sub i64 %tasks, %left
  %last = add i64 %first, 1
  call void @work(ptr %step, ptr %slots, i64 %first, i64 %last)
  %done = place done
  %was = atomicrmw add ptr %done, i64 1 release
  ret i1 true
lost:
  ret i1 true
none:
  ret i1 false
}

; A worker's life: help, spin, sleep, until it is told to stop.
define internal ptr @worker(ptr %nothing) {
entry:
  br label %busy
busy:
  %found = call i1 @help()
  br i1 %found, label %busy, label %idle
idle:
  %since = call i64 @clock()
  br label %spin
spin:
  %round = phi i64 [ 0, %idle ], [ %round.next, %wait ], [ %round.next, %look ]
  %round.next = add i64 %round, 1
  %ticket = team ticket acquire
  %stop = team stop acquire
  %left = and i64 %ticket, 4294967295
  %work = icmp ne i64 %left, 0
  br i1 %work, label %busy, label %rest
rest:
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %out, label %wait
wait:
  PAUSE
  %phase = and i64 %round, 31
  %often = icmp ne i64 %phase, 31
  br i1 %often, label %spin, label %look
look:
  %now = call i64 @clock()
  %passed = sub i64 %now, %since
  %early = icmp slt i64 %passed, SPIN_NANOSECONDS
  br i1 %early, label %spin, label %sleep
sleep:
  %mutex = place mutex
  %condition = place condition
  %sleepers = place sleepers
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  br label %check
check:
  ; First say that we sleep, then look for work: @share does it the other way round, so one of the two sees the other.
  %said = atomicrmw add ptr %sleepers, i64 1 seq_cst
  %ticket.now = team ticket seq_cst
  %stop.now = team stop seq_cst
  %left.now = and i64 %ticket.now, 4294967295
  %reason = or i64 %left.now, %stop.now
  %wake = icmp ne i64 %reason, 0
  br i1 %wake, label %up, label %lie
lie:
  %woken = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %check
up:
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  %over = icmp ne i64 %stop.now, 0
  br i1 %over, label %out, label %busy
out:
  ret ptr null
}

define internal void @wake_all() {
entry:
  %mutex = place mutex
  %condition = place condition
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  %told = call i32 @pthread_cond_broadcast(ptr %condition)
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}

; Publish a step, help with it, and wait until it is done.
define internal void @share(ptr %step, ptr %slots) {
entry:
  %serial = team serial
  %serial.next = add i64 %serial, 1
  team serial = %serial.next
  %tasks = step tasks
  %step.word = ptrtoint ptr %step to i64
  team step = %step.word
  %slots.word = ptrtoint ptr %slots to i64
  team slots = %slots.word
  team done = 0 monotonic
  %high = shl i64 %serial, 32
  %ticket = or i64 %high, %tasks
  team ticket = %ticket seq_cst
  %sleepers = team sleepers seq_cst
  %asleep = icmp ne i64 %sleepers, 0
  br i1 %asleep, label %wake, label %work
wake:
  team sleepers = 0 seq_cst
  call void @wake_all()
  br label %work
work:
  %found = call i1 @help()
  br i1 %found, label %work, label %wait
wait:
  %round = phi i64 [ 0, %work ], [ %round.next, %pause ], [ %round.next, %yield ]
  %round.next = add i64 %round, 1
  %done = team done acquire
  %all = icmp eq i64 %done, %tasks
  br i1 %all, label %out, label %more
more:
  %short = icmp slt i64 %round, 2000
  br i1 %short, label %pause, label %yield
pause:
  PAUSE
  br label %wait
yield:
  %yielded = call i32 @sched_yield()
  br label %wait
out:
  ret void
}

"""
