/* Gradient trees: a parent pushes one message for itself and its children (rule 11a). */

/* A gradient goes to the server, or from a child to its parent. */
static void send_message(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    r->sent = m->now; r->arrival = transfer(m, rank, m->now, m->push); r->state = PUSHING;
    await(m, rank, r->arrival);
}

/* Whether all children of a rank are in that state, and `aboard` is theirs. */
static int children_are(struct job *m, const struct rank_row *r, flag state, whole aboard) {
    for (whole k = r->children_at; k < r->children_at + r->children; k++) {
        const struct rank_row *child = &m->ranks[m->lists[k]];
        if (child->state != state || child->aboard != aboard) return 0;
    }
    return 1;
}

/* A parent pushes, if it and all its children have finished and their gradients are there. */
static void push_sum_of_tree(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    if (r->state != ASHORE || r->parent >= 0 || !children_are(m, r, ASHORE, -1)) return;
    for (whole k = r->children_at; k < r->children_at + r->children; k++) {
        struct rank_row *child = &m->ranks[m->lists[k]];
        child->state = ABOARD; child->aboard = rank;
    }
    send_message(m, rank);
}

/* The step of a parent or child ends. */
static void finished_in_tree(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    r->state = ASHORE;
    if (r->parent >= 0) send_message(m, rank);
    else push_sum_of_tree(m, rank);
}

/* Rule 19, after the plan has changed: whether a finished gradient needs nothing beyond this. */
static int refile_in_tree(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    if (!m->quorums[r->quorum].tree) return 0;
    if (r->parent >= 0) return r->state == PUSHING;
    if (r->children == 0 || children_are(m, r, ABOARD, rank)) return 0;
    unload(m, rank);
    return 1;
}
