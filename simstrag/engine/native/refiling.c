/* A new plan: what is finished and not closed over is filed anew (rule 19). */

/* A member's gradient is ready in its new quorum, unless it is being pushed there.
   n: entries so far. */
static void refile_member(struct job *m, whole rank, whole *n) {
    struct rank_row *r = &m->ranks[rank];
    if (m->quorums[r->quorum].via == SERVER) {
        if (r->state == PUSHING) return;
        if (r->job == NO_JOB) enqueue(m, r->finish, rank, -1);
        r->arrival = r->job_arrival;
    } else {
        put_ashore(m, rank);
        r->arrival = r->finish;
    }
    r->state = READY;
    push(m->entries, n, (struct event_row){r->arrival, rank, 0, 0});
}

/* After the plan has changed: by rank. */
EXPORT void refile(struct job *m) {
    whole n = 0;
    m->refiled++; m->entering = 1;
    for (whole rank = 0; rank < m->workers; rank++) {
        struct rank_row *r = &m->ranks[rank];
        if (r->state != GONE && r->state != NOBODY && joins(r)) r->mark = -1;
        if (r->state != PUSHING && (r->state < READY || r->state > ABOARD)) continue;
        if (!r->named) {
            drop(m, rank);
            r->idle = 1;
        } else if (refile_in_tree(m, rank)) {
            continue;
        } else if (r->parent < 0) {
            r->aboard = -1;
            refile_member(m, rank, &n);
        } else if (r->aboard != r->parent) {
            put_ashore(m, rank);
        }
    }
    for (whole rank = 0; rank < m->workers; rank++) push_sum_of_tree(m, rank);
    while (n > 0) add(m, pop(m->entries, &n).order);
}
