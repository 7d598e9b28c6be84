/* Barriers and races in lockstep: what is stale meanwhile stands at the top of lockstep.c. */

/* Which segment of its step function a member is in at `now`. */
static void turn(struct job *m, whole p, double now) {
    whole rank = m->lists[p], variant = 2 * m->loaded + m->ranks[rank].amp;
    segment(m, rank, variant, now, &lane(m, RATE)[p], &lane(m, UNTIL)[p]);
}

/* After all members of a barrier or race started: it is in lockstep if they did so as one. */
static void fall_in(struct job *m, whole index) {
    struct quorum_row *q = &m->quorums[index];
    whole at = q->members_at, end = at + q->size;
    struct rank_row *lead = &m->ranks[m->lists[at]];
    if (q->race && (m->serving || q->size < m->workers)) return;
    for (whole p = at; p < end; p++) {
        struct rank_row *r = &m->ranks[m->lists[p]];
        if (r->state != COMPUTING || r->pulled != m->now || r->start != lead->got || r->recorded ||
            r->started - r->noise_from != lead->started - lead->noise_from)
            return;
    }
    q->lockstep = 1; q->closing = -1; q->done = 0;
    q->steps_done = q->staleness = q->samples = q->amp = q->rebatched = 0; q->pulled = lead->pulled;
    q->got = lead->got; q->version = lead->version; q->seen = lead->seen; q->closed_at = INFINITY;
    q->latest = -INFINITY; q->noise_at = lead->started - lead->noise_from;
    for (whole p = at; p < end; p++) {
        struct rank_row *r = &m->ranks[m->lists[p]];
        q->latest = most(q->latest, r->finish);
        q->samples += r->samples; q->amp += r->amp; q->rebatched += r->share != 1.0;
        lane(m, FINISH)[p] = r->finish;
        lane(m, COMPUTE)[p] = r->compute;
        lane(m, COMMUNICATION)[p] = r->communication;
        lane(m, WAIT)[p] = r->wait;
        lane(m, EFFORT)[p] = lane(m, WORK)[p] = effort(m, r->share);
        lane(m, SHARE)[p] = r->share;
        lane(m, AMP)[p] = r->amp;
        lane(m, WINS)[p] = lane(m, CLEAN_RATE)[p] = 0.0;
        lane(m, CLEAN_UNTIL)[p] = -INFINITY;
        turn(m, p, r->start);
        if (q->race) r->due = NAN;
    }
    q->won = q->samples;
    if (q->race) { /* all events and jobs were of its members */
        m->racing = 1; m->scheduled = m->queued = 0; m->take_due = 0;
    }
}

/* Account for a step of everybody: see `close_cycle`. */
COLUMNS static void account(const double *finish, double *restrict compute,
                            double *restrict communication, double *restrict wait, whole n,
                            double time, double pulled, double got, double busy) {
    double fetched = got - pulled;
#pragma omp simd
    for (whole p = 0; p < n; p++) {
        double seconds = most(finish[p] - got, 0.0);
        double after = least(busy, most(time - finish[p], 0.0));
        compute[p] += seconds;
        communication[p] += fetched + after;
        wait[p] += most(time - pulled - fetched - seconds - after, 0.0);
    }
}

/* The same of a race: of winners, and of those whose steps or pushes were aborted. */
COLUMNS static void account_race(double *restrict lanes, whole n, double time, double pulled,
                                 double got, double busy, double closed_at) {
    double *finish = lanes + FINISH * n, *arrival = lanes + ARRIVAL * n, *won = lanes + WON * n;
    double *wins = lanes + WINS * n, *compute = lanes + COMPUTE * n;
    double *communication = lanes + COMMUNICATION * n, *wait = lanes + WAIT * n;
    double fetched = got - pulled;
#pragma omp simd
    for (whole p = 0; p < n; p++) {
        double ended = least(closed_at, finish[p]), seconds = most(ended - got, 0.0);
        int is_in = won[p] > 0;
        double pushed = is_in ? arrival[p] - finish[p] : most(closed_at - finish[p], 0.0);
        double after = least(pushed + (is_in ? busy : 0.0), most(time - ended, 0.0));
        compute[p] += seconds;
        communication[p] += fetched + after;
        wait[p] += most(time - pulled - fetched - seconds - after, 0.0);
        wins[p] += won[p];
    }
}

