/* Starts: which ranks begin a step, when, and with what (rules 1, 5, 6, 13, 16). */

/* Begin a step with the parameters that the rank has from `got` on, after a pause. */
static void begin_step(struct job *m, whole rank, double got, double pause) {
    struct rank_row *r = &m->ranks[rank];
    flag amp = m->next_amp[rank];
    double start = got, part = 1.0, factor = draw(m, rank), share = m->next_share[rank];
    whole asked = m->next_samples[rank], samples = asked;
    if (r->last_amp >= 0 && r->last_amp != amp) start += m->amp_switch;
    r->paused = start + pause - start;
    start += pause;
    if (!isnan(m->deadline)) {
        whole done = micro_batches(m, rank, start, amp, share, factor);
        part = (double)done / m->microbatches;
        samples = larger(samples * done / m->microbatches, 1);
    }
    r->finish = r->ended =
        r->failed ? INFINITY : compute(m, rank, start, amp, share, factor, part);
    r->pulled = m->now; r->got = got; r->start = start; r->samples = samples;
    r->share = share; r->amp = r->last_amp = amp;
    if (m->overlaps && !r->recorded && !r->failed) note_streams(m, rank, start, factor * part);
    r->step = r->started++;
    r->pushed = r->busy = 0.0; r->state = COMPUTING; r->job = NO_JOB;
    r->ticket = r->mark = r->aboard = r->closing = -1; m->started++; m->amp += amp;
    m->rebatched += share != 1.0; m->asked += asked;
    m->cut += asked - samples;
    await(m, rank, r->finish);
}

/* The next step of a contribution, on a model of the rank's or its group's own (rule 6b). */
static void keep_on(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    close_cycle(m, rank);
    kept_of(m, rank)[r->kept++] = (struct kept_row){r->step, r->samples, r->finish - r->start,
                                                    r->got - r->pulled + r->pushed, r->amp, -1};
    m->crowded |= r->kept == m->kept_size / m->workers;
    begin_step(m, rank, m->now, 0.0);
}

/* A rank pulls, and begins a step; or its run-on goes on from the update before (rule 6c). */
static void start(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    if (r->state == COMPUTING) {
        keep_on(m, rank);
        r->version = m->version; r->seen = m->samples;
        return;
    }
    close_cycle(m, rank);
    r->relayed = r->relay < 0 ? m->now : transfer(m, r->relay, m->now, m->pull);
    double got = r->puller < 0 ? m->now : transfer(m, r->puller, r->relayed, m->pull);
    r->version = m->version; r->seen = m->samples; r->kept = r->rounds = r->ran_on = 0;
    begin_step(m, rank, got, m->pause);
}

/* A step of a run-on, while its contribution before is under way (rule 6c). */
static void run_on(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    whole closing = r->closing;
    flag state = r->state;
    keep_on(m, rank);
    r->closing = closing; r->state = state;
}

/* A step of a run-on ends; after the last it waits for the update, or goes on from it. */
static void ran_on(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    if (--r->ahead > 0) {
        run_on(m, rank);
    } else if (!r->prepared) {
        seen(m);
        start(m, rank);
    }
}

/* What it contributed is over; a run-on goes on. */
static void leave_run_on(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    struct kept_row *kept = kept_of(m, rank);
    if (!r->prepared) return;
    r->kept -= r->prepared;
    memmove(kept, kept + r->prepared, (size_t)r->kept * sizeof *kept);
    r->prepared = 0; r->state = COMPUTING;
}

/* The rank whose link carries parameters to a rank; -1: they are there already (rule 11). */
static whole puller_of(flag via, whole rank, whole leader) {
    return via == ALLREDUCE ? -1 : via == SERVER ? rank : leader;
}

/* The same of a rank that starts by itself; and the parent that pulls before it, if one does. */
static void start_alone(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    r->puller = r->relay = -1;
    if (!r->named) return;
    struct quorum_row *q = &m->quorums[r->quorum];
    r->puller = puller_of(q->via, rank, m->lists[q->members_at]);
    if (q->tree) r->relay = r->parent;
}

/* A closing is over. */
static void free_closing(struct job *m, whole closing) {
    struct closing_row *c = &m->closings[closing];
    c->number++; c->head = m->free; m->free = closing;
}

/* The ranks that an update lets go, into `scratch`; how many.  Its closings are over then. */
static whole let_go_closings(struct job *m, whole first) {
    whole n = 0;
    for (whole closing = first, onward; closing >= 0; closing = onward) {
        struct closing_row *c = &m->closings[closing];
        struct quorum_row *q = &m->quorums[c->quorum];
        if (c->lockstep) {
            q->busy = c->busy; q->puller = puller_of(c->via, -1, c->leader);
        }
        if (m->may_lockstep && c->refiled == m->refiled && q->shape >= BARRIER) {
            q->beside = m->to_start; m->to_start = c->quorum;
        }
        for (int part = 0; part < 2; part++)
            for (whole rank = part ? c->waiting : c->head; rank >= 0; rank = m->ranks[rank].link) {
                if (m->ranks[rank].ahead) continue; /* it goes on after its run-on */
                m->ranks[rank].puller = puller_of(c->via, rank, c->leader);
                m->scratch[n++] = rank;
            }
        onward = c->beside;
        free_closing(m, closing);
    }
    return n;
}

static void form_queue(struct job *m);

/* Start, by rank, those that an update or drop lets go, those that it frees, and new members.
   first: the closings of an update, or -1.  lone: a rank that was dropped, or -1. */
static void release(struct job *m, whole first, whole lone) {
    whole *order = m->scratch, n = let_go_closings(m, first), starting = 0;
    int asks = 0;
    if (lone >= 0) {
        start_alone(m, lone);
        order[n++] = lone;
    }
    if (m->entering || (m->blocked && m->freed)) {
        m->entering = m->freed = 0;
        for (whole rank = 0; rank < m->workers; rank++) {
            struct rank_row *r = &m->ranks[rank];
            if (r->blocked || (r->idle && r->named)) {
                start_alone(m, rank);
                order[n++] = rank;
            }
        }
    }
    sort(m, n);
    for (whole k = 0; k < n; k++) {
        struct rank_row *r = &m->ranks[order[k]];
        flag was = r->blocked;
        r->idle = !r->named;
        r->blocked = r->named && is_ahead(m, r);
        m->blocked += r->blocked - was;
        asks |= r->blocked && !was;
        if (r->named && !r->blocked) order[starting++] = order[k];
    }
    if (starting) seen(m);
    for (whole k = 0; k < starting; k++) start(m, order[k]);
    while (m->to_start >= 0) {
        whole index = m->to_start;
        m->to_start = m->quorums[index].beside;
        if (m->quorums[index].lockstep) restart(m, index);
        else fall_in(m, index);
    }
    if (m->may_lockstep && m->quorums[0].shape == QUEUED) form_queue(m);
    m->has_asked = asks && m->on_block && !m->has_asked;
    if (!m->has_asked || m->stop != GO_ON) return;
    if (pass_by(m)) {
        release(m, -1, -1);
    } else {
        m->to_release = -1; m->stop = REVIEW;
    }
}
