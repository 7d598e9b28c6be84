/* The state of one job, as records in tables that Python allocates.

   Every function takes the job as `m`: its own numbers, and where its tables are and how long.  By
   convention `r` is the record of a rank, `q` of a quorum, `c` of a closing.
   Times are in seconds, work in samples; an index of -1 stands for none.  Python reads this layout
   from the library (`layout` in kernel.c), so it is stated here alone. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

typedef int64_t whole;
typedef int8_t flag;
typedef uint64_t word;

enum { WINDOW = 16 }; /* steps of each rank that a view shows; a power of two */

/* Where the gradient of a rank is; NOBODY: it never had one; GONE: applied, dropped or aborted.
   READY: arrived and not closed over yet.  ASHORE: a rider's, finished, waiting for its parent's
   next finish; in a tree, waiting for the others of its message (tree.c).  ABOARD: a rider's or a
   child's, bound to its parent's gradient. */
#define NAME(word) word,
#define STATES(S) S(NOBODY) S(COMPUTING) S(PUSHING) S(READY) S(ASHORE) S(ABOARD) S(CLOSED) S(GONE)
enum { STATES(NAME) };

/* Where its job at the server is. */
enum { NO_JOB, WAITING, IN_SERVICE, SERVED };

/* Kinds of events of one instant, in their order (rule 15); last the server takes its next job. */
enum { ARRIVE, CLOSE, END, EXPIRE };

/* `Via` and `Late`, in the order of their definitions; the fates of gradients. */
enum { ALLREDUCE, SERVER, LEADER };
enum { QUEUE, DROP, ABORT, JOIN };
enum { APPLIED, DROPPED, ABORTED, IN_FLIGHT };

/* Why `advance` comes back.  REDUCE, SERVE: it asks when a collective, or a job that fuses groups,
   ends.  FLUSH: a log is full.  ROOM: a rank keeps more gradients than there is room for.
   DURATIONS: a rank has no recorded duration left.  PAUSE: it has worked for a while.  CHECKPOINT:
   one is due.  OVERRUN: there is no room for what a policy is shown of reviews that passed. */
#define STOPS(S) S(GO_ON) S(DONE) S(REVIEW) S(HORIZON) S(STALLED) S(REDUCE) S(SERVE) \
    S(FLUSH) S(ROOM) S(DURATIONS) S(PAUSE) S(CHECKPOINT) S(OVERRUN)
enum { STOPS(NAME) };

#define SCALARS(F, A) \
    /* the clock, the learner, totals */ \
    F(double, now) F(whole, version) F(whole, samples) F(whole, serial) F(whole, refiled) F(whole, rounds) \
    F(double, booked) F(whole, began_at) F(whole, own) F(whole, stale) F(whole, stale_low) F(whole, stale_high) \
    F(whole, missed_low) F(whole, missed_high) F(double, beyond) F(double, makespan) F(double, target) \
    F(whole, started) F(whole, amp) F(whole, rebatched) F(whole, applied) F(whole, dropped) \
    F(whole, aborted) F(whole, asked) F(whole, cut) \
    F(whole, hits) F(whole, false_alarms) F(whole, misses) F(whole, suspects) \
    /* the server and its job */ \
    F(whole, server_serial) F(whole, server_rank) F(whole, server_ticket) \
    F(whole, server_closing) F(flag, serving) F(flag, take_due) \
    /* constants */ \
    F(whole, workers) F(whole, stride) F(whole, batch) F(double, noise_scale) F(double, c_tau) \
    F(double, push) F(double, pull) F(double, service) F(double, amp_switch) \
    F(whole, microbatches) F(double, trace_end) F(double, period) F(double, straggler_ratio) F(double, fixed_share) \
    F(flag, overlaps) F(double, host) F(double, gpu) \
    F(double, rho) F(double, innovation) F(whole, warmup) F(flag, noisy) F(flag, replays) \
    F(flag, holds) F(flag, loops) F(flag, halts) F(flag, fused_allreduce) \
    /* the plan in force */ \
    F(double, deadline) F(double, pause) F(whole, cutoff) F(double, power) F(double, shift) F(whole, quorum_count) \
    F(whole, loaded) F(flag, fuse) F(flag, mean) F(flag, bounded) \
    F(flag, judged) F(flag, shows) F(flag, unknown) F(flag, may_lockstep) \
    F(whole, review_updates) F(whole, review_samples) \
    F(double, review_seconds) F(flag, on_block) \
    F(whole, reviewed_updates) F(whole, reviewed_samples) F(double, reviewed_time) \
    F(flag, reviewing) F(flag, has_asked) \
    /* reviews to pass by, and those that were (ahead.c); rows of what a view shows, a power of two */ \
    F(whole, ahead) F(whole, passed) F(flag, overrun) F(flag, holding) F(whole, ring) \
    /* from when on a checkpoint is due, and what the one cost that was just taken */ \
    F(double, mark_version) F(double, mark_time) F(double, cost) F(flag, saving) \
    /* ends */ \
    F(whole, most_updates) F(whole, most_samples) F(double, most_progress) \
    /* lists */ \
    F(whole, scheduled) F(whole, queued) F(whole, free) F(whole, to_release) F(whole, blocked) \
    F(whole, to_start) F(whole, least) F(whole, at_least) \
    F(flag, entering) F(flag, freed) \
    /* what is asked of whoever drives */ \
    F(whole, stop) F(whole, call) F(whole, out) F(flag, crowded) \
    F(flag, asks_server) F(whole, spent) F(whole, budget) \
    /* logs */ \
    F(whole, updates) F(whole, members) F(whole, steps) F(whole, fates) F(whole, every) \
    F(flag, keeps_steps) F(flag, keeps_fates)

