/* Plans whose quorums all wait for gradients of any of their members through the server.

   The server is first in first out, so its next job is that of the gradient that arrives next; a
   tournament among the arrivals says which.  An update is made at the end of the job that brings
   its quorum the last gradient that it needs.  Nothing is an event or a job of the server then;
   the gradients that are served, but not applied, are those that are ready in their quorums.
   What is stale in `ranks` meanwhile stands at the top of lockstep.c. */

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
        winner += (rival - winner) & -loses; /* no branch, which no hardware would predict */
        time = least(other, time);
        m->winners[match / 2] = winner;
    }
}

/* Account for the last step, pull, and begin the next. */
static void start_queued(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    double time = m->now, got = r->pulled + m->pull, start = time + m->pull;
    double work = draw(m, rank) * units(m, r->share);
    double busy = r->arrival - r->finish + m->service;
    account_cycle(r, cycle_of(time, r->pulled, got, r->finish, busy));
    if (m->holds) m->beyond += beyond(m, rank, 0, got, r->finish);
    r->state = COMPUTING; r->pulled = time; r->version = m->version; r->seen = m->samples;
    r->started++;
    whole variant = 2 * m->loaded + r->amp;
    if (m->judged) { /* in full precision: by the same rate, where that is of the same pieces */
        int alike = r->stretch[variant] == r->stretch[0];
        if (m->overlaps) alike &= r->launch[variant] == r->launch[0] && r->share == 1.0;
        double end = alike ? start + r->rate : INFINITY;
        m->clean[rank] = end < r->until ? end - start : noise_free(m, rank, 0, start);
    }
    r->finish = start + work * r->rate;
    if (r->finish >= r->until)
        r->finish = follow(m, rank, variant, start, work, r->share, 0, &r->rate, &r->until);
    r->work = work; r->launched = NAN;
    r->arrival = r->finish + m->push;
    await_arrival(m, rank, r->arrival);
    m->started++; m->amp += r->amp; m->rebatched += r->share != 1.0; m->asked += r->samples;
}

/* A rank starts if it waits to, and the bound lets it. */
static void start_free(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    if (!r->blocked || is_ahead(m, r)) return;
    r->blocked = 0; m->blocked--;
    seen(m);
    start_queued(m, rank);
}

/* After their update ranks start, if the bound lets them, and so do those that the bound frees. */
static void go_on_alone(struct job *m) {
    whole first = m->quorums[0].pending;
    m->quorums[0].pending = -1;
    for (whole rank = first; rank >= 0; rank = m->ranks[rank].link) {
        m->ranks[rank].blocked = 1;
        m->blocked++;
        if (is_ahead(m, &m->ranks[rank])) await_arrival(m, rank, INFINITY);
    }
    if (!m->freed)
        for (whole rank = first; rank >= 0; rank = m->ranks[rank].link) start_free(m, rank);
    else
        for (whole rank = 0; rank < m->workers; rank++) start_free(m, rank);
    m->freed = 0;
}

/* Rule 12 for the ready gradients of a quorum. */
static void update_queued(struct job *m, struct quorum_row *q) {
    whole n = 0;
    struct tally t = {.had = m->samples};
    for (whole rank = q->ready; rank >= 0; rank = m->ranks[rank].link) m->scratch[n++] = rank;
    sort(m, n);
    for (whole k = 0; k < n; k++) {
        whole rank = m->scratch[k];
        struct rank_row *r = &m->ranks[rank];
        whole staleness = m->version - r->version;
        count(m, rank);
        learn(m, &t, 1, r->samples, staleness, r->seen);
        r->applied++; r->staleness += staleness; r->state = GONE;
        r->link = k + 1 < n ? m->scratch[k + 1] : -1;
        if (m->shows) {
            double got = r->pulled + m->pull;
            show_step(m, rank, r->finish - got, (double)r->samples / m->batch,
                      got - r->pulled + (r->arrival - r->finish), r->amp, 0);
        }
    }
    m->quorums[0].pending = m->scratch[0];
    q->ready = -1; q->ready_count = 0;
    if (conclude(m, &t, n, n == q->size ? q->token : -1)) go_on_alone(m);
}

/* The next job of the server, if it ends by `until`; whether it does. */
static int run_queue(struct job *m, double until) {
    whole rank = winner_of(m, 1);
    struct rank_row *r = &m->ranks[rank];
    struct quorum_row *q = &m->quorums[m->quorum_count > 1 ? r->quorum : 0]; /* in the cache */
    double end = most(m->arrivals[rank], m->now) + m->service;
    if (!(end <= until) || end == INFINITY) return 0;
    m->now = end; r->state = READY;
    append(m, rank, &q->ready, &q->ready_last);
    if (++q->ready_count == q->needed) update_queued(m, q); /* its next arrival is noted then */
    else await_arrival(m, rank, INFINITY);
    return 1;
}

