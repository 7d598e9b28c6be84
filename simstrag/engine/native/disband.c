/* From columns and cards back to `ranks`, which knows everything of everybody again. */

/* Where the gradients of members in lockstep are. */
static flag state_of(const struct quorum_row *q) {
    return q->closing < 0 ? COMPUTING : q->done ? GONE : CLOSED;
}

/* What a view shows of those whom `ranks` does not know everything of. */
EXPORT void report(struct job *m) {
    for (whole index = 0; index < m->quorum_count; index++) {
        struct quorum_row *q = &m->quorums[index];
        for (whole p = 0; q->lockstep && p < q->size; p++) {
            whole rank = q->queue ? p : m->lists[q->members_at + p];
            struct rank_row *r = &m->ranks[rank];
            if (q->queue) {
                r->pulled = m->cards[rank].pulled;
                r->state = r->blocked || rank == q->pending ? GONE : COMPUTING;
            } else {
                r->pulled = q->pulled;
                r->state = state_of(q);
            }
        }
    }
}

/* What members of barriers and of races have in common. */
static struct rank_row *know(struct job *m, whole p, const struct quorum_row *q) {
    struct rank_row *r = &m->ranks[m->lists[p]];
    r->compute = lane(m, COMPUTE)[p];
    r->communication = lane(m, COMMUNICATION)[p];
    r->wait = lane(m, WAIT)[p];
    r->finish = r->ended = lane(m, FINISH)[p];
    r->pulled = q->pulled; r->got = r->start = q->got; r->version = q->version; r->seen = q->seen;
    r->pushed = r->busy = 0.0; r->due = NAN; r->started += q->steps_done; r->step = r->started - 1;
    r->staleness += q->staleness;
    return r;
}

/* Either all compute, or an update of the winners was just made. */
static void disband_race(struct job *m, struct quorum_row *q) {
    m->racing = 0;
    for (whole p = q->size - 1; p >= 0; p--) {
        whole rank = m->lists[p], won = q->done ? (whole)lane(m, WON)[p] : 0;
        struct rank_row *r = know(m, p, q);
        r->applied += (whole)lane(m, WINS)[p] + won;
        r->count += (whole)lane(m, WINS)[p] + won;
        r->state = COMPUTING;
        if (!q->done) {
            expect(m, rank);
            continue;
        }
        struct closing_row *c = &m->closings[q->closing];
        c->lockstep = 0; r->state = GONE;
        r->ended = least(q->closed_at, r->finish);
        if (won) {
            r->pushed = lane(m, ARRIVAL)[p] - r->finish;
            r->busy = c->busy; r->closing = q->closing; r->link = c->head; c->head = rank;
        } else {
            r->pushed = most(q->closed_at - r->finish, 0.0);
            wait_for(m, rank, q->closing);
        }
    }
}

static void disband_barrier(struct job *m, struct quorum_row *q) {
    flag state = state_of(q);
    double busy = 0.0;
    whole link = -1;
    if (q->closing >= 0) {
        struct closing_row *c = &m->closings[q->closing];
        c->lockstep = 0;
        c->head = m->lists[q->members_at];
        c->last = m->lists[q->members_at + q->size - 1];
        busy = q->done ? c->busy : 0.0;
    }
    for (whole p = q->members_at + q->size - 1; p >= q->members_at; p--) {
        struct rank_row *r = know(m, p, q);
        r->arrival = r->finish; r->busy = busy;
        r->applied += q->steps_done + q->done;
        r->count += q->steps_done + q->done;
        r->state = state; r->closing = q->closing;
        r->ahead = state == COMPUTING ? HALFWAY : 0;
        r->link = link;
        link = m->lists[p];
    }
}

static void disband(struct job *m, whole index) {
    struct quorum_row *q = &m->quorums[index];
    q->lockstep = 0;
    if (q->race) disband_race(m, q);
    else if (q->queue) disband_queue(m);
    else disband_barrier(m, q);
}

/* `ranks` knows everything again. */
EXPORT void disband_all(struct job *m) {
    for (whole index = 0; index < m->quorum_count; index++)
        if (m->quorums[index].lockstep) disband(m, index);
}