#define RANK(F, A) \
    /* its step under way, or its last, and totals; first what queues.c needs most; `rate`: seconds \
       per unit of work, which hold for steps that end before `until` */ \
    F(double, finish) F(double, arrival) F(double, pulled) F(double, rate) F(double, until) \
    F(double, share) F(whole, version) F(whole, seen) F(whole, samples) F(whole, started) \
    F(double, compute) F(double, communication) F(double, wait) F(whole, applied) \
    F(whole, staleness) F(flag, amp) F(flag, blocked) F(flag, named) F(flag, idle) F(flag, state) F(flag, failed) \
    F(whole, quorum) F(whole, link) \
    /* gradients that count for the bound; gradients that it keeps of its contribution */ \
    F(whole, count) F(whole, bound) F(whole, kept) F(whole, rounds) \
    /* its private steps, if its quorum does not say; overlap: gradients of `kept` that are of its \
       contribution under way, steps left of the run-on, and steps of it in the next contribution */ \
    F(whole, steps) F(whole, prepared) F(whole, ahead) F(whole, ran_on) \
    /* `due`: time of the event that it waits for */ \
    F(double, relayed) F(double, got) F(double, start) F(double, paused) F(double, pauses) \
    F(double, sent) \
    F(double, pushed) F(double, ended) F(double, busy) \
    F(whole, step) F(double, due) \
    /* inputs: where its recorded durations are; pieces by precision and load */ \
    F(whole, recorded_at) F(whole, recorded) \
    A(whole, stretch, 4) A(whole, cursor, 4) A(whole, net, 2) F(whole, delay) F(double, clean) \
    F(whole, clean_step) \
    /* its job at the server; the closing it was late for; its parent and its riders */ \
    F(double, job_arrival) F(whole, ticket) F(whole, mark_of) F(whole, mark) F(flag, mark_late) \
    F(whole, closing) F(whole, puller) F(whole, relay) \
    F(whole, parent) F(whole, aboard) F(whole, children_at) F(whole, children) \
    F(flag, job) F(flag, last_amp) \
    /* by the overlapping law: pieces of launching, as `stretch` and `cursor` of computing; units of \
       work of a step in a queue; when launching and computing of the step under way end */ \
    A(whole, launch, 4) A(whole, launch_cursor, 4) F(double, work) \
    F(double, launched) F(double, computed)

/* `shape`: which fast way the quorum may take; `lockstep`: whether it does so now, and the records
   of its members are stale (lockstep.c).  `tree`: whether ranks have parents (tree.c), `ridden`: or
   riders.  `steps`: less those of the overlap; 0 where each rank says.  `window`: or its grace;
   `arrived`, `opening` are of a quorum with a grace: gradients that are there, and the rank with
   whose gradient it begins. */
#define QUORUM(F, A) \
    F(double, window) F(double, seconds) F(whole, net) F(whole, members_at) F(whole, size) \
    F(whole, needed) F(whole, token) F(whole, steps) F(whole, rounds) \
    F(whole, overlap) F(whole, arrived) F(whole, opening) F(flag, grace) F(flag, partial) \
    F(whole, ready) F(whole, ready_last) F(whole, ready_count) F(whole, joining) \
    F(whole, joining_last) \
    F(flag, via) F(flag, late) F(flag, asks) F(flag, ridden) F(flag, tree) F(flag, shape) F(flag, lockstep) \
    /* in lockstep: the step under way of all its members, and sums since they fell in */ \
    F(double, pulled) F(double, got) F(double, latest) F(double, closed_at) F(double, busy) \
    F(whole, version) F(whole, seen) F(whole, closing) F(whole, samples) F(whole, amp) \
    F(whole, rebatched) F(whole, steps_done) F(whole, staleness) \
    F(whole, puller) F(whole, beside) F(whole, won) F(flag, done) \
    /* of queues.c: the first rank of the update that was just made, the others by `link`; how many \
       gradients are to be applied before it is tried again */ \
    F(whole, pending) F(whole, try_at)

/* `number` counts how often a place in the table was used, so that a mark knows whether the closing
   it was made by is over.  `beside`: the next closing of the same update. */
#define CLOSING(F, A) \
    F(double, busy) F(double, power) F(double, shift) \
    F(whole, number) F(whole, undone) F(whole, count) F(whole, cutoff) F(whole, token) \
    F(whole, rounds) F(whole, refiled) F(whole, head) F(whole, last) F(whole, waiting) \
    F(whole, leader) F(whole, beside) F(whole, quorum) F(flag, via) F(flag, fuse) \
    F(flag, mean) F(flag, lockstep)

