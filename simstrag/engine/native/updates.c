/* From closings to updates: ends of collectives and jobs, what an update does (rules 11, 12). */

/* The ranks in closings of one update, with those of barriers in lockstep or without them, into
   `scratch` by rank, where the first `n` are already; how many. */
static whole list_ranks(struct job *m, whole first, flag lockstep, whole n) {
    for (whole closing = first; closing >= 0; closing = m->closings[closing].beside) {
        struct closing_row *c = &m->closings[closing];
        struct quorum_row *q = &m->quorums[c->quorum];
        if (c->lockstep != lockstep) continue;
        for (whole rank = c->head; rank >= 0; rank = m->ranks[rank].link) m->scratch[n++] = rank;
        for (whole k = 0; lockstep && k < q->size; k++)
            m->scratch[n++] = m->lists[q->members_at + k];
    }
    sort(m, n);
    return n;
}

/* The gradients of the first ranks in `scratch` that are not too stale become part of the
   parameters; of how many ranks, which are the first then. */
static whole apply(struct job *m, whole n, struct tally *t) {
    whole *order = m->scratch, applied = 0;
    for (whole k = 0; k < n; k++) {
        whole rank = order[k];
        struct rank_row *r = &m->ranks[rank];
        struct closing_row *c = &m->closings[r->closing];
        whole staleness = m->version - r->version, own = contributed(r);
        whole samples = r->prepared ? 0 : r->samples;
        r->state = GONE; r->aboard = -1;
        count(m, rank);
        if (c->cutoff >= 0 && staleness >= c->cutoff) {
            note_drop(m, rank, c->busy);
            continue;
        }
        order[applied++] = rank;
        for (whole j = 0; j < kept_for(r); j++) samples += kept_of(m, rank)[j].samples;
        learn(m, t, own, samples, staleness, r->seen);
        r->applied += own; r->staleness += own * staleness; r->busy = c->busy;
        show(m, rank, r->finish - r->start, 0);
    }
    return applied;
}

/* Write down what the applied gradients of the first ranks in `scratch` weigh (rule 24).
   together: samples of the update. */
static void tell_applied(struct job *m, whole applied, whole together) {
    for (whole k = 0; k < applied && m->keeps_fates; k++) {
        struct rank_row *r = &m->ranks[m->scratch[k]];
        struct closing_row *c = &m->closings[r->closing];
        double weight = pow(most(c->shift + (m->version - r->version), 1.0), -c->power);
        tell(m, m->scratch[k], APPLIED, m->version + 1, weight,
             c->mean ? together : m->workers * m->batch);
    }
}

/* Whether every limit that is set is reached (rule 23). */
static int enough(struct job *m) {
    int enough = 1;
    if (!isnan(m->most_progress)) {
        if (progress(m) < m->most_progress) enough = 0;
        else if (isnan(m->target)) m->target = m->now;
    }
    if (m->most_samples >= 0) {
        if (m->samples < m->most_samples) enough = 0;
        else if (isnan(m->makespan)) m->makespan = m->now;
    }
    return enough && m->version >= m->most_updates;
}

/* Whether a review is due (rule 20). */
static int due(struct job *m) {
    return (m->review_updates >= 0 && m->version - m->reviewed_updates >= m->review_updates) ||
           (m->review_samples >= 0 && m->samples - m->reviewed_samples >= m->review_samples) ||
           m->now - m->reviewed_time >= m->review_seconds;
}

/* Version + 1, stop test, checkpoint or review if due; whether the run goes on without one.
   n: the ranks whose gradients were applied; they stand in `scratch`, unless their set has a name,
   its token, or only a sample of updates is kept (`every`). */
static int conclude(struct job *m, const struct tally *t, whole n, whole token) {
    m->applied += t->gradients; m->spent += t->gradients; m->version++;
    if (m->every == 0 || !(m->version & (m->every - 1))) { /* 0 or a power of two */
        struct update_row *row = &m->update_log[m->updates++];
        *row = (struct update_row){
            m->now,      m->version,  t->gradients, m->samples, (double)t->stale / t->gradients,
            t->stalest, progress(m), -1 - token,   n};
        if (!m->every && token < 0) {
            row->members = m->members;
            memcpy(m->member_log + m->members, m->scratch, (size_t)n * sizeof(whole));
            m->members += n;
        }
    }
    if (m->judged) judge(m);
    if (enough(m)) m->stop = DONE;
    else if (m->version >= m->mark_version || m->now >= m->mark_time) m->stop = CHECKPOINT;
    else if (due(m) && !pass_by(m)) m->stop = REVIEW;
    return m->stop == GO_ON;
}

/* Apply, version + 1, stop test, review if due, then release.
   first: a closing; others of the same update hang on it by `beside`. */
static void update(struct job *m, whole first) {
    whole n = list_ranks(m, first, 0, 0);
    struct tally t = {.had = m->samples};
    for (whole k = first; k >= 0; k = m->closings[k].beside) {
        struct closing_row *c = &m->closings[k];
        if (c->via == SERVER) c->busy = m->service; /* of one gradient */
        if (c->lockstep) apply_all(m, c->quorum, &t);
    }
    whole applied = apply(m, n, &t);
    tell_applied(m, applied, m->samples - t.had);
    struct closing_row *c = &m->closings[first];
    if (m->quorums[c->quorum].overlap)
        for (whole rank = c->head; rank >= 0; rank = m->ranks[rank].link) leave_run_on(m, rank);
    int named = c->token >= 0 && c->beside < 0 && (c->lockstep || applied == n);
    whole members = named || m->every ? c->count : list_ranks(m, first, 1, applied);
    if (t.gradients > 0 && !conclude(m, &t, members, named ? c->token : -1)) m->to_release = first;
    else release(m, first, -1);
}

/* A collective has ended, a leader's push has arrived, or a closing found its jobs done. */
static void collective_ended(struct job *m, whole closing, int has_arrived) {
    struct closing_row *c = &m->closings[closing];
    if (c->via == LEADER && !has_arrived) {
        if (c->rounds > 1 && next_round(m, closing)) return;
        double arrival = transfer(m, c->leader, m->now, m->push);
        c->busy += arrival - m->now;
        if (arrival > m->now) {
            schedule(m, arrival, ARRIVE, c->leader, -1 - closing);
            return;
        }
    }
    if (c->via == LEADER) enqueue(m, m->now, c->leader, closing);
    else update(m, closing);
}

/* The server is done with its job. */
static void job_ended(struct job *m) {
    m->serving = 0;
    m->take_due = m->queued > 0;
    if (m->server_closing >= 0) {
        update(m, m->server_closing);
        return;
    }
    struct rank_row *r = &m->ranks[m->server_rank];
    if (r->ticket != m->server_ticket) return; /* of a gradient that is gone */
    r->job = SERVED;
    if (r->state != CLOSED || r->aboard >= 0)
        return; /* not closed over yet, or filed elsewhere since */
    struct closing_row *c = &m->closings[r->closing];
    if (c->via == SERVER && --c->undone == 0) update(m, r->closing);
}
