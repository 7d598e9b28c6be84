/* Two heaps: events in order of (time, kind, key), and jobs of the server in order of (arrival,
   rank, number).  Entries that were called off stay in them until they come to the head. */

/* From this bit of an order on stands its kind, below it a rank, quorum or number. */
enum { KIND = 56 };
static const whole KEY = ((whole)1 << KIND) - 1;

static inline int sooner(const struct event_row *a, const struct event_row *b) {
    if (a->time != b->time) return a->time < b->time;
    return a->order < b->order || (a->order == b->order && a->serial < b->serial);
}

static void push(struct event_row *heap, whole *n, struct event_row e) {
    whole k = (*n)++;
    for (; k > 0 && sooner(&e, &heap[(k - 1) / 2]); k = (k - 1) / 2) heap[k] = heap[(k - 1) / 2];
    heap[k] = e;
}

static struct event_row pop(struct event_row *heap, whole *n) {
    struct event_row first = heap[0], e = heap[--*n];
    whole k = 0;
    for (whole child; (child = 2 * k + 1) < *n; k = child) {
        if (child + 1 < *n && sooner(&heap[child + 1], &heap[child])) child++;
        if (!sooner(&heap[child], &e)) break;
        heap[k] = heap[child];
    }
    heap[k] = e;
    return first;
}

/* Forget what was called off. */
static void compact(struct job *m, struct event_row *heap, whole *n,
                    int (*stands)(struct job *, const struct event_row *)) {
    whole old = *n;
    *n = 0;
    for (whole k = 0; k < old; k++)
        if (stands(m, &heap[k])) push(heap, n, heap[k]);
}

/* When the window or grace of a quorum is over, which has begun. */
static double expiry(struct job *m, const struct quorum_row *q) {
    return m->ranks[q->grace ? q->opening : q->ready].arrival + q->window;
}

/* How many ready gradients begin the window or grace of a quorum. */
static whole opens_at(const struct quorum_row *q) { return q->grace ? q->needed : 1; }

/* Whether a quorum closes at once: with a grace, if it need not wait for any member (rule 17a). */
static int is_full(const struct quorum_row *q) {
    return q->grace ? q->arrived == q->size : q->ready_count >= q->needed;
}

/* Whether an event was not called off. */
static int stands(struct job *m, const struct event_row *e) {
    whole kind = e->order >> KIND;
    if (kind == ARRIVE && e->what >= 0) {
        struct rank_row *r = &m->ranks[e->order];
        return r->step == e->what && r->due == e->time;
    }
    if (kind == ARRIVE || kind == END) return 1;
    struct quorum_row *q = &m->quorums[e->order & KEY];
    if (kind == EXPIRE)
        return e->what == m->refiled && q->ready_count >= opens_at(q) && expiry(m, q) <= e->time;
    if (q->lockstep) return q->closing < 0 && e->time == q->latest;
    return e->what == m->refiled && is_full(q);
}

/* what: of a rank's event its step, of a quorum's how often was filed anew, else a closing; -1 of a
   job of the server.  A closing that arrives at the server is told from a rank by a negative
   number. */
static void schedule(struct job *m, double time, whole kind, whole key, whole what) {
    if (m->scheduled == m->events_size) compact(m, m->events, &m->scheduled, stands);
    push(m->events, &m->scheduled, (struct event_row){time, kind << KIND | key, 0, what});
}

/* A rank's step or push ends then. */
static void await(struct job *m, whole rank, double time) {
    m->ranks[rank].due = time;
    schedule(m, time, ARRIVE, rank, m->ranks[rank].step);
}

/* The next event that stands, at the head of its heap; NULL if there is none. */
static struct event_row *first_event(struct job *m) {
    while (m->scheduled > 0 && !stands(m, &m->events[0])) pop(m->events, &m->scheduled);
    return m->scheduled > 0 ? &m->events[0] : NULL;
}
