/* From finishes to closings: gradients gather in quorums (rules 11, 14, 17, 18). */

/* A new closing of a quorum, still without gradients. */
static whole open_closing(struct job *m, whole index) {
    struct quorum_row *q = &m->quorums[index];
    whole closing = m->free;
    struct closing_row *c = &m->closings[closing];
    m->free = c->head;
    *c = (struct closing_row){
        .number = c->number, .quorum = index, .via = q->via, .rounds = q->rounds,
        .refiled = m->refiled, .fuse = m->fuse, .mean = m->mean, .cutoff = m->cutoff,
        .power = m->power, .shift = m->shift, .leader = m->workers,
        .head = -1, .last = -1, .waiting = -1, .token = -1, .beside = -1};
    return closing;
}

/* A closing of a quorum whose update was made without one. */
static whole reopen(struct job *m, whole index, double busy) {
    m->to_release = open_closing(m, index);
    m->closings[m->to_release].busy = busy;
    return m->to_release;
}

/* Put a rank at the end of a list of ranks, whose head and last are given. */
static void append(struct job *m, whole rank, whole *head, whole *last) {
    m->ranks[rank].link = -1;
    if (*head < 0) *head = rank;
    else m->ranks[*last].link = rank;
    *last = rank;
}

/* The window or grace of a quorum begins; one that is past is over now (rules 17, 17a). */
static void arm(struct job *m, whole index) {
    struct quorum_row *q = &m->quorums[index];
    if (q->window < INFINITY) schedule(m, most(expiry(m, q), m->now), EXPIRE, index, m->refiled);
}

/* A gradient waits in its quorum; they come in order of (arrival, rank). */
static void add(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    struct quorum_row *q = &m->quorums[r->quorum];
    int counts = !joins(r);
    if (counts) append(m, rank, &q->ready, &q->ready_last);
    else append(m, rank, &q->joining, &q->joining_last);
    q->ready_count += counts; q->arrived++;
    if (counts && q->ready_count == opens_at(q)) {
        q->opening = rank;
        arm(m, r->quorum);
    }
    if (q->grace ? is_full(q) : counts && q->ready_count == q->needed)
        schedule(m, m->now, CLOSE, r->quorum, m->refiled);
}

/* Drop a rank's gradient if its step or push was too late for a closing; whether it was. */
static int drop_late(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    whole closing = r->mark;
    if (closing < 0 || m->quorums[r->quorum].late != DROP) return 0;
    int over = m->closings[closing].number != r->mark_of;
    drop(m, rank);
    if (!over) wait_for(m, rank, closing);
    if (over || m->blocked) release(m, -1, over ? rank : -1);
    return 1;
}

/* A gradient has arrived where it counts. */
static void arrived(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    struct quorum_row *q = &m->quorums[r->quorum];
    r->pushed = r->arrival - r->sent; r->due = NAN;
    if (drop_late(m, rank)) return;
    if (q->tree && r->parent >= 0) {
        r->state = ASHORE;
        push_sum_of_tree(m, r->parent);
        return;
    }
    if (q->via == SERVER) enqueue(m, r->arrival, rank, -1);
    r->state = READY;
    add(m, rank);
}

/* A step ends. */
static void finished(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    r->due = NAN;
    if (r->ahead) {
        ran_on(m, rank);
        return;
    }
    if (!r->named) {
        drop(m, rank);
        r->idle = 1;
        return;
    }
    struct quorum_row *q = &m->quorums[r->quorum];
    if (r->parent >= 0 && !q->tree) {
        r->state = ASHORE;
        return;
    }
    if (drop_late(m, rank)) return;
    if (r->kept + 1 - r->ran_on < (q->steps ? q->steps : r->steps)) {
        keep_on(m, rank);
        return;
    }
    if (!joins(r)) r->mark = -1;
    if (q->tree && (r->parent >= 0 || r->children > 0)) {
        finished_in_tree(m, rank);
        return;
    }
    for (whole k = r->children_at; k < r->children_at + r->children; k++) {
        struct rank_row *child = &m->ranks[m->lists[k]];
        if (child->state == ASHORE) {
            child->state = ABOARD; child->aboard = rank;
        }
    }
    r->sent = r->finish;
    r->arrival = q->via == SERVER ? transfer(m, rank, m->now, m->push) : r->finish;
    if (r->arrival > r->finish) {
        r->state = PUSHING;
        await(m, rank, r->arrival);
    } else {
        arrived(m, rank);
    }
    if (q->overlap) {
        r->prepared = r->kept + 1; r->ahead = r->ran_on = q->overlap;
        run_on(m, rank);
    }
}

static void enter(struct job *m, whole rank, whole closing) {
    struct rank_row *r = &m->ranks[rank];
    r->state = CLOSED; r->closing = closing; r->relay = -1;
    append(m, rank, &m->closings[closing].head, &m->closings[closing].last);
}

/* A ready gradient enters a closing; the rank that came after it. */
static whole contribute(struct job *m, whole rank, whole closing) {
    struct rank_row *r = &m->ranks[rank];
    struct closing_row *c = &m->closings[closing];
    whole onward = r->link;
    c->undone += c->via == SERVER && (r->job == WAITING || r->job == IN_SERVICE);
    c->count++;
    c->leader = rank < c->leader ? rank : c->leader;
    enter(m, rank, closing);
    return onward;
}

