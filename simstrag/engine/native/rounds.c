/* A plan's only barrier, in lockstep: round after round without an event (see lockstep.c). */

/* From the closing that comes next on, as long as nothing else can happen; whether it did. */
static int goes_round(struct job *m, whole index, double until) {
    struct quorum_row *q = &m->quorums[index];
    if (!q->lockstep || q->via != ALLREDUCE || m->quorum_count > 1 || m->scheduled > 1 ||
        m->serving || m->take_due)
        return 0;
    double time = most(q->latest, m->now), end = reduced(m, index, q->size, time);
    if (end > until) return 0;
    pop(m->events, &m->scheduled);
    m->lapping = 1;
    for (;;) {
        whole closing = open_closing(m, index);
        close_all(m, index, closing);
        m->closings[closing].busy = end - time;
        m->now = end;
        update(m, closing);
        if (q->closing >= 0) break;
        time = most(q->latest, m->now);
        end = reduced(m, index, q->size, time);
        if (end > until || wanted(m) != GO_ON) {
            schedule(m, time, CLOSE, index, m->refiled);
            break;
        }
    }
    m->lapping = 0;
    return 1;
}
