/* Jobs that share nodes: others change the speeds of a job, and read what it used (rule 8a). */

/* When something ends that was to end then, if from `now` on it takes `ratio` times as long. */
static double retimed(double end, double now, double ratio) {
    return ratio == 1.0 || end <= now ? end : now + (end - now) * ratio;
}

/* The ratio for a collective among the contributors of a closing, by their slowest networks. */
static double net_ratio(struct job *m, whole closing, const double *old, const double *new) {
    double before = 0.0, after = 0.0;
    for (whole rank = m->closings[closing].head; rank >= 0; rank = m->ranks[rank].link) {
        if (m->ranks[rank].aboard >= 0) continue;
        before = most(before, old[rank]);
        after = most(after, new[rank]);
    }
    return after / before;
}

/* A collective, the push of a sum, or the job in service ends at another time. */
static void retime_event(struct job *m, struct event_row *e, double now, const double *old,
                         const double *new, double service) {
    whole kind = e->order >> KIND, first = e->what, leader;
    double end = e->time;
    if (kind == END && e->what >= 0) {
        e->time = retimed(end, now, net_ratio(m, first, old, new));
    } else if (kind == END) {
        e->time = retimed(end, now, service);
        first = m->server_closing;
    } else if (kind == ARRIVE && e->what < 0) {
        first = -1 - e->what;
        leader = m->closings[first].leader;
        e->time = retimed(end, now, new[leader] / old[leader]);
    }
    for (whole c = first; c >= 0 && e->time != end; c = kind == END && e->what < 0 ? m->closings[c].beside : -1)
        m->closings[c].busy += e->time - end;
}

/* Parameters come to a rank at another time. */
static void retime_pull(struct rank_row *r, double now, const double *old, const double *new) {
    double own = new[r->puller] / old[r->puller], relayed = r->relayed;
    if (relayed <= now) {
        r->got = retimed(r->got, now, own);
        return;
    }
    r->relayed = retimed(relayed, now, new[r->relay] / old[r->relay]);
    if (r->relayed != relayed || own != 1.0) r->got = r->relayed + (r->got - relayed) * own;
}

/* When a stream of a step ends, which had `rest` seconds left when it began, or now. */
static double retimed_stream(double end, double begins, double was, double ratio) {
    if (end <= was || (begins == was && ratio == 1.0)) return end;
    return begins + (end - was) * ratio;
}

/* A rank's pull, step or push ends at another time.  launch, ratio: for the streams of a step. */
static void retime_rank(struct job *m, whole rank, double now, const double *old,
                        const double *new, double launch, double ratio) {
    struct rank_row *r = &m->ranks[rank];
    double end = r->due, got = r->got, was = most(r->start, now);
    if (r->state == PUSHING) {
        end = r->arrival = retimed(end, now, new[rank] / old[rank]);
    } else if (end > now) { /* it computes */
        if (got > now) retime_pull(r, now, old, new);
        if (r->got != got) r->start = r->got + (r->start - got);
        double begins = most(r->start, now);
        if (m->overlaps && r->finish < INFINITY) {
            r->launched = retimed_stream(r->launched, begins, was, launch);
            r->computed = retimed_stream(r->computed, begins, was, ratio);
            end = most(r->launched, r->computed);
        } else if (r->got != got || ratio != 1.0) {
            end = begins + (r->finish - was) * ratio;
        }
        r->finish = r->ended = end;
    }
    if (end != r->due && !isnan(end)) await(m, rank, end); /* NaN: it waits for no event */
}

/* From `now` on, all that is under way goes on at another speed.  Every rank is advanced by events,
   and the driver has put the new step functions in place.
   launch, compute: of each rank, new over old seconds of launching and of its step.
   old, new: slowdowns of its network.  service: new over old seconds of a job of the server. */
EXPORT void retime(struct job *m, double now, const double *launch, const double *compute,
                   const double *old, const double *new, double service) {
    whole n = m->scheduled;
    for (whole k = 0; k < n; k++)
        if (stands(m, &m->events[k])) retime_event(m, &m->events[k], now, old, new, service);
    m->scheduled = 0;
    for (whole k = 0; k < n; k++) push(m->events, &m->scheduled, m->events[k]); /* a heap again */
    for (whole rank = 0; rank < m->workers; rank++)
        retime_rank(m, rank, now, old, new, launch[rank], compute[rank]);
}

/* Seconds until `now` that each rank computed, then those that it communicated; then those that the
   steps pause that it has begun.  Every rank is advanced by events. */
EXPORT void usage(struct job *m, double now, double *seconds) {
    for (whole k = 0; k < m->scheduled; k++) {
        const struct event_row *e = &m->events[k];
        if (e->order >> KIND != END || e->what < 0) continue;
        struct closing_row *c = &m->closings[e->what];
        for (whole rank = c->head; rank >= 0; rank = m->ranks[rank].link)
            if (m->ranks[rank].aboard < 0) m->ranks[rank].busy = most(c->busy - (e->time - now), 0.0);
    }
    for (whole rank = 0; rank < m->workers; rank++) {
        struct rank_row *r = &m->ranks[rank];
        double ended = least(r->ended, now);
        double pushed = r->state == PUSHING ? now - r->sent : r->pushed;
        struct cycle c = {0.0, 0.0, 0.0};
        if (r->state != NOBODY)
            c = cycle_of(now, r->pulled, least(r->got, now), ended, pushed + r->busy);
        seconds[rank] = r->compute + (c.compute - least(c.compute, r->paused));
        seconds[m->workers + rank] = r->communication + c.communication;
        seconds[2 * m->workers + rank] = r->pauses + (r->state == NOBODY ? 0.0 : r->paused);
    }
}

/* When something happens next, if nothing changes from outside. */
EXPORT double next_event(struct job *m) {
    const struct event_row *e = first_event(m);
    return m->take_due ? m->now : e ? e->time : INFINITY;
}