/* The first ready gradients, those that join, and their riders enter a closing; the first of the
   rest, or -1. */
static whole take_ready(struct job *m, whole index, whole closing) {
    struct quorum_row *q = &m->quorums[index];
    struct closing_row *c = &m->closings[closing];
    whole rank = q->ready, rest;
    while (rank >= 0 && (q->grace || c->count < q->needed)) rank = contribute(m, rank, closing);
    rest = rank;
    q->ready = -1;
    q->ready_count -= c->count; q->arrived = 0;
    rank = q->joining;
    q->joining = -1;
    while (rank >= 0) rank = contribute(m, rank, closing);
    if (c->count == q->size && !q->ridden) c->token = q->token;
    if (q->ridden) {
        rank = c->head;
        for (whole left = c->count; left > 0; left--) {
            struct rank_row *r = &m->ranks[rank];
            for (whole k = r->children_at; k < r->children_at + r->children; k++) {
                struct rank_row *child = &m->ranks[m->lists[k]];
                if (child->aboard != rank) continue;
                enter(m, m->lists[k], closing);
                if (q->tree) child->relay = rank;
            }
            rank = r->link;
        }
    }
    return rest;
}

/* Rule 14: what DROP, ABORT and JOIN do to gradients that come too late. */
static void turn_away(struct job *m, whole index, whole closing, whole rest) {
    struct quorum_row *q = &m->quorums[index];
    q->ready_count = 0;
    for (whole rank = rest, onward; rank >= 0; rank = onward) {
        onward = m->ranks[rank].link;
        if (q->late == DROP) {
            drop(m, rank);
            wait_for(m, rank, closing);
        } else if (q->late == ABORT) {
            abort_step(m, rank, closing);
        } else {
            mark(m, rank, closing);
            append(m, rank, &q->joining, &q->joining_last);
        }
    }
    for (whole k = q->members_at; k < q->members_at + q->size; k++) {
        whole rank = m->lists[k];
        if (m->ranks[rank].state != COMPUTING && m->ranks[rank].state != PUSHING) continue;
        if (q->late == ABORT) abort_step(m, rank, closing);
        else mark(m, rank, closing);
    }
}

/* The communication of a closing ends then; of equal times the first to begin. */
EXPORT void ends(struct job *m, whole closing, double time) {
    schedule(m, time, END, ++m->serial, closing);
}

/* When an all-reduce among so many members of a quorum ends. */
static double reduced(struct job *m, whole index, whole count, double start) {
    struct quorum_row *q = &m->quorums[index];
    return finish(m, q->net, 0, start, count == q->size ? q->seconds : m->seconds_of[count]);
}

/* Begin the collective of a closing; through the server its jobs are under way already. */
static void send(struct job *m, whole index, whole closing) {
    struct quorum_row *q = &m->quorums[index];
    struct closing_row *c = &m->closings[closing];
    if (q->via == SERVER) {
        if (c->undone == 0) ends(m, closing, m->now);
    } else if (q->asks) {
        m->call = closing;
    } else {
        double end = reduced(m, index, q->partial ? q->size : c->count, m->now);
        c->busy = end - m->now;
        ends(m, closing, end);
    }
}

/* A quorum has what it needs, or its window is over; it re-arms at once. */
static void close_quorum(struct job *m, whole index) {
    struct quorum_row *q = &m->quorums[index];
    whole closing = open_closing(m, index), rest = -1;
    struct closing_row *c = &m->closings[closing];
    if (q->lockstep) {
        c->lockstep = 1; c->count = q->size; c->token = q->token;
        c->leader = m->lists[q->members_at];
        q->closing = closing;
    } else {
        rest = take_ready(m, index, closing);
    }
    int dropped = q->late == DROP && rest >= 0;
    if (q->late != QUEUE) {
        turn_away(m, index, closing, rest);
    } else if (rest >= 0) {
        q->ready = rest;
        arm(m, index);
        if (is_full(q)) schedule(m, m->now, CLOSE, index, m->refiled);
    }
    send(m, index, closing);
    if (dropped && m->blocked) release(m, -1, -1);
}

/* A group goes on with its own model, without a push, unless this was its last round (rule 11). */
static int next_round(struct job *m, whole closing) {
    struct closing_row *c = &m->closings[closing];
    whole rounds = 0, n = 0;
    for (whole rank = c->head; rank >= 0; rank = m->ranks[rank].link) {
        rounds = larger(rounds, m->ranks[rank].rounds);
        m->scratch[n++] = rank;
    }
    if (rounds + 1 >= c->rounds || c->refiled != m->refiled) return 0;
    sort(m, n);
    for (whole k = 0; k < n; k++) {
        struct rank_row *r = &m->ranks[m->scratch[k]];
        r->busy = c->busy; r->rounds++;
        keep_on(m, m->scratch[k]);
        kept_of(m, m->scratch[k])[r->kept - 1].round = m->rounds;
    }
    m->rounds++;
    free_closing(m, closing);
    return 1;
}
