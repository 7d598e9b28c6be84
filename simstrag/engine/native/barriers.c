/* Barriers and races in lockstep: a step of all is a few loops over columns.
   What is stale meanwhile stands at the top of lockstep.c. */

/* The end of a member's work, and the segment of its step function from which it goes on. */
static double follow_member(struct job *m, const struct quorum_row *q, whole p, double start,
                            double work) {
    whole rank = m->lists[p], variant = 2 * m->loaded + m->ranks[rank].amp;
    return follow(m, rank, variant, start, work, q->needed < q->size, &lane(m, RATE)[p],
                  &lane(m, UNTIL)[p]);
}

/* What its members compute from now on. */
static void measure(struct job *m, struct quorum_row *q) {
    q->samples = q->amp = q->rebatched = 0;
    for (whole p = q->members_at; p < q->members_at + q->size; p++) {
        struct rank_row *r = &m->ranks[m->lists[p]];
        q->samples += r->samples; q->amp += r->amp; q->rebatched += r->share != 1.0;
        lane(m, EFFORT)[p] = lane(m, WORK)[p] = effort(m, r->share);
        lane(m, SHARE)[p] = r->share; lane(m, AMP)[p] = r->amp;
        lane(m, SAMPLES)[p] = (double)r->samples;
    }
    q->won = q->samples;
}

/* After all members of a barrier or race started: it is in lockstep if they did so as one. */
static void fall_in(struct job *m, whole index) {
    struct quorum_row *q = &m->quorums[index];
    whole at = q->members_at, end = at + q->size;
    struct rank_row *lead = &m->ranks[m->lists[at]];
    if (q->shape == RACE && (m->serving || (m->shows && q->needed < q->size))) return;
    for (whole p = at; p < end; p++) {
        struct rank_row *r = &m->ranks[m->lists[p]];
        if (r->state != COMPUTING || r->pulled != m->now || r->start != lead->got ||
            (r->recorded && m->halts))
            return;
    }
    q->lockstep = 1; q->closing = -1; q->done = 0;
    q->steps_done = q->staleness = 0; q->pulled = lead->pulled;
    q->got = lead->got; q->version = lead->version; q->seen = lead->seen; q->closed_at = INFINITY;
    q->latest = -INFINITY;
    measure(m, q);
    for (whole p = at; p < end; p++) {
        struct rank_row *r = &m->ranks[m->lists[p]];
        q->latest = most(q->latest, r->finish);
        lane(m, FINISH)[p] = r->finish;
        lane(m, COMPUTE)[p] = r->compute; lane(m, WAIT)[p] = r->wait;
        lane(m, COMMUNICATION)[p] = r->communication;
        lane(m, WINS)[p] = lane(m, CLEAN_RATE)[p] = 0.0;
        lane(m, CLEAN_UNTIL)[p] = -INFINITY;
        lane(m, RATE)[p] = 1.0; /* of recorded steps, whose work is in seconds */
        lane(m, UNTIL)[p] = INFINITY;
        if (!r->recorded) follow_member(m, q, p, r->start, 0.0);
        r->due = NAN;
    }
    if (q->shape == RACE) { /* all events and jobs were of its members */
        m->scheduled = m->queued = 0; m->take_due = 0;
    } else {
        schedule(m, q->latest, CLOSE, index, m->refiled);
    }
}

/* Account for a step of all members. */
COLUMNS static void account(const double *finish, double *restrict compute,
                            double *restrict communication, double *restrict wait, whole n,
                            double time, double pulled, double got, double busy) {
#pragma omp simd
    for (whole p = 0; p < n; p++) {
        struct cycle c = cycle_of(time, pulled, got, finish[p], busy);
        compute[p] += c.compute;
        communication[p] += c.communication;
        wait[p] += c.wait;
    }
}

/* The same of a race: of winners, and of those whose steps or pushes were aborted. */
COLUMNS static void account_race(double *restrict lanes, whole n, double time, double pulled,
                                 double got, double busy, double closed_at) {
    double *finish = lanes + FINISH * n, *arrival = lanes + ARRIVAL * n, *won = lanes + WON * n;
    double *wins = lanes + WINS * n, *compute = lanes + COMPUTE * n;
    double *communication = lanes + COMMUNICATION * n, *wait = lanes + WAIT * n;
#pragma omp simd
    for (whole p = 0; p < n; p++) {
        int is_in = won[p] > 0;
        double pushed = is_in ? arrival[p] - finish[p] : most(closed_at - finish[p], 0.0);
        struct cycle c = cycle_of(time, pulled, got, least(closed_at, finish[p]),
                                  pushed + (is_in ? busy : 0.0));
        compute[p] += c.compute;
        communication[p] += c.communication;
        wait[p] += c.wait;
        wins[p] += won[p];
    }
}

/* The latest finish; infinity if a member may have left its segment. */
COLUMNS static double begin_all(double *restrict finish, const double *work, const double *rate,
                                const double *until, whole n, double start) {
    double latest = -INFINITY;
    whole leaves = 0; /* as wide as a double */
#pragma omp simd reduction(max : latest) reduction(| : leaves)
    for (whole p = 0; p < n; p++) {
        double end = start + work[p] * rate[p];
        finish[p] = end;
        leaves |= end > until[p];
        latest = most(latest, end);
    }
    return leaves ? INFINITY : latest;
}

