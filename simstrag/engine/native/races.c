/* A plan's only quorum where all start together and the first so many make the update.

   All gradients count, through an all-reduce or one job of the server each, or the others' steps
   are aborted; then all begin anew with the update, and what happens between two updates follows
   from when each would be done.  A whole round is done at once, or not at all, and none where a
   policy sees aborted steps; what is stale in `ranks` meanwhile stands at the top of lockstep.c. */

/* The first `needed` arrivals win, of equal ones those of the lower ranks; the others lose. */
static void find_winners(struct job *m, struct quorum_row *q) {
    double *won = field(m, WON), *arrival = field(m, ARRIVAL), *samples = field(m, SAMPLES);
    double last = q->closed_at = kth(arrival, q->size, q->needed);
    whole left = q->needed, sum = 0;
    for (whole p = 0; p < q->size; p++) left -= arrival[p] < last;
    for (whole p = 0; p < q->size; p++) {
        whole is_last = arrival[p] == last, is_in = (arrival[p] < last) | (is_last & (left > 0));
        left -= is_last;
        won[p] = (double)is_in;
        sum += is_in * (whole)samples[p];
    }
    q->won = sum;
}

/* When the quorum closes, which gradients it takes, and, returned, when its update is made. */
static double outcome(struct job *m) {
    struct quorum_row *q = &m->quorums[0];
    double *arrival = field(m, ARRIVAL), *finish = field(m, FINISH);
    if (is_whole(q)) {
        q->closed_at = q->latest;
        return reduced(m, 0, q->size, q->latest);
    }
    double push = q->via == SERVER ? m->push : 0.0;
    for (whole p = 0; p < q->size; p++) arrival[p] = finish[p] + push;
    find_winners(m, q);
    if (q->via != SERVER) return reduced(m, 0, q->needed, q->closed_at);
    whole n = 0; /* bits of times, which are in the order of the times */
    for (whole p = 0; p < q->size; p++)
        if (arrival[p] <= q->closed_at) memcpy(&m->scratch[n++], &arrival[p], sizeof(double));
    sort(m, n);
    double end = 0.0, next;
    for (whole k = 0; k < q->needed; k++) {
        memcpy(&next, &m->scratch[k], sizeof next);
        end = most(end, next) + m->service;
    }
    return end;
}

/* A whole round, if it ends by `until`; whether it does. */
static int run_race(struct job *m, double until) {
    struct quorum_row *q = &m->quorums[0];
    whole n = 0, every = q->needed == q->size;
    struct tally t = {.had = m->samples};
    double end = outcome(m);
    if (end > until) return 0;
    q->busy = q->via == SERVER ? m->service : end - q->closed_at;
    q->puller = puller_of(q->via, 0, -1); /* through the server all pull alike */
    m->aborted += q->size - q->needed;
    m->now = end;
    apply_all(m, 0, &t);
    for (whole p = 0; p < q->size && !every && !m->every; p++)
        if (has_won(m, q, p)) m->scratch[n++] = m->lists[p];
    if (conclude(m, &t, q->needed, every ? q->token : -1)) restart(m, 0);
    return 1;
}
