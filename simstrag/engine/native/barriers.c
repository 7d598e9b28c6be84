/* Barriers and races in lockstep: a step of all is a few loops over columns.
   What is stale meanwhile stands at the top of lockstep.c. */

/* The end of a member's work, and the segment of its step function from which it goes on. */
static double follow_member(struct job *m, const struct quorum_row *q, whole p, double start,
                            double work) {
    whole rank = m->lists[p], variant = 2 * m->loaded + m->ranks[rank].amp;
    double end = follow(m, rank, variant, start, work, m->ranks[rank].share, q->needed < q->size,
                        &field(m, RATE)[p], &field(m, UNTIL)[p]);
    const struct piece_row *f = &m->pieces[m->ranks[rank].stretch[variant]];
    m->segments[p] = m->overlaps ? -1 : f->at + m->ranks[rank].cursor[variant];
    m->segments[p + m->workers] = f->at + f->last;
    return end;
}

/* Count a member's steps in (1) or out (-1) of those of its quorum. */
static void count_in(struct quorum_row *q, const struct rank_row *r, whole sign) {
    q->samples += sign * r->samples; q->amp += sign * r->amp;
    q->rebatched += sign * (r->share != 1.0);
    q->won = q->samples;
}

/* What a member computes from now on. */
static void measure(struct job *m, struct quorum_row *q, whole p) {
    struct rank_row *r = &m->ranks[m->lists[p]];
    count_in(q, r, 1);
    field(m, EFFORT)[p] = field(m, WORK)[p] =
        r->recorded ? recorded_effort(m, r->share) : units(m, r->share);
    field(m, SHARE)[p] = r->share; field(m, AMP)[p] = r->amp;
    field(m, SAMPLES)[p] = (double)r->samples;
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
    q->latest = -INFINITY; q->samples = q->amp = q->rebatched = 0;
    for (whole p = at; p < end; p++) {
        struct rank_row *r = &m->ranks[m->lists[p]];
        measure(m, q, p);
        q->latest = most(q->latest, r->finish);
        field(m, FINISH)[p] = r->finish;
        field(m, COMPUTE)[p] = r->compute; field(m, WAIT)[p] = r->wait;
        field(m, COMMUNICATION)[p] = r->communication;
        field(m, WINS)[p] = field(m, CLEAN_RATE)[p] = 0.0;
        field(m, CLEAN_UNTIL)[p] = -INFINITY;
        field(m, RATE)[p] = 1.0; /* of recorded steps, whose work is in seconds */
        field(m, UNTIL)[p] = INFINITY;
        if (!r->recorded) follow_member(m, q, p, r->start, 0.0);
        r->due = NAN;
    }
    if (q->shape == RACE) { /* all events and jobs were of its members */
        m->scheduled = m->queued = 0; m->take_due = 0;
    } else {
        schedule(m, q->latest, CLOSE, index, m->refiled);
    }
}

/* Account for a step of all members: of `all`, or of a race's winners and of those whose steps or
   pushes were aborted. */
static inline void account_for(struct job *m, const struct quorum_row *q, const int all) {
    double *finish = column(m, q, FINISH), *arrival = column(m, q, ARRIVAL);
    double *won = column(m, q, WON), *wins = column(m, q, WINS);
    double *compute = column(m, q, COMPUTE), *wait = column(m, q, WAIT);
    double *communication = column(m, q, COMMUNICATION);
    double time = m->now, pulled = q->pulled, got = q->got, busy = q->busy, end = q->closed_at;
#pragma omp simd
    for (whole p = 0; p < q->size; p++) {
        int is_in = all || won[p] > 0;
        double ended = all ? finish[p] : least(end, finish[p]), pushed = 0.0;
        if (!all) pushed = is_in ? arrival[p] - finish[p] : most(end - finish[p], 0.0);
        struct cycle c = cycle_of(time, pulled, got, ended, pushed + (is_in ? busy : 0.0));
        compute[p] += c.compute;
        communication[p] += c.communication;
        wait[p] += c.wait;
        if (!all) wins[p] += won[p];
    }
}

COLUMNS static void account(struct job *m, const struct quorum_row *q) {
    if (is_whole(q)) account_for(m, q, 1);
    else account_for(m, q, 0);
}

/* Compute when each member finishes, and the latest finish, as if no member left its segment.
   Returns how many members may leave theirs. */
COLUMNS static whole begin_all(struct job *m, struct quorum_row *q) {
    double *finish = column(m, q, FINISH), *work = column(m, q, WORK);
    double *rate = column(m, q, RATE), *until = column(m, q, UNTIL);
    double start = q->got, latest = -INFINITY;
    whole leave = 0; /* as wide as a double */
#pragma omp simd reduction(max : latest) reduction(+ : leave)
    for (whole p = 0; p < q->size; p++) {
        double end = start + work[p] * rate[p];
        finish[p] = end;
        leave += end >= until[p];
        latest = most(latest, end);
    }
    q->latest = latest;
    return leave;
}

/* The same of those that end in the next segment: they begin there, or cross its start as `walk`
   does.  The trace is not looped, so that UNTIL is the end of a segment. */
