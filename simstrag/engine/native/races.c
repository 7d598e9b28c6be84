/* A plan's only quorum where all start together and the first so many make the update.

   All gradients count, through an all-reduce or one job of the server each, or the others' steps
   are aborted; then all begin anew with the update, and what happens between two updates follows
   from when each would be done.  A whole round is done at once, or not at all, and none where a
   policy sees aborted steps; what is stale in `ranks` meanwhile stands at the top of lockstep.c. */

COLUMNS static void arrive_all(double *restrict arrival, const double *finish, whole n,
                               double push) {
    for (whole p = 0; p < n; p++) arrival[p] = finish[p] + push;
}

/* Mark the members whose gradients arrive until then; how many, and of how many samples. */
COLUMNS static whole mark_winners(double *restrict won, const double *arrival,
                                  const double *samples, whole n, double last, whole *many) {
    double count = 0.0, sum = 0.0;
#pragma omp simd reduction(+ : count, sum)
    for (whole p = 0; p < n; p++) {
        double is_in = arrival[p] <= last;
        won[p] = is_in;
        count += is_in;
        sum += is_in * samples[p];
    }
    *many = (whole)count;
    return (whole)sum;
}

/* The first `needed` arrivals win, of equal ones those of the lower ranks; the others lose. */
static void find_winners(struct job *m, struct quorum_row *q) {
    double *won = lane(m, WON), *arrival = lane(m, ARRIVAL), *samples = lane(m, SAMPLES);
    whole many;
    q->closed_at = kth(arrival, q->size, q->needed);
    q->won = mark_winners(won, arrival, samples, q->size, q->closed_at, &many);
    for (whole p = q->size - 1; many > q->needed; p--)
        if (arrival[p] == q->closed_at) {
            won[p] = 0.0;
            q->won -= (whole)samples[p];
            many--;
        }
}

/* When the quorum closes, which gradients it takes, and, returned, when its update is made. */
static double outcome(struct job *m) {
    struct quorum_row *q = &m->quorums[0];
    double *arrival = lane(m, ARRIVAL), *ordered = lane(m, ORDERED);
    if (is_whole(q)) {
        q->closed_at = q->latest;
        return reduced(m, 0, q->size, q->latest);
    }
    arrive_all(arrival, lane(m, FINISH), q->size, q->via == SERVER ? m->push : 0.0);
    find_winners(m, q);
    if (q->via != SERVER) return reduced(m, 0, q->needed, q->closed_at);
    whole n = 0;
    for (whole p = 0; p < q->size; p++)
        if (arrival[p] <= q->closed_at) ordered[n++] = arrival[p];
    sort_times(ordered, lane(m, SPARE), n);
    double end = 0.0;
    for (whole k = 0; k < q->needed; k++) end = most(end, ordered[k]) + m->service;
    return end;
}

/* Rule 12 for the gradients of a round. */
static void update_round(struct job *m) {
    struct quorum_row *q = &m->quorums[0];
    if (!m->own) m->began_at = m->samples;
    whole staleness = apply_all(m, 0, m->samples);
    double progress = new_version(m, q->needed);
    if (is_logged(m)) {
        whole n = 0;
        for (whole p = 0; p < q->size && !m->every; p++)
            if (has_won(m, q, p)) m->scratch[n++] = m->lists[p];
        int named = q->needed == q->size;
        write_update(m, q->needed, (double)staleness, staleness, progress,
                     named ? NULL : m->scratch, q->needed, named ? q->token : -1);
    }
    if (m->judged) judge(m);
    if (goes_on(m, progress)) restart(m, 0);
}

/* Round after round, until one would end later or the driver is asked for something. */
static void run_race(struct job *m, double until) {
    struct quorum_row *q = &m->quorums[0];
    while (!q->done && wanted(m) == GO_ON) {
        double end = outcome(m);
        if (end > until) {
            disband(m, 0);
            return;
        }
        q->busy = q->via == SERVER ? m->service : end - q->closed_at;
        q->puller = puller_of(q->via, 0, -1); /* through the server all pull alike */
        m->aborted += q->size - q->needed;
        m->now = end;
        update_round(m);
    }
}
