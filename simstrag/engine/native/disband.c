/* From lockstep back to events: the records of all ranks are complete again. */

/* In a barrier or race all members compute, or their collective is under way, or their update was
   just made. */
static void disband(struct job *m, struct quorum_row *q) {
    hold_others(m);
    q->lockstep = 0;
    if (q->shape == QUEUED) {
        disband_queue(m);
        return;
    }
    if (q->done && q->shape == RACE) q->closing = reopen(m, 0, q->busy);
    for (whole p = q->members_at + q->size - 1; p >= q->members_at; p--) {
        whole rank = m->lists[p];
        struct rank_row *r = &m->ranks[rank];
        r->compute = field(m, COMPUTE)[p]; r->wait = field(m, WAIT)[p];
        r->communication = field(m, COMMUNICATION)[p];
        r->finish = field(m, FINISH)[p];
        r->pulled = q->pulled; r->version = q->version; r->seen = q->seen;
        r->started += q->steps_done; r->staleness += q->staleness;
        r->applied += is_whole(q) ? q->steps_done : (whole)field(m, WINS)[p];
        restate(r, q->got);
        if (m->overlaps && q->steps_done && !r->recorded)
            note_streams(m, rank, q->got, field(m, WORK)[p]);
        r->state = state_of(q);
        if (r->state == COMPUTING) {
            if (r->finish > m->now) await(m, rank, r->finish);
            else finished(m, rank);
            continue;
        }
        struct closing_row *c = &m->closings[q->closing];
        c->lockstep = 0;
        r->ended = least(q->closed_at, r->finish);
        r->pushed = push_seconds(m, q, p);
        if (has_won(m, q, p)) {
            r->busy = q->done ? c->busy : 0.0;
            r->applied += q->done;
            r->closing = q->closing; r->link = c->head; c->head = rank;
        } else {
            wait_for(m, rank, q->closing);
        }
    }
}

/* The records of all ranks are complete again. */
EXPORT void disband_all(struct job *m) {
    for (struct quorum_row *q = m->quorums; q < m->quorums + m->quorum_count; q++)
        if (q->lockstep) disband(m, q);
}

/* A plan says other things of next steps: those whose update was just made stay in lockstep. */
EXPORT void resize(struct job *m) {
    for (struct quorum_row *q = m->quorums; q < m->quorums + m->quorum_count; q++) {
        if (q->lockstep && (q->shape == QUEUED || !q->done)) disband(m, q);
        if (!q->lockstep) continue;
        for (whole p = q->members_at; p < q->members_at + q->size; p++) {
            whole rank = m->lists[p];
            flag amp = m->next_amp[rank];
            if (field(m, AMP)[p] == amp && field(m, SHARE)[p] == m->next_share[rank]) continue;
            struct rank_row *r = &m->ranks[rank];
            flag share = m->overlaps && r->share != m->next_share[rank]; /* it is in the rate */
            if ((r->amp != amp || share) && !r->recorded) {
                field(m, UNTIL)[p] = -INFINITY;
                m->segments[p] = -1;
            }
            count_in(q, r, -1);
            r->amp = r->last_amp = amp;
            r->samples = m->next_samples[rank]; r->share = m->next_share[rank];
            measure(m, q, p);
        }
    }
}
