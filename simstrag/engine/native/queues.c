/* A plan's only quorum through a server where each gradient is an update of its own.

   The server is first in first out, so the next update is that of the gradient that arrives next,
   at the end of its job; a tournament among the arrivals says which.  Of each rank the first two
   cache lines of its record are all that its next update needs, and are kept; what is stale in
   `ranks` meanwhile stands at the top of lockstep.c. */

/* The winner of a match, or the rank that enters the tournament there. */
static inline whole winner_of(struct job *m, whole match) {
    return match >= m->workers ? match - m->workers : m->winners[match];
}

/* Note when a gradient arrives; infinity for a rank that has none under way. */
static inline void await_arrival(struct job *m, whole rank, double time) {
    whole winner = rank;
    m->arrivals[rank] = time;
    for (whole match = m->workers + rank; match > 1; match /= 2) {
        whole rival = winner_of(m, match ^ 1);
        double other = m->arrivals[rival];
        whole loses = (other < time) | ((other == time) & (rival < winner));
        winner += (rival - winner) * loses; /* no branch, which no hardware would predict */
        time = least(other, time);
        m->winners[match / 2] = winner;
    }
}

/* The rank whose gradient arrives next; of equal arrivals the lowest rank. */
static inline whole first_to_arrive(struct job *m) { return winner_of(m, 1); }

/* Account for the last step, pull, and begin the next. */
static void start_queued(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    double time = m->now, got = r->pulled + m->pull, start = time + m->pull;
    double work = draw(m, rank) * effort(m, r->share);
    struct cycle c =
        cycle_of(time, r->pulled, got, r->finish, r->arrival - r->finish + m->service);
    account_cycle(r, c);
    if (m->holds && r->finish > m->trace_end && c.compute != 0.0)
        m->beyond += most(0.0, r->finish - most(got, m->trace_end));
    r->pulled = time; r->version = m->version; r->seen = m->samples;
    r->started++;
    r->finish = start + work * r->rate;
    if (r->finish > r->until)
        r->finish =
            follow(m, rank, 2 * m->loaded + r->amp, start, work, 0, &r->rate, &r->until);
    r->arrival = r->finish + m->push;
    await_arrival(m, rank, r->arrival);
    m->started++; m->amp += r->amp; m->rebatched += r->share != 1.0; m->asked += r->samples;
}

/* After its update a rank starts, if the bound lets it, and so do those that the bound frees. */
static void go_on_alone(struct job *m) {
    whole rank = m->quorums[0].pending, first = rank, last = rank;
    m->quorums[0].pending = -1;
    m->ranks[rank].blocked = 1;
    m->blocked++;
    if (is_ahead(m, &m->ranks[rank])) await_arrival(m, rank, INFINITY);
    if (m->freed) {
        m->freed = 0; first = 0; last = m->workers - 1;
    }
    for (whole other = first; other <= last; other++) {
        struct rank_row *r = &m->ranks[other];
        if (!r->blocked || is_ahead(m, r)) continue;
        r->blocked = 0; m->blocked--;
        seen(m);
        start_queued(m, other);
    }
}

/* Rule 12 for one gradient. */
static void update_alone(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    whole had = m->samples, staleness = m->version - r->version;
    if (!m->own) m->began_at = had;
    learn(m, r->samples, r->seen);
    note_drift(m, 1, had, r->seen);
    r->applied++; r->staleness += staleness;
    if (m->shows) {
        double got = r->pulled + m->pull;
        show_step(m, rank, r->finish - got, (double)r->samples / m->batch,
                  got - r->pulled + (r->arrival - r->finish), r->amp, 0);
    }
    double progress = new_version(m, 1);
    if (is_logged(m)) write_update(m, 1, (double)staleness, staleness, progress, &rank, 1, -1);
    count(m, rank);
    if (goes_on(m, progress)) go_on_alone(m);
}

