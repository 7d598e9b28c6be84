/* Gradients that come to nothing, and what a rank does next to that (rules 13, 14, 16, 18). */

/* Whether its gradient enters the next closing, for being late, without counting towards it. */
static int joins(const struct rank_row *r) { return r->mark >= 0 && r->mark_late == JOIN; }

/* Its gradient was too late for a closing (rule 14). */
static void mark(struct job *m, whole rank, whole closing) {
    struct rank_row *r = &m->ranks[rank];
    r->mark = closing;
    r->mark_of = m->closings[closing].number;
    r->mark_late = m->quorums[m->closings[closing].quorum].late;
}

/* Call off its push and its job, which ends without further effect if it is in service; it leaves
   its parent. */
static void put_ashore(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    if (r->state == PUSHING) r->pushed = m->now - r->sent;
    if (r->job == WAITING) r->job = NO_JOB;
    r->state = ASHORE; r->aboard = -1; r->due = NAN;
}

/* The same, and its riders go ashore. */
static void unload(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    put_ashore(m, rank);
    for (whole k = r->children_at; k < r->children_at + r->children; k++)
        if (m->ranks[m->lists[k]].aboard == rank) put_ashore(m, m->lists[k]);
}

/* Its gradient is gone. */
static void give_up(struct job *m, whole rank) {
    unload(m, rank);
    m->ranks[rank].state = GONE;
}

/* Its gradient was thrown away after so many seconds of communication beyond its push. */
static void note_drop(struct job *m, whole rank, double busy) {
    struct rank_row *r = &m->ranks[rank];
    m->dropped += contributed(r);
    r->busy = busy;
    show(m, rank, r->finish - r->start, 0);
    tell(m, rank, DROPPED, -1, 0.0, 1);
}

/* The least count of the ranks in quorums, and how many have it (rule 16). */
EXPORT void find_least(struct job *m) {
    m->least = (whole)1 << 62;
    m->at_least = 0; m->freed = 1;
    for (whole rank = 0; rank < m->workers; rank++) {
        struct rank_row *r = &m->ranks[rank];
        if (r->named && r->count <= m->least) {
            m->at_least = r->count == m->least ? m->at_least + 1 : 1;
            m->least = r->count;
        }
    }
}

/* What a rank contributed was applied or dropped; counts matter to a bound alone (rule 16). */
static void count(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    if (!m->bounded) return;
    whole was = r->count;
    r->count += r->kept + 1;
    if (r->named && was == m->least && --m->at_least == 0) find_least(m);
}

/* Whether the bound keeps a rank from starting (rule 16). */
static int is_ahead(struct job *m, const struct rank_row *r) {
    return m->bounded && r->bound >= 0 && r->count - m->least > r->bound;
}

static void drop(struct job *m, whole rank) {
    give_up(m, rank);
    count(m, rank);
    note_drop(m, rank, 0.0);
}

/* A rank without a gradient goes on with the update of a closing. */
static void wait_for(struct job *m, whole rank, whole closing) {
    m->ranks[rank].relay = -1;
    m->ranks[rank].link = m->closings[closing].waiting;
    m->closings[closing].waiting = rank;
}

/* Cancel its step or push. */
static void cancel(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    give_up(m, rank);
    r->got = least(r->got, m->now);
    r->ended = least(m->now, r->finish);
    m->aborted += contributed(r);
    show(m, rank, most(r->ended - r->start, 0.0), m->now < r->finish);
    tell(m, rank, ABORTED, -1, 0.0, 1);
}

/* The same; the rank goes on with the update of the closing. */
static void abort_step(struct job *m, whole rank, whole closing) {
    cancel(m, rank);
    wait_for(m, rank, closing);
}
