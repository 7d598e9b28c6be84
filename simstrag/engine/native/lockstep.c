/* Fast ways, in which no step is an event: lockstep, as most need members that begin together.

   A quorum is advanced event by event unless its `shape` allows a faster way:

   - BARRIER, which waits for each member, one of several: what is known of its members stands in
     `fields`, a column per member; its closings and updates are events as ever (barriers.c);
   - RACE, the plan's only quorum, of all ranks, where all begin anew with each update: `fields`
     too, and a whole round is done at once (races.c);
   - QUEUED, where all ranks wait for the server alone: a plan's first quorum stands for all its
     quorums, and nothing is an event (queues.c).

   `lockstep` of a quorum says that it is so now.  It becomes so when an update lets members go
   (`fall_in`, `form_queue`), never where single steps are looked at (`may_lockstep`).  Then totals,
   times, versions and states in `ranks` are stale; of a queue `start`, `step`, `job` and what an
   event would write after a finish.  `report` writes state, pull, start and number of the step, for
   a view and rule 27.  `disband_all` writes everything, after which the quorum is advanced event by
   event again: before a new plan that files gradients anew, before an event beyond which the outer
   world has to see every rank, and at the end.  Where a plan says other things of steps, members
   whose update was just made stay in lockstep (`resize`). */

enum { EVENTS, QUEUED, BARRIER, RACE }; /* as in plan_loading.py */

/* Rows of `fields`.  RATE: seconds per unit of work, which hold for steps that end before UNTIL.
   EFFORT: work of a step without noise.  AMP: 1 of steps in reduced precision.  CLEAN_RATE,
   CLEAN_UNTIL: of steps in full precision.  From ARRIVAL on they are of races alone: WON: 1 of
   members whose gradients are in the update; WINS: how often since they fell in. */
enum {
    FINISH, COMPUTE, COMMUNICATION, WAIT, WORK, SHARE, RATE, UNTIL, EFFORT, AMP, CLEAN_RATE,
    CLEAN_UNTIL, ARRIVAL, SAMPLES, WON, WINS
};

static inline double *field(struct job *m, whole name) { return m->fields + name * m->stride; }

/* The same from the first member of a quorum on. */
static inline double *column(struct job *m, const struct quorum_row *q, whole name) {
    return field(m, name) + q->members_at;
}

/* Whether the plan's only quorum is in lockstep, in such a shape. */
static int goes_alone(struct job *m, flag shape) {
    return m->quorums[0].lockstep && m->quorums[0].shape == shape;
}

/* Whether all gradients of a quorum in lockstep count, and none is pushed. */
static int is_whole(const struct quorum_row *q) {
    return q->via != SERVER && q->needed == q->size;
}

/* Whether the gradient of a member is in the update. */
static int has_won(struct job *m, const struct quorum_row *q, whole p) {
    return is_whole(q) || field(m, WON)[p] > 0;
}

/* Seconds for which the gradient of a member was pushed. */
static double push_seconds(struct job *m, const struct quorum_row *q, whole p) {
    double finish = field(m, FINISH)[p];
    if (is_whole(q)) return 0.0;
    return has_won(m, q, p) ? field(m, ARRIVAL)[p] - finish : most(q->closed_at - finish, 0.0);
}

/* Where the gradients of members in lockstep are. */
static flag state_of(const struct quorum_row *q) {
    return q->done ? GONE : q->closing >= 0 ? CLOSED : COMPUTING;
}

/* What a view and rule 27 see of ranks in lockstep. */
EXPORT void report(struct job *m) {
    for (whole rank = 0; rank < m->workers && goes_alone(m, QUEUED); rank++) {
        struct rank_row *r = &m->ranks[rank];
        r->start = r->pulled + m->pull; r->step = r->started - 1;
    }
    for (struct quorum_row *q = m->quorums; q < m->quorums + m->quorum_count; q++) {
        if (!q->lockstep || q->shape == QUEUED) continue;
        for (whole p = q->members_at; p < q->members_at + q->size; p++) {
            struct rank_row *r = &m->ranks[m->lists[p]];
            r->pulled = q->pulled; r->start = q->got;
            r->step = r->started + q->steps_done - 1;
            r->state = state_of(q);
        }
    }
}
