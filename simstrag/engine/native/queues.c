/* A plan's only quorum through a server where each gradient is an update of its own.

   The server is first in first out, so the next update is that of whose gradient arrives next, at
   the end of its job.  Of each rank a card says all that its next update needs, and a tree of the
   least arrival says whose update is next; what is stale in `ranks` meanwhile stands at the top of
   lockstep.c. */

/* Note when a gradient arrives; infinity for who has none under way. */
static inline void await_arrival(struct job *m, whole rank, double time) {
    double *tree = m->tree;
    whole k = m->tree_size / 2 + rank;
    tree[k] = time;
    while (k > 1) {
        time = least(time, tree[k ^ 1]);
        k >>= 1;
        tree[k] = time;
    }
}

/* Whose gradient arrives next; of equal arrivals the lowest rank. */
static inline whole first_to_arrive(struct job *m) {
    double *tree = m->tree, time = tree[1];
    whole half = m->tree_size / 2, k = 1;
    while (k < half) k = 2 * k + (tree[2 * k] != time);
    return k - half;
}

/* Account for the last step, see `close_cycle`; pull, and begin the next. */
static void start_card(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    struct card_row *card = &m->cards[rank];
    double time = m->now, pulled = card->pulled, finish = card->finish, got = pulled + m->pull;
    double seconds = most(finish - got, 0.0), fetched = got - pulled;
    double after = least(card->arrival - finish + m->service, most(time - finish, 0.0));
    card->compute += seconds;
    card->communication += fetched + after;
    card->wait += most(time - pulled - fetched - seconds - after, 0.0);
    if (m->holds && finish > m->trace_end && seconds != 0.0)
        m->beyond += most(0.0, finish - most(got, m->trace_end));
    card->pulled = time; card->version = m->version; card->seen = m->samples;
    double start = time + m->pull, work = card->effort;
    if (m->noisy) work = factor(m, rank, card->drawn) * card->effort;
    card->drawn++;
    finish = start + work * card->rate;
    if (finish > card->until) {
        whole variant = 2 * m->loaded + r->amp;
        finish = finish_from(m, rank, variant, start, work);
        segment(m, rank, variant, finish, &card->rate, &card->until);
    }
    card->finish = finish; card->arrival = finish + m->push;
    await_arrival(m, rank, card->arrival);
    m->started++; m->amp += r->amp; m->rebatched += r->share != 1.0; m->asked += r->samples;
}

static void start_unless_blocked(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    if (r->blocked && !(r->bound >= 0 && m->cards[rank].count - m->least > r->bound)) {
        r->blocked = 0; m->blocked--;
        seen(m);
        start_card(m, rank);
    }
}

/* After its update a rank starts, if the bound lets it, with whom the bound lets go by now. */
static void go_on_alone(struct job *m) {
    whole rank = m->quorums[0].pending;
    m->quorums[0].pending = -1;
    if (!m->bounded) {
        seen(m);
        start_card(m, rank);
        return;
    }
    m->ranks[rank].blocked = 1;
    m->blocked++;
    await_arrival(m, rank, INFINITY);
    if (m->freed) {
        m->freed = 0;
        for (whole other = 0; other < m->workers; other++) start_unless_blocked(m, other);
    } else {
        start_unless_blocked(m, rank);
    }
}

/* Rule 16: one gradient more of a rank; see `count`. */
static void count_card(struct job *m, whole rank) {
    whole was = m->cards[rank].count++;
    if (was != m->least || --m->at_least > 0) return;
    whole fewest = INT64_MAX, many = 0;
    for (whole other = 0; other < m->workers; other++) {
        whole count = m->cards[other].count;
        if (count < fewest) {
            fewest = count;
            many = 0;
        }
        many += count == fewest;
    }
    m->least = fewest; m->at_least = many; m->freed = 1;
}

/* Rule 12 for one gradient. */
static void update_alone(struct job *m, whole rank) {
    struct card_row *card = &m->cards[rank];
    whole had = m->samples, samples = card->samples, staleness = m->version - card->version;
    if (!m->own) m->began_at = had;
    m->own += samples;
    m->stale += samples * (m->began_at - card->seen);
    m->samples += samples; card->applied++; card->staleness += staleness;
    double drift = (double)(had - card->seen) / (m->workers * m->batch);
    m->deviation += drift * drift;
    if (m->shows) {
        double got = card->pulled + m->pull;
        show_step(m, rank, card->finish - got, (double)samples / m->batch,
                  got - card->pulled + (card->arrival - card->finish), m->ranks[rank].amp, 0);
    }
    m->applied++; m->spent++; m->version++;
    double progress = m->unknown ? NAN : m->booked + worth(m);
    if (m->every == 0 || m->version % m->every == 0)
        write_update(m, 1, (double)staleness, staleness, progress, &rank, 1, -1);
    if (m->bounded) count_card(m, rank);
    if (enough(m, progress)) m->stop = DONE;
    else if (due(m)) m->stop = REVIEW;
}

