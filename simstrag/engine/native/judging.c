/* Suspects against truth (rule 27). */

/* Seconds that separate the times above `ratio` times the median from the others.
   No time is above that bound which is not above `ratio` times the least.  If those are less than
   half of all, the median is one of the others, and often all the others are below the bound. */
EXPORT double threshold(double *clean, whole n, double ratio) {
    whole half = n / 2;
    double low, high, top, above;
    extent(clean, n, &low, &high);
    if (high <= ratio * low) return INFINITY;
    whole near = split(clean, n, ratio * low, &top, &above);
    if (near > half && ratio * top < above) return ratio * top;
    double upper = kth(clean, n, half + 1), lower = n % 2 ? upper : kth(clean, n, half);
    return ratio * ((lower + upper) / 2);
}

/* Seconds of noise-free steps; whether one may be beyond its segment. */
COLUMNS static int would_take(double *restrict clean, const double *restrict rate,
                              const double *restrict until, whole n, double start) {
    int leaves = 0;
#pragma omp simd reduction(| : leaves)
    for (whole p = 0; p < n; p++) {
        double end = start + rate[p];
        clean[p] = end - start;
        leaves |= !(end <= until[p]);
    }
    return leaves;
}

COLUMNS static void count_above(const double *clean, const flag *taken, whole n, double limit,
                                whole *both, whole *above) {
    whole hits = 0, all = 0;
#pragma omp simd reduction(+ : hits, all)
    for (whole p = 0; p < n; p++) {
        int is_above = clean[p] > limit;
        all += is_above;
        hits += is_above & taken[p];
    }
    *both = hits;
    *above = all;
}

/* The same where all ranks are in lockstep, and began their steps together. */
static void judge_all(struct job *m) {
    double start = m->quorums[0].got, *clean = m->clean;
    double *rate = lane(m, CLEAN_RATE), *until = lane(m, CLEAN_UNTIL);
    if (would_take(clean, rate, until, m->workers, start))
        for (whole rank = 0; rank < m->workers; rank++)
            if (!(start + rate[rank] <= until[rank]))
                clean[rank] = follow(m, rank, 0, start, 1.0, 1, &rate[rank], &until[rank]) - start;
    double limit = threshold(clean, m->workers, m->straggler_ratio);
    whole hits = 0, above = 0;
    if (limit < INFINITY) count_above(clean, m->suspected, m->workers, limit, &hits, &above);
    m->hits += hits; m->false_alarms += m->suspects - hits; m->misses += above - hits;
}

/* Count the ranks that are suspected, and those that straggle. */
static void judge(struct job *m) {
    struct quorum_row *q = &m->quorums[0];
    if (q->lockstep && q->shape != QUEUED && q->size == m->workers) {
        judge_all(m);
        return;
    }
    report(m);
    double *clean = m->clean;
    whole n = 0;
    for (whole rank = 0; rank < m->workers; rank++) {
        struct rank_row *r = &m->ranks[rank];
        if (r->state == NOBODY) continue;
        if (r->clean_step != r->step) {
            r->clean_step = r->step;
            r->clean = noise_free(m, rank, r->step, r->start);
        }
        clean[n++] = r->clean;
    }
    double limit = threshold(clean, n, m->straggler_ratio);
    if (limit == INFINITY) {
        m->false_alarms += m->suspects;
        return;
    }
    for (whole rank = 0; rank < m->workers; rank++) {
        struct rank_row *r = &m->ranks[rank];
        int straggles = r->state != NOBODY && r->clean > limit;
        if (m->suspected[rank]) {
            m->hits += straggles; m->false_alarms += !straggles;
        } else {
            m->misses += straggles;
        }
    }
}
