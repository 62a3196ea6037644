"""The columns of the arrays that the engine kernels work on. All are int64; times are nanoseconds.

`requests[n, R_COLUMNS]`, `devices[G, D_COLUMNS]`, `batch[G, slots, B_COLUMNS]` (the running requests of a device in
order of admission: those that decode first, then those that prefill), `growth[G, block_size]` (how many decoding
requests need a new block at each phase of the pass counter), and `log[L, L_COLUMNS]` (what the host must hear of;
row 0 holds the number of entries; a log of one row records nothing).
"""

# --- requests -------------------------------------------------------------------------------------------------
R_PROMPT = 0  # prompt tokens
R_OUTPUT = 1  # true output tokens
R_READY = 2  # when it entered the engine's own queue
R_START = 3  # when it first joined a batch; NEVER before that
R_FIRST = 4  # when its first token appeared
R_END = 5  # when its last token appeared; NEVER before that
R_GENERATED = 6  # tokens produced when it last left a batch (by preemption)
R_COMPUTED = 7  # prompt tokens processed so far, while it prefills
R_NEXT = 8  # the request behind it in the engine's own queue; NOBODY at the end
R_PREEMPTIONS = 9
R_COLUMNS = 10

# --- devices --------------------------------------------------------------------------------------------------
D_MODE = 0  # MODE_DECODE, MODE_AGGREGATED or MODE_PREFILL
D_RESERVES = 1  # 1: admission reserves KV to completion; 0: greedy admission with preemption
D_SLOTS = 2
D_BLOCK_SIZE = 3
D_FREE = 4  # free KV blocks
D_UNRESERVED = 5  # KV blocks less the needs to completion of the running requests
D_MAX_TOKENS = 6  # token budget of one pass
D_AHEAD = 7  # tokens held beyond prompt + generated while a pass runs
D_DECODE_AT = 8  # where its decode model starts in the packed latency models
D_PREFILL_AT = 9
D_RECOMPUTE_PS = 10  # picoseconds per token, charged when a preempted request rejoins a decode-only batch
D_STATE = 11  # BOUNDARY, OPEN or RUNNING
D_CLOCK = 12  # the boundary it stands at; while a pass runs, the end of that pass
D_PASS_START = 13
D_PASSES = 14  # completed passes
D_BUSY = 15  # nanoseconds spent in completed passes
D_PHASE = 16  # (−passes) mod block size
D_RUNNING = 17  # requests in the batch
D_PREFILLING = 18  # of these, those whose prompt is not processed yet
D_CONTEXT = 19  # Σ prompt + generated over those that decode
D_NEXT_FINISH = 20  # value of D_PASSES at which the next decoding request ends
D_HEAD = 21  # first request of the engine's own queue
D_TAIL = 22
D_QUEUED = 23  # length of that queue
D_BLOCKED = 24  # the head that could not be admitted since the batch last shrank; NOBODY if none
D_BUDGET = 25  # tokens left in the pass that is being opened
D_EVICTED = 26  # 1: the pass that is being opened has preempted, so it admits nothing
D_PASS_PREFILLS = 27  # requests that prefill in this pass
D_PASS_ISL = 28  # Σ prompt tokens processed once this pass ends, over those
D_PASS_PREFIX = 29  # Σ prompt tokens processed before it
D_PASS_RESUMED = 30  # recomputing requests that also decode in this pass
D_PASS_RESUMED_CONTEXT = 31
D_PASS_EXTRA = 32  # nanoseconds added to this pass
D_WASTED = 33  # tokens thrown away by preemptions
D_STOP = 34  # cached answer of `next_stop`; out of date when before D_CLOCK, NEVER when not known
D_COLUMNS = 35

# --- the batch of a device ------------------------------------------------------------------------------------
B_ID = 0
B_BASE = 1  # generated tokens = D_PASSES − base
B_FINISH = 2  # value of D_PASSES at which it ends
B_COLUMNS = 3

# --- the log --------------------------------------------------------------------------------------------------
L_KIND = 0
L_ID = 1
L_DEVICE = 2
L_PASSES = 3  # completed passes of the device when it happened
L_TIME = 4
L_BUSY = 5
L_COLUMNS = 6

STARTED = 0
PREFILLED = 1
PREEMPTED = 2
FINISHED = 3
HANDED_OFF = 4

MODE_DECODE = 0
MODE_AGGREGATED = 1
MODE_PREFILL = 2

BOUNDARY = 0
OPEN = 1
RUNNING = 2

NOBODY = -1
NEVER = -1
FOREVER = 2**62
