/* The native engine: the rules of docs/semantics.md over tables of records.

   `advance` goes on from event to event until the driver must act; the driver answers with the
   other exported functions.  engine/rules.py states the same rules in plain Python: read it first.
   The files are one translation unit, in the order of use. */

#include "records.h"
#include "noise.c"
#include "clock.c"
#include "events.c"
#include "bookkeeping.c"
#include "server.c"
#include "dropped_gradients.c"
#include "order.c"
#include "lockstep.c"
#include "ahead.c"
#include "barriers.c"
#include "detection.c"
#include "starts.c"
#include "tree.c"
#include "gathering.c"
#include "updates.c"
#include "races.c"
#include "refiling.c"
#include "queues.c"
#include "disband.c"
#include "retiming.c"
#include "failing.c"
#include "view_rows.c"
#include "columns.c"
#include "clusters.c"

/* What the driver is asked before the next event; GO_ON for nothing. */
static int wanted(struct job *m) {
    if (m->overrun) return OVERRUN;
    if (m->call >= 0) return REDUCE;
    if (m->asks_server) return SERVE;
    if (m->out >= 0) return DURATIONS;
    if (m->stop != GO_ON) return (int)m->stop;
    if (m->crowded) return ROOM;
    if (m->spent >= m->budget) return PAUSE;
    if (m->updates == m->update_log_size || m->members + m->workers > m->member_log_size)
        return FLUSH;
    if (m->keeps_steps && m->steps + m->workers > m->step_log_size) return FLUSH;
    if (m->keeps_fates && m->fates + m->kept_size + m->workers > m->fate_log_size) return FLUSH;
    return GO_ON;
}

/* The next event happens. */
static void handle(struct job *m, struct event_row e) {
    whole kind = e.order >> KIND, key = e.order & KEY;
    m->now = e.time;
    if (kind == CLOSE || kind == EXPIRE) close_quorum(m, key);
    else if (kind == END && e.what < 0) job_ended(m);
    else if (kind == END) collective_ended(m, e.what, 0);
    else if (e.what < 0) collective_ended(m, -1 - e.what, 1);
    else if (m->ranks[key].state == PUSHING) arrived(m, key);
    else finished(m, key);
}

/* What an update was about to let go before the driver had to act; after a checkpoint that costs
   time it pauses so much more. */
static void let_go(struct job *m) {
    double pause = m->pause;
    flag may_lockstep = m->may_lockstep;
    if (m->cost > 0) {
        disband_all(m);
        m->may_lockstep = 0; m->pause += m->cost; m->cost = 0.0;
    }
    whole closing = m->to_release;
    m->to_release = -1;
    if (goes_alone(m, RACE)) restart(m, 0);
    else if (goes_alone(m, QUEUED)) go_on_alone(m);
    else release(m, closing, -1);
    m->pause = pause; m->may_lockstep = may_lockstep;
}

/* After a review. */
static void go_on(struct job *m) {
    m->reviewing = 0; m->reviewed_updates = m->version;
    m->reviewed_samples = m->samples; m->reviewed_time = m->now;
    let_go(m);
}

/* After a checkpoint; a review may be due at the same update. */
static void go_on_saved(struct job *m) {
    m->saving = 0;
    if (due(m) && !pass_by(m)) m->stop = REVIEW;
    else let_go(m);
}

/* Go on to the next moment at which the driver must act; events at `until` included. */
EXPORT int advance(struct job *m, double until) {
    m->spent = 0;
    if (m->saving) go_on_saved(m);
    else if (m->reviewing) go_on(m);
    for (;;) {
        int call = wanted(m);
        m->reviewing = call == REVIEW; m->saving = call == CHECKPOINT;
        if (call == m->stop) m->stop = GO_ON;
        if (call != GO_ON) return call;
        if (goes_alone(m, RACE) || goes_alone(m, QUEUED)) {
            if (!(goes_alone(m, RACE) ? run_race(m, until) : run_queue(m, until))) disband_all(m);
            continue;
        }
        const struct event_row *e = first_event(m);
        if (m->take_due && (!e || e->time > m->now)) { /* comes last of its instant (rule 15) */
            take(m);
            continue;
        }
        if (!e || e->time == INFINITY) return STALLED;
        if (e->time > until) return HORIZON;
        handle(m, pop(m->events, &m->scheduled));
    }
}

/* The run ends: what is in flight is counted as far as it came. */
EXPORT void end(struct job *m) {
    disband_all(m);
    for (whole rank = 0; rank < m->workers; rank++) {
        struct rank_row *r = &m->ranks[rank];
        if (r->state == NOBODY) continue;
        close_cycle(m, rank);
        r->prepared = 0;
        if (r->state != GONE) tell(m, rank, IN_FLIGHT, -1, 0.0, 1);
    }
}

/* The layout, for Python: each record and its fields, then the tables; and the size of each. */
#define FIELD_TEXT(type, name) #type " " #name " 1,"
#define ARRAY_TEXT(type, name, count) #type " " #name " " #count ","
#define RECORD_TEXT(name, FIELDS) #name "_row:" FIELDS(FIELD_TEXT, ARRAY_TEXT) "\n"
#define TABLE_TEXT(type, name) #type " " #name ","
#define WORD_TEXT(word) #word ","
#define RECORD_SIZE(name, FIELDS) sizeof(struct name##_row),
EXPORT const char layout[] = RECORDS(RECORD_TEXT) "tables:" TABLES(TABLE_TEXT) "\nscalars:" SCALARS(
    FIELD_TEXT, ARRAY_TEXT) "\nstops:" STOPS(WORD_TEXT) "\nstates:" STATES(WORD_TEXT);
EXPORT const whole sizes[] = {RECORDS(RECORD_SIZE) sizeof(struct job)};
