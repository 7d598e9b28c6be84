/* A plan's only quorum where all start together and the first so many make the update.

   Either everybody's gradient counts, one job of the server each, or the others' steps are aborted;
   then all begin anew with the update, and what happens between two updates follows from when each
   would be done.  A whole round is done at once, or not at all; what is stale in `ranks` meanwhile
   stands at the top of lockstep.c. */

/* Ascending, in place, by merging; `spare` has room for as many. */
static void sort_times(double *times, double *spare, whole n) {
    enum { FEW = 16 };
    for (whole at = 0; at < n; at += FEW) {
        whole end = at + FEW < n ? at + FEW : n;
        for (whole k = at + 1; k < end; k++) {
            double time = times[k];
            whole j = k;
            for (; j > at && times[j - 1] > time; j--) times[j] = times[j - 1];
            times[j] = time;
        }
    }
    double *from = times, *to = spare;
    for (whole width = FEW; width < n; width *= 2) {
        for (whole at = 0; at < n; at += 2 * width) {
            whole middle = at + width < n ? at + width : n;
            whole end = middle + width < n ? middle + width : n, i = at, j = middle, k = at;
            while (i < middle && j < end) {
                int left = from[i] <= from[j];
                to[k++] = left ? from[i] : from[j];
                i += left;
                j += !left;
            }
            while (i < middle) to[k++] = from[i++];
            while (j < end) to[k++] = from[j++];
        }
        double *other = from;
        from = to;
        to = other;
    }
    if (from != times) memcpy(times, from, (size_t)n * sizeof *times);
}

COLUMNS static void arrive_all(double *restrict arrival, double *restrict ordered,
                               const double *finish, whole n, double push) {
    for (whole p = 0; p < n; p++) arrival[p] = ordered[p] = finish[p] + push;
}

/* Mark who arrives until then; how many. */
COLUMNS static whole mark_winners(double *restrict won, const double *arrival, whole n,
                                  double last) {
    whole many = 0;
#pragma omp simd reduction(+ : many)
    for (whole p = 0; p < n; p++) {
        int is_in = arrival[p] <= last;
        won[p] = is_in;
        many += is_in;
    }
    return many;
}

/* Of those who arrive last the lower ranks win, `over` too many are marked; the winners' samples.
 */
static whole settle_ties(struct job *m, whole over, double last) {
    double *won = lane(m, WON), *arrival = lane(m, ARRIVAL);
    whole samples = 0;
    for (whole p = m->quorums[0].size - 1; p >= 0; p--) {
        if (over > 0 && arrival[p] == last) {
            won[p] = 0.0;
            over--;
        }
        if (won[p] > 0) samples += m->ranks[m->lists[p]].samples;
    }
    return samples;
}

/* Who wins, when the quorum closes, and, returned, when its update is made. */
static double outcome(struct job *m) {
    struct quorum_row *q = &m->quorums[0];
    double *ordered = lane(m, ORDERED), *arrival = lane(m, ARRIVAL), push = 0.0, end = 0.0;
    if (q->via == SERVER) push = m->push;
    arrive_all(arrival, ordered, lane(m, FINISH), q->size, push);
    sort_times(ordered, lane(m, SPARE), q->size);
    q->closed_at = ordered[q->needed - 1];
    whole many = mark_winners(lane(m, WON), arrival, q->size, q->closed_at);
    q->won = q->needed < q->size ? settle_ties(m, many - q->needed, q->closed_at) : q->samples;
    if (q->via != SERVER) return q->closed_at + m->seconds_of[q->needed];
    for (whole k = 0; k < q->needed; k++) end = most(end, ordered[k]) + m->service;
    return end;
}

/* What a policy sees of those who lost: see `abort_step`. */
static void show_losers(struct job *m) {
    struct quorum_row *q = &m->quorums[0];
    for (whole p = 0; p < q->size; p++) {
        if (lane(m, WON)[p] != 0) continue;
        struct rank_row *r = &m->ranks[m->lists[p]];
        double finish = lane(m, FINISH)[p], pushed = most(q->closed_at - finish, 0.0);
        int bound = q->closed_at < finish;
        show_step(m, m->lists[p], most(least(q->closed_at, finish) - q->got, 0.0),
                  bound ? r->share : (double)r->samples / m->batch, q->got - q->pulled + pushed,
                  r->amp, bound);
    }
}

/* Round after round, until one would end later or the driver is asked for something. */
static void run_race(struct job *m, double until) {
    struct quorum_row *q = &m->quorums[0];
    while (q->closing < 0 && wanted(m) == GO_ON) {
        double end = outcome(m);
        if (end > until) {
            disband(m, 0);
            return;
        }
        whole closing = open_closing(m, 0);
        struct closing_row *c = &m->closings[closing];
        close_all(m, 0, closing);
        c->count = q->needed;
        c->busy = q->via == SERVER ? m->service : end - q->closed_at;
        c->token = q->needed == q->size ? q->token : -1;
        m->aborted += q->size - q->needed;
        if (m->shows) show_losers(m);
        m->now = end;
        update(m, closing);
    }
}