/* Update after update, until one would come later or the driver is asked for something. */
static void run_queue(struct job *m, double until) {
    struct quorum_row *q = &m->quorums[0];
    while (q->pending < 0 && wanted(m) == GO_ON) {
        whole rank = first_to_arrive(m);
        double end = most(m->tree[1], m->now) + m->service;
        if (!(end <= until) || end == INFINITY) {
            disband(m, 0);
            return;
        }
        m->now = end; q->pending = rank;
        update_alone(m, rank);
        if (m->stop == GO_ON) go_on_alone(m);
    }
}

/* Whether a rank computes or pushes, waits for the server, or is blocked. */
static int fits_a_card(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    if (r->recorded || r->mark >= 0 || r->start != r->got || r->got != r->pulled + m->pull ||
        r->amp != r->next_amp || r->share != r->next_share)
        return 0;
    if (r->state == PUSHING) return r->arrival == r->finish + m->push;
    if (r->state == CLOSED) { /* a card keeps no cutoff, and this one's still counts (rule 24) */
        struct closing_row *c = &m->closings[r->closing];
        return c->via == SERVER && c->count == 1 && c->refiled == m->refiled && c->cutoff < 0 &&
               r->job == WAITING && r->job_arrival == r->finish + m->push;
    }
    return r->state == COMPUTING || (r->state == GONE && r->blocked);
}

/* After an update: from `ranks` to cards, unless somebody is at something else. */
static void form_queue(struct job *m) {
    struct quorum_row *q = &m->quorums[0];
    if (m->serving || m->judged || m->on_block || m->version < q->try_at) return;
    for (whole rank = 0; rank < m->workers; rank++)
        if (!fits_a_card(m, rank)) {
            q->try_at = m->version + m->workers;
            return;
        }
    for (whole k = 0; k < m->tree_size; k++) m->tree[k] = INFINITY;
    for (whole rank = 0; rank < m->workers; rank++) {
        struct rank_row *r = &m->ranks[rank];
        if (r->state == CLOSED) free_closing(m, r->closing);
        m->cards[rank] = (struct card_row){.finish = r->finish,
                                           .arrival = r->finish + m->push,
                                           .pulled = r->pulled,
                                           .version = r->version,
                                           .seen = r->seen,
                                           .effort = effort(m, r->share),
                                           .samples = r->samples,
                                           .drawn = r->started - r->noise_from,
                                           .compute = r->compute,
                                           .communication = r->communication,
                                           .wait = r->wait,
                                           .applied = r->applied,
                                           .staleness = r->staleness,
                                           .count = r->count};
        struct card_row *card = &m->cards[rank];
        segment(m, rank, 2 * m->loaded + r->amp, r->start, &card->rate, &card->until);
        r->due = NAN;
        if (!r->blocked) await_arrival(m, rank, card->arrival);
    }
    q->lockstep = 1; q->pending = q->ready = -1; q->ready_count = 0; m->queueing = 1;
    m->scheduled = m->queued = 0; m->take_due = 0;
}

/* From a card to `ranks`; when it arrived, if it has and waits for the server, else infinity. */
static double from_card(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    struct card_row *card = &m->cards[rank];
    r->compute = card->compute; r->communication = card->communication; r->wait = card->wait;
    r->finish = r->ended = card->finish; r->arrival = card->arrival; r->pulled = card->pulled;
    r->got = r->start = card->pulled + m->pull; r->version = card->version; r->seen = card->seen;
    r->started = r->noise_from + card->drawn; r->step = r->started - 1; r->applied = card->applied;
    r->staleness = card->staleness; r->count = card->count; r->pushed = r->busy = 0.0; r->due = NAN;
    r->job = NO_JOB; r->ticket = -1; r->ahead = 0;
    if (r->blocked || rank == m->quorums[0].pending) {
        r->state = GONE; r->pushed = r->arrival - r->finish; r->busy = m->service;
        return INFINITY;
    }
    r->state = COMPUTING;
    if (r->arrival <= m->now) return r->arrival;
    if (r->finish > m->now) {
        expect(m, rank);
    } else {
        r->state = PUSHING; r->due = r->arrival;
        schedule(m, r->due, ARRIVE, rank, r->step);
    }
    return INFINITY;
}

/* Some compute, some push, and who has arrived waits for the server in that order. */
static void disband_queue(struct job *m) {
    struct quorum_row *q = &m->quorums[0];
    double now = m->now;
    whole n = 0;
    m->queueing = 0;
    for (whole rank = 0; rank < m->workers; rank++) {
        double arrival = from_card(m, rank);
        if (arrival < INFINITY) m->entries[n++] = (struct entry_row){arrival, rank};
    }
    if (q->pending >= 0) {
        whole closing = open_closing(m, 0);
        struct closing_row *c = &m->closings[closing];
        struct rank_row *r = &m->ranks[q->pending];
        c->head = c->last = c->leader = q->pending; c->count = 1; c->busy = m->service;
        r->closing = m->to_release = closing; r->link = -1;
    }
    sort_entries(m, n);
    for (whole k = 0; k < n; k++) {
        m->now = m->entries[k].time;
        arrived(m, m->entries[k].rank);
        close_quorum(m, 0);
    }
    m->now = now;
}
