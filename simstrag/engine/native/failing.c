/* Failures: ranks that go no further, plans without them, and restarts (rules 19a to 19c).  Every
   rank is advanced by events. */

/* From now on no step and no push of a rank ends. */
EXPORT void fail(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    if (r->state == COMPUTING && !isnan(r->due)) r->finish = r->ended = INFINITY;
    r->due = NAN; r->failed = 1;
}

/* A lost rank's gradient is aborted, unless it is in a closing; and with it those of a quorum whose
   members sum their gradients.  They may start at `now`. */
EXPORT void lose(struct job *m, double now, whole lost) {
    const struct rank_row *l = &m->ranks[lost];
    const struct quorum_row *q = l->named ? &m->quorums[l->quorum] : NULL;
    int sums = q && q->via != SERVER && q->needed == q->size && l->parent < 0;
    m->now = now;
    for (whole k = 0; k < (sums ? q->size : 1); k++) {
        whole rank = sums ? m->lists[q->members_at + k] : lost;
        struct rank_row *r = &m->ranks[rank];
        if (r->state == NOBODY || r->state == GONE || r->state == CLOSED) continue;
        cancel(m, rank);
        r->idle = 1;
    }
}

/* All ranks stop, and lose what they hold; nothing is under way. */
EXPORT void halt(struct job *m, double now) {
    m->now = now;
    for (whole rank = 0; rank < m->workers; rank++) {
        struct rank_row *r = &m->ranks[rank];
        if (r->prepared) {
            cancel(m, rank);
            leave_run_on(m, rank);
        }
        if (r->state != NOBODY && r->state != GONE) cancel(m, rank);
        r->ahead = r->ran_on = r->count = 0;
        r->blocked = 0; r->idle = 1; r->last_amp = -1;
    }
    for (whole k = 0; k < m->closings_size; k++) {
        m->closings[k].number++;
        m->closings[k].head = k + 1 < m->closings_size ? k + 1 : -1;
    }
    m->free = 0; m->to_release = m->to_start = -1;
    m->scheduled = m->queued = m->blocked = 0;
    m->serving = m->take_due = 0;
    m->refiled++;
}

/* Ranks that wait to start do so now, after the plan has changed. */
EXPORT void start_waiting(struct job *m, double now) {
    m->now = now;
    release(m, -1, -1);
}