/* The same where members leave their segments: each is followed through all that it crosses. */
static double walk_on(struct job *m, whole index) {
    struct quorum_row *q = &m->quorums[index];
    double *finish = lane(m, FINISH), latest = -INFINITY;
    for (whole p = q->members_at; p < q->members_at + q->size; p++) {
        if (finish[p] > lane(m, UNTIL)[p])
            finish[p] = follow_member(m, q, p, q->got, lane(m, WORK)[p]);
        latest = most(latest, finish[p]);
    }
    return latest;
}

/* The work of the next step of all members. */
static void draw_all(struct job *m, whole index) {
    struct quorum_row *q = &m->quorums[index];
    whole at = q->members_at, first = m->lists[at];
    double *work = lane(m, WORK), *effort = lane(m, EFFORT);
    if (m->lists[at + q->size - 1] - first == q->size - 1)
        draw_ranks(m, first, work + at, effort + at, q->size);
    else
        for (whole p = at; p < at + q->size; p++) work[p] = draw(m, m->lists[p]) * effort[p];
}

/* The same of those whose steps are recorded (rule 10). */
static void replay_all(struct job *m, struct quorum_row *q) {
    for (whole p = q->members_at; p < q->members_at + q->size; p++) {
        whole rank = m->lists[p], k = m->ranks[rank].started + q->steps_done;
        if (m->ranks[rank].recorded)
            lane(m, WORK)[p] = recorded(m, rank, k, m->ranks[rank].amp) * lane(m, EFFORT)[p];
    }
}

/* All members account for their last step and begin the next one, now. */
static void restart(struct job *m, whole index) {
    struct quorum_row *q = &m->quorums[index];
    whole at = q->members_at, n = q->size;
    double *finish = lane(m, FINISH) + at;
    if (m->holds && (m->replays || q->latest > m->trace_end))
        for (whole p = 0; p < n; p++)
            m->beyond += beyond(m, m->lists[at + p], m->ranks[m->lists[at + p]].started +
                                q->steps_done - 1, q->got, least(finish[p], q->closed_at));
    if (is_whole(q))
        account(finish, lane(m, COMPUTE) + at, lane(m, COMMUNICATION) + at, lane(m, WAIT) + at, n,
                m->now, q->pulled, q->got, q->busy);
    else account_race(m->lanes, n, m->now, q->pulled, q->got, q->busy, q->closed_at);
    seen(m);
    q->pulled = m->now;
    q->got = q->puller < 0 ? m->now : transfer(m, q->puller, m->now, m->pull);
    q->version = m->version; q->seen = m->samples; q->closing = -1; q->done = 0;
    if (m->noisy) draw_all(m, index);
    if (m->replays) replay_all(m, q);
    q->latest =
        begin_all(finish, lane(m, WORK) + at, lane(m, RATE) + at, lane(m, UNTIL) + at, n, q->got);
    if (!(q->latest < INFINITY)) q->latest = walk_on(m, index);
    q->steps_done++; m->started += n; m->amp += q->amp; m->rebatched += q->rebatched;
    m->asked += q->samples;
    if (q->shape == BARRIER) schedule(m, q->latest, CLOSE, index, m->refiled);
}

/* Show the steps of all ranks as columns, if they have shown as many; whether it could. */
static int show_all(struct job *m, struct quorum_row *q) {
    whole n = m->workers, level = m->known[0], differ = 0, row = level % WINDOW * n;
    for (whole p = 0; p < n; p++) differ |= m->known[p] ^ level;
    if (differ) return 0;
    double *finish = lane(m, FINISH), *reduced = lane(m, AMP), got = q->got;
    double *seconds = m->shown_local_times + row, *fetched = m->shown_communication + row;
    flag *amp = m->shown_amp + row;
#pragma omp simd
    for (whole p = 0; p < n; p++) {
        m->known[p]++;
        seconds[p] = finish[p] - got;
        fetched[p] = got - q->pulled;
        amp[p] = reduced[p] > 0;
    }
    memcpy(m->shown_batch + row, lane(m, SHARE), (size_t)n * sizeof(double));
    memset(m->shown_lower_bound + row, 0, (size_t)n);
    return 1;
}

/* The gradients of a closing become part of the parameters.  had: samples before this update. */
static void apply_all(struct job *m, whole index, whole had) {
    struct quorum_row *q = &m->quorums[index];
    q->done = 1; q->staleness += m->version - q->version;
    learn(m, q->won, q->seen);
    note_drift(m, q->needed, had, q->seen);
    if (!m->shows || (is_whole(q) && q->size == m->workers && show_all(m, q))) return;
    for (whole p = q->members_at; p < q->members_at + q->size; p++)
        if (has_won(m, q, p))
            show_step(m, m->lists[p], lane(m, FINISH)[p] - q->got, lane(m, SHARE)[p],
                      q->got - q->pulled + push_seconds(m, q, p), m->ranks[m->lists[p]].amp, 0);
}