/* Whether a rank computes, pushes, waits for the server, or for others after it. */
static int fits_a_queue(struct job *m, const struct rank_row *r) {
    if (r->state == CLOSED) { /* no cutoff is kept here, and this one's still counts (rule 24) */
        struct closing_row *c = &m->closings[r->closing];
        if (c->refiled != m->refiled || c->cutoff >= 0 || c->undone == 0) return 0;
    }
    if (r->state == CLOSED || r->state == READY)
        return (r->job == WAITING || r->job == SERVED) && r->job_arrival == r->finish + m->push;
    return r->state == COMPUTING || (r->state == PUSHING && r->due == r->finish + m->push);
}

/* After starts: no step is an event any longer, unless a rank does not fit. */
static void form_queue(struct job *m) {
    struct quorum_row *first = &m->quorums[0];
    if (m->serving || m->blocked || m->on_block || m->applied < first->try_at) return;
    first->try_at = m->applied + m->workers / 32;
    double served = -INFINITY, waiting = INFINITY; /* when the last, the first of them arrived */
    for (struct quorum_row *q = first; q < first + m->quorum_count; q++)
        if (q->ready_count >= q->needed) return; /* it closes now */
    for (whole rank = 0; rank < m->workers; rank++) {
        const struct rank_row *r = &m->ranks[rank];
        if (r->recorded || r->mark >= 0 || r->kept || r->start != r->got ||
            r->got != r->pulled + m->pull || r->amp != m->next_amp[rank] || r->share != m->next_share[rank] ||
            !fits_a_queue(m, r))
            return;
        if (r->job == SERVED) served = most(served, r->job_arrival);
        if (r->job == WAITING) waiting = least(waiting, r->job_arrival);
    }
    if (served >= waiting) return; /* filed anew, one was served out of order */
    for (struct quorum_row *q = first; q < first + m->quorum_count; q++) {
        q->ready = -1; q->ready_count = 0;
    }
    for (whole rank = 0; rank < m->workers; rank++) {
        struct rank_row *r = &m->ranks[rank];
        if (r->state == CLOSED && rank == m->closings[r->closing].leader)
            free_closing(m, r->closing);
        r->state = COMPUTING; r->arrival = r->finish + m->push; r->due = NAN;
        if (m->judged) m->clean[rank] = noise_free(m, rank, 0, r->start);
        follow(m, rank, 2 * m->loaded + r->amp, r->start, 0.0, r->share, 0, &r->rate, &r->until);
        if (r->job == SERVED) {
            struct quorum_row *q = &m->quorums[r->quorum];
            r->state = READY; q->ready_count++;
            append(m, rank, &q->ready, &q->ready_last);
        }
        await_arrival(m, rank, r->job == SERVED ? INFINITY : r->arrival);
    }
    first->lockstep = 1; first->pending = -1;
    m->scheduled = m->queued = 0; m->take_due = 0;
}

/* A rank has computed since it had its parameters, and no event or job is its own. */
static void restate(struct rank_row *r, double got) {
    r->got = r->start = got; r->relayed = r->pulled; r->sent = r->ended = r->finish; r->step = r->started - 1;
    r->pushed = r->busy = 0.0; r->due = NAN; r->job = NO_JOB; r->ticket = r->relay = -1;
}

/* Some compute, some push, and those that have arrived wait for the server in that order. */
static void disband_queue(struct job *m) {
    whole n = 0, pending = m->quorums[0].pending;
    double now = m->now;
    for (whole rank = 0; rank < m->workers; rank++) {
        struct rank_row *r = &m->ranks[rank];
        restate(r, r->pulled + m->pull);
        if (m->overlaps && isnan(r->launched)) note_streams(m, rank, r->got, r->work);
        if (r->state == GONE) {
            r->pushed = r->arrival - r->finish; r->busy = m->service;
        } else if (r->state == READY) {
            r->pushed = r->arrival - r->finish; r->job = SERVED; r->job_arrival = r->arrival;
        } else if (r->arrival <= now) {
            push(m->entries, &n, (struct event_row){r->arrival, rank, 0, 0});
        } else if (r->finish > now) {
            await(m, rank, r->finish);
        } else {
            r->state = PUSHING;
            await(m, rank, r->arrival);
        }
    }
    if (pending >= 0) {
        whole closing = reopen(m, m->ranks[pending].quorum, m->service);
        for (whole rank = pending, onward; rank >= 0; rank = onward) {
            onward = m->ranks[rank].link;
            enter(m, rank, closing);
            m->ranks[rank].state = GONE;
        }
    }
    while (n > 0) {
        struct event_row e = pop(m->entries, &n);
        whole index = m->ranks[e.order].quorum;
        m->now = e.time;
        arrived(m, e.order);
        if (m->quorums[index].ready_count == m->quorums[index].needed) close_quorum(m, index);
    }
    m->now = now;
}