COLUMNS static void weigh(double *restrict work, const double *effort, const double *factors,
                          whole n) {
    for (whole p = 0; p < n; p++) work[p] = factors[p] * effort[p];
}

/* When the last is done; infinity where somebody may be beyond the segment that it is in. */
COLUMNS static double begin_all(double *restrict finish, const double *work, const double *rate,
                                const double *until, whole n, double start) {
    double latest = -INFINITY;
    int leaves = 0;
#pragma omp simd reduction(max : latest) reduction(| : leaves)
    for (whole p = 0; p < n; p++) {
        double end = start + work[p] * rate[p];
        finish[p] = end;
        leaves |= end > until[p];
        latest = most(latest, end);
    }
    return leaves ? INFINITY : latest;
}

/* The same where segments end: those who leave theirs are followed through all they cross. */
static double walk_on(struct job *m, whole index) {
    struct quorum_row *q = &m->quorums[index];
    double *finish = lane(m, FINISH), latest = -INFINITY;
    for (whole p = q->members_at; p < q->members_at + q->size; p++) {
        if (finish[p] > lane(m, UNTIL)[p]) {
            whole rank = m->lists[p], variant = 2 * m->loaded + m->ranks[rank].amp;
            finish[p] = finish_from(m, rank, variant, q->got, lane(m, WORK)[p]);
            turn(m, p, q->race ? q->got : finish[p]); /* a loser ends before */
        }
        latest = most(latest, finish[p]);
    }
    return latest;
}

/* The work of everybody's next step. */
static void draw_all(struct job *m, whole index) {
    struct quorum_row *q = &m->quorums[index];
    whole at = q->members_at, first = m->lists[at], rows = m->noise_size / m->workers;
    double *factors = m->noise + q->noise_at * m->workers;
    if (m->lists[at + q->size - 1] - first == q->size - 1) {
        weigh(lane(m, WORK) + at, lane(m, EFFORT) + at, factors + first, q->size);
    } else {
        for (whole p = at; p < at + q->size; p++)
            lane(m, WORK)[p] = factors[m->lists[p]] * lane(m, EFFORT)[p];
    }
    m->low |= ++q->noise_at >= rows;
}

/* All members account for their last step and begin the next one, now. */
static void restart(struct job *m, whole index) {
    struct quorum_row *q = &m->quorums[index];
    whole at = q->members_at, n = q->size;
    double *finish = lane(m, FINISH) + at;
    if (m->holds && q->latest > m->trace_end)
        for (whole p = 0; p < n; p++)
            m->beyond += most(0.0, least(finish[p], q->closed_at) - most(q->got, m->trace_end));
    if (q->race) account_race(m->lanes, n, m->now, q->pulled, q->got, q->busy, q->closed_at);
    else
        account(finish, lane(m, COMPUTE) + at, lane(m, COMMUNICATION) + at, lane(m, WAIT) + at, n,
                m->now, q->pulled, q->got, q->busy);
    q->pulled = m->now;
    q->got = q->puller < 0 ? m->now : transfer(m, q->puller, m->now, m->pull);
    q->version = m->version; q->seen = m->samples; q->closing = -1; q->done = 0; q->left = 0;
    if (m->noisy) draw_all(m, index);
    q->latest =
        begin_all(finish, lane(m, WORK) + at, lane(m, RATE) + at, lane(m, UNTIL) + at, n, q->got);
    if (!(q->latest < INFINITY)) q->latest = walk_on(m, index);
    q->steps_done++; m->started += n; m->amp += q->amp; m->rebatched += q->rebatched;
    m->asked += q->samples;
    if (!m->lapping && !q->race) schedule(m, most(q->latest, m->now), CLOSE, index, m->refiled);
}