#define KEPT(F, A) \
    F(whole, step) F(whole, samples) F(double, seconds) F(double, communication) F(whole, amp) \
    F(whole, round)
#define EVENT(F, A) F(double, time) F(whole, order) F(whole, serial) F(whole, what)
#define PIECE(F, A) F(whole, at) F(whole, last)

/* Rows of the logs. */
#define UPDATE(F, A) \
    F(double, time) F(whole, version) F(whole, n_own) F(whole, samples) \
    F(double, staleness_mean) F(whole, staleness_max) F(double, progress) F(whole, members) \
    F(whole, count)
#define STEP(F, A) \
    F(whole, rank) F(whole, step) F(whole, version) F(whole, amp) F(double, start) \
    F(double, finish) F(double, wait) F(double, communication)
#define FATE(F, A) \
    F(whole, update) F(whole, rank) F(whole, step) F(whole, version) F(whole, amp) \
    F(whole, samples) F(double, weight) F(whole, fate) F(whole, round)

#define RECORDS(R) \
    R(rank, RANK) R(quorum, QUORUM) R(closing, CLOSING) \
    R(kept, KEPT) R(event, EVENT) R(piece, PIECE) R(update, UPDATE) R(step, STEP) R(fate, FATE)

#define DECLARE_FIELD(type, name) type name;
#define DECLARE_ARRAY(type, name, count) type name[count];
#define DECLARE_RECORD(name, FIELDS) struct name##_row { FIELDS(DECLARE_FIELD, DECLARE_ARRAY) };
RECORDS(DECLARE_RECORD)

/* The tables.  `lists`: members of the quorums, then riders or children of the ranks.  `fields`:
   rows of numbers of members in lockstep, `stride` numbers apart, a column per place in `lists`.
   `segments`: in the same columns the row of `times` that RATE and UNTIL are of, then the last row
   of that step function.  `arrivals`, `winners`: of ranks in a queue, and of the matches of a
   tournament between them (queues.c).  `kept`: gradients that ranks keep, oldest first.
   `keys`, `drawn`, `factors`, `normal`: of each rank the key of its noise, how many factors it has
   taken, the next ones, and the normal number of the last of these.  `next_`: what the plan in force says of its next step.  `quantiles`, `marginal`: tables of noise.c.
   `known`: how many steps of each rank a policy was shown; the last of them stand in the tables
   after it, step k of a rank in row k modulo `ring`.  `passed_`: of reviews that were passed by,
   `before`: `known` at the one before them, and `held`: the state then (ahead.c). */
#define RACING(T) \
    T(double, fields) T(whole, segments) T(whole, drawn) T(double, factors) T(double, normal) \
    T(double, clean) \
    T(whole, known)
#define OTHERS(T) \
    T(struct rank_row, ranks) T(struct closing_row, closings) T(struct kept_row, kept) \
    T(double, arrivals) T(whole, winners)
#define TABLES(T) OTHERS(T) T(struct quorum_row, quorums) RACING(T) \
    T(struct event_row, events) T(struct event_row, jobs) T(struct event_row, entries) \
    T(struct piece_row, pieces) T(double, times) T(double, values) T(double, seconds_of) \
    T(double, durations) T(word, keys) T(double, quantiles) T(double, marginal) \
    T(whole, lists) T(whole, scratch) T(whole, spare) T(flag, suspected) T(flag, taken) \
    T(double, next_share) T(whole, next_samples) T(flag, next_amp) \
    T(struct update_row, update_log) T(whole, member_log) T(struct step_row, step_log) \
    T(struct fate_row, fate_log) \
    T(double, passed_times) T(whole, passed_versions) T(whole, passed_samples) \
    T(whole, passed_steps) T(whole, before) T(flag, held) \
    T(double, shown_local_times) T(double, shown_communication) T(double, shown_batch) \
    T(flag, shown_amp) T(flag, shown_lower_bound)

#define DECLARE_TABLE(type, name) type *name; whole name##_size;
struct job { TABLES(DECLARE_TABLE) SCALARS(DECLARE_FIELD, DECLARE_ARRAY) };

/* A loop over columns: several versions, of which the CPU at hand takes the widest it has.  Only
   glibc chooses among gcc's versions when it loads a library; clang refuses them. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
enum { WIDE = 1 }; /* whether there are any */
#define VERSIONS(widest) __attribute__((noinline, target_clones(widest, "avx2", "default")))
#else
enum { WIDE = 0 };
#define VERSIONS(widest)
#endif
#define COLUMNS VERSIONS("avx512f")
#if __GNUC__ >= 12 /* of it on; these multiply words */
#define WORDS VERSIONS("arch=x86-64-v4")
#else
#define WORDS COLUMNS
#endif

/* A function that is called where time is no matter: not in line with what is always run. */
#if defined(__GNUC__)
#define SELDOM __attribute__((noinline, cold))
#else
#define SELDOM
#endif

static inline double most(double a, double b) { return a > b ? a : b; }
static inline double least(double a, double b) { return a < b ? a : b; }
static inline whole larger(whole a, whole b) { return a > b ? a : b; }