COLUMNS static whole cross(struct job *m, struct quorum_row *q) {
    double *finish = column(m, q, FINISH), *work = column(m, q, WORK);
    double *rate = column(m, q, RATE), *until = column(m, q, UNTIL);
    whole *segment = m->segments + q->members_at, *last = segment + m->workers, leave = 0;
    const double *times = m->times, *values = m->values;
    double start = q->got, latest = -INFINITY;
#pragma omp simd reduction(max : latest) reduction(+ : leave)
    for (whole p = 0; p < q->size; p++) {
        whole has_next = (segment[p] >= 0) & (segment[p] + 2 <= last[p]);
        whole k = has_next ? segment[p] : 0, is_before = start < until[p];
        double old = finish[p], next = until[p], after = times[k + 2], onward = values[k + 1];
        double rest = most(work[p] - (next - start) / rate[p], 0.0);
        double end = (is_before ? next : start) + (is_before ? rest : work[p]) * onward;
        whole leaves = (old > next) | !is_before;
        whole crosses = has_next & leaves & (start < after) & (end <= after);
        finish[p] = crosses ? end : old;
        rate[p] = crosses ? onward : rate[p];
        until[p] = crosses ? after : next;
        segment[p] += crosses;
        leave += finish[p] >= until[p];
        latest = most(latest, finish[p]);
    }
    for (whole p = 0; p < q->size; p++) { /* each rank has memory of its own */
        __builtin_prefetch(times + segment[p] + NEAR);
        __builtin_prefetch(values + segment[p] + NEAR);
    }
    q->latest = latest;
    return leave;
}

/* The same one by one, through all segments that a member crosses. */
static void walk_on(struct job *m, struct quorum_row *q) {
    double *finish = field(m, FINISH);
    q->latest = -INFINITY;
    for (whole p = q->members_at; p < q->members_at + q->size; p++) {
        if (finish[p] >= field(m, UNTIL)[p])
            finish[p] = follow_member(m, q, p, q->got, field(m, WORK)[p]);
        q->latest = most(q->latest, finish[p]);
    }
}

/* The work of the next step of all members. */
COLUMNS static void draw_all(struct job *m, struct quorum_row *q) {
    const whole *ranks = m->lists + q->members_at, first = ranks[0];
    double *work = column(m, q, WORK), *effort = column(m, q, EFFORT);
    if (ranks[q->size - 1] - first == q->size - 1) draw_work(m, first, q->size, work, effort);
    else
        for (whole p = 0; p < q->size; p++) work[p] = draw(m, ranks[p]) * effort[p];
}

/* The same of those whose steps are recorded (rule 10). */
static void replay_all(struct job *m, struct quorum_row *q) {
    for (whole p = q->members_at; p < q->members_at + q->size; p++) {
        whole rank = m->lists[p], k = m->ranks[rank].started + q->steps_done;
        if (m->ranks[rank].recorded)
            field(m, WORK)[p] = recorded(m, rank, k, m->ranks[rank].amp) * field(m, EFFORT)[p];
    }
}

/* All members account for their last step and begin the next one, now. */
static void restart(struct job *m, whole index) {
    struct quorum_row *q = &m->quorums[index];
    whole at = q->members_at, n = q->size;
    if (m->holds && (m->replays || q->latest > m->trace_end)) {
        const double *finish = column(m, q, FINISH);
        double sum = m->beyond, closed_at = q->closed_at, got = q->got;
        for (whole p = 0; p < n; p++) {
            whole rank = m->lists[at + p];
            whole step = m->replays ? m->ranks[rank].started + q->steps_done - 1 : 0;
            sum += beyond(m, rank, step, got, least(finish[p], closed_at));
        }
        m->beyond = sum;
    }
    account(m, q);
    seen(m);
    q->pulled = m->now;
    q->got = q->puller < 0 ? m->now : transfer(m, q->puller, m->now, m->pull);
    q->version = m->version; q->seen = m->samples; q->closing = -1; q->done = 0;
    if (m->noisy) draw_all(m, q);
    if (m->replays) replay_all(m, q);
    whole leave = begin_all(m, q);
    if (leave * 8 > n && q->needed == n && m->period == 0 && m->times_size > 2)
        leave = cross(m, q);
    if (leave) walk_on(m, q);
    q->steps_done++; m->started += n; m->amp += q->amp; m->rebatched += q->rebatched;
    m->asked += q->samples;
    if (q->shape == BARRIER) schedule(m, q->latest, CLOSE, index, m->refiled);
}

/* Show the steps of all ranks as columns, if they have shown as many; whether it could. */
COLUMNS static int show_all(struct job *m, const struct quorum_row *q) {
    whole n = m->workers, *known = m->known, level = known[0], differ = 0;
    whole row = (level & (m->ring - 1)) * n;
    for (whole p = 0; p < n; p++) differ |= known[p] ^ level;
    if (differ || (m->ahead && level - m->before[0] == m->ring - WINDOW)) return 0;
    const double *finish = field(m, FINISH), *reduced = field(m, AMP);
    double got = q->got, pull = got - q->pulled;
    double *seconds = m->shown_local_times + row, *fetched = m->shown_communication + row;
    flag *amp = m->shown_amp + row;
#pragma omp simd
    for (whole p = 0; p < n; p++) {
        known[p]++;
        seconds[p] = finish[p] - got;
        fetched[p] = pull;
        amp[p] = reduced[p] > 0;
    }
    memcpy(m->shown_batch + row, field(m, SHARE), (size_t)n * sizeof(double));
    memset(m->shown_lower_bound + row, 0, (size_t)n);
    return 1;
}

/* The gradients of a closing become part of the parameters. */
static void apply_all(struct job *m, whole index, struct tally *t) {
    struct quorum_row *q = &m->quorums[index];
    whole staleness = m->version - q->version;
    q->done = 1; q->staleness += staleness;
    learn(m, t, q->needed, q->won, staleness, q->seen);
    if (!m->shows || (is_whole(q) && q->size == m->workers && show_all(m, q))) return;
    for (whole p = q->members_at; p < q->members_at + q->size; p++)
        if (has_won(m, q, p))
            show_step(m, m->lists[p], field(m, FINISH)[p] - q->got, field(m, SHARE)[p],
                      q->got - q->pulled + push_seconds(m, q, p), m->ranks[m->lists[p]].amp, 0);
}