/* Everybody's gradient is in a closing. */
static void close_all(struct job *m, whole index, whole closing) {
    struct quorum_row *q = &m->quorums[index];
    struct closing_row *c = &m->closings[closing];
    c->lockstep = 1; c->count = q->left = q->size; c->token = q->token;
    c->leader = m->lists[q->members_at];
    q->closing = closing;
}

COLUMNS static void show_columns(double *restrict seconds, double *restrict share,
                                 flag *restrict amp, const double *finish, const double *of_batch,
                                 const double *reduced, whole n, double got) {
#pragma omp simd
    for (whole p = 0; p < n; p++) {
        seconds[p] = finish[p] - got;
        share[p] = of_batch[p];
        amp[p] = reduced[p] > 0;
    }
}

/* Show everybody's step in a few loops over columns, where that can be; whether it could. */
static int shown_as_one(struct job *m, whole index) {
    struct quorum_row *q = &m->quorums[index];
    whole at = q->members_at, first = m->lists[at], n = q->size, *known = m->known + first;
    if (q->race || m->lists[at + n - 1] - first != n - 1) return 0;
    whole level = known[0], differ = 0;
    for (whole p = 0; p < n; p++) differ |= known[p] ^ level;
    if (differ) return 0;
    for (whole p = 0; p < n; p++) known[p]++;
    whole row = (level % WINDOW) * m->workers + first;
    show_columns(m->shown_local_times + row, m->shown_batch + row, m->shown_amp + row,
                 lane(m, FINISH) + at, lane(m, SHARE) + at, lane(m, AMP) + at, n, q->got);
    for (whole p = 0; p < n; p++) m->shown_communication[row + p] = q->got - q->pulled;
    memset(m->shown_lower_bound + row, 0, (size_t)n);
    return 1;
}

/* Everybody's gradient becomes part of the parameters; how stale they are.
   had: samples before this update. */
static whole apply_all(struct job *m, whole index, whole had) {
    struct quorum_row *q = &m->quorums[index];
    whole staleness = m->version - q->version;
    q->done = 1; q->staleness += staleness; m->own += q->won;
    m->stale += q->won * (m->began_at - q->seen);
    m->samples += q->won;
    double drift = (double)(had - q->seen) / (m->workers * m->batch);
    m->deviation += q->needed * (drift * drift);
    if (!m->shows || shown_as_one(m, index)) return staleness;
    for (whole p = q->members_at; p < q->members_at + q->size; p++) {
        double pushed = 0.0, finish = lane(m, FINISH)[p];
        if (q->race) {
            if (lane(m, WON)[p] == 0) continue;
            pushed = lane(m, ARRIVAL)[p] - finish;
        }
        show_step(m, m->lists[p], finish - q->got, lane(m, SHARE)[p], q->got - q->pulled + pushed,
                  m->ranks[m->lists[p]].amp, 0);
    }
    return staleness;
}

/* Its members are to start, with all others of this release. */
static void let_go(struct job *m, whole closing) {
    struct closing_row *c = &m->closings[closing];
    struct quorum_row *q = &m->quorums[c->quorum];
    q->busy = c->busy;
    q->puller = c->via == LEADER ? c->leader : c->via == ALLREDUCE ? -1 : 0;
    q->beside = m->to_start; m->to_start = c->quorum;
}

/* Which step is under way of members in lockstep, and since when. */
static void note_steps(struct job *m) {
    for (whole index = 0; index < m->quorum_count; index++) {
        struct quorum_row *q = &m->quorums[index];
        if (!q->lockstep) continue;
        for (whole p = q->members_at; p < q->members_at + q->size; p++) {
            struct rank_row *r = &m->ranks[m->lists[p]];
            r->start = q->got;
            r->step = r->started + q->steps_done - 1;
        }
    }
}