/* Update after update, until one would come later or the driver is asked for something. */
static void run_queue(struct job *m, double until) {
    struct quorum_row *q = &m->quorums[0];
    while (q->pending < 0 && wanted(m) == GO_ON) {
        whole rank = first_to_arrive(m);
        double end = most(m->arrivals[rank], m->now) + m->service;
        if (!(end <= until) || end == INFINITY) {
            disband(m, 0);
            return;
        }
        q->pending = rank; m->now = end;
        update_alone(m, rank);
    }
}

/* Whether a rank computes or pushes, waits for the server, or is blocked. */
static int fits_a_queue(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    if (r->recorded || r->mark >= 0 || r->kept || r->start != r->got ||
        r->got != r->pulled + m->pull || r->amp != r->next_amp || r->share != r->next_share)
        return 0;
    if (r->state == PUSHING) return r->arrival == r->finish + m->push;
    if (r->state == CLOSED) { /* no cutoff is kept here, and this one's still counts (rule 24) */
        struct closing_row *c = &m->closings[r->closing];
        return c->via == SERVER && c->count == 1 && c->refiled == m->refiled && c->cutoff < 0 &&
               r->job == WAITING && r->job_arrival == r->finish + m->push;
    }
    return r->state == COMPUTING || (r->state == GONE && r->blocked);
}

/* After an update: no step is an event any longer, unless a rank is at something else. */
static void form_queue(struct job *m) {
    struct quorum_row *q = &m->quorums[0];
    if (m->serving || m->judged || m->on_block || m->version < q->try_at) return;
    for (whole rank = 0; rank < m->workers; rank++)
        if (!fits_a_queue(m, rank)) {
            q->try_at = m->version + m->workers;
            return;
        }
    for (whole rank = 0; rank < m->workers; rank++) m->arrivals[rank] = INFINITY;
    for (whole match = m->workers - 1; match > 0; match--)
        m->winners[match] = winner_of(m, 2 * match);
    for (whole rank = 0; rank < m->workers; rank++) {
        struct rank_row *r = &m->ranks[rank];
        if (r->state == CLOSED) free_closing(m, r->closing);
        r->arrival = r->finish + m->push; r->due = NAN;
        follow(m, rank, 2 * m->loaded + r->amp, r->start, 0.0, 0, &r->rate, &r->until);
        if (!r->blocked) await_arrival(m, rank, r->arrival);
    }
    q->lockstep = 1; q->pending = q->ready = -1; q->ready_count = 0;
    m->scheduled = m->queued = 0; m->take_due = 0;
}

/* What a view sees of a rank in a queue. */
static void report_queued(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    r->start = r->pulled + m->pull; r->step = r->started - 1;
    r->state = r->blocked || rank == m->quorums[0].pending ? GONE : COMPUTING;
}

/* Some compute, some push, and those that have arrived wait for the server in that order. */
static void disband_queue(struct job *m) {
    whole n = 0, pending = m->quorums[0].pending;
    double now = m->now;
    for (whole rank = 0; rank < m->workers; rank++) {
        struct rank_row *r = &m->ranks[rank];
        restate(r, r->pulled + m->pull);
        report_queued(m, rank);
        if (r->state == GONE) {
            r->pushed = r->arrival - r->finish; r->busy = m->service;
        } else if (r->arrival <= now) {
            m->entries[n++] = (struct entry_row){r->arrival, rank};
        } else if (r->finish > now) {
            await(m, rank, r->finish);
        } else {
            r->state = PUSHING;
            await(m, rank, r->arrival);
        }
    }
    if (pending >= 0) {
        whole closing = reopen(m, m->service);
        enter(m, pending, closing);
        m->ranks[pending].state = GONE;
    }
    sort_entries(m, n);
    for (whole k = 0; k < n; k++) {
        m->now = m->entries[k].time;
        arrived(m, m->entries[k].rank);
        close_quorum(m, 0);
    }
    m->now = now;
}
