/* Suspects against truth (rule 27). */

/* The limit above which a step is that of a straggler: `ratio` times the median, or another time
   that separates the same steps.  Times up to `ratio` times the least are no straggler's.  Where
   they are more than half of all, the median is one of them, and the largest may stand for it if
   `ratio` times that is less than all others. */
EXPORT double threshold(double *clean, whole n, double ratio) {
    double low, high, top, above;
    split(clean, n, -INFINITY, &top, &low);
    split(clean, n, INFINITY, &high, &above);
    if (high <= ratio * low) return INFINITY;
    if (split(clean, n, ratio * low, &top, &above) > n / 2 && ratio * top < above)
        return ratio * top;
    double upper = kth(clean, n, n / 2 + 1), lower = n % 2 ? upper : kth(clean, n, n / 2);
    return ratio * ((lower + upper) / 2);
}

/* Seconds of the noise-free steps of all ranks, which ranks take; how many have started. */
static whole take_steps(struct job *m) {
    whole n = 0;
    report(m);
    for (whole rank = 0; rank < m->workers; rank++) {
        struct rank_row *r = &m->ranks[rank];
        if (r->state == NOBODY) continue;
        int is_out = !r->named && r->state == GONE;
        if (is_out || r->clean_step != r->step) {
            r->clean_step = is_out ? -1 : r->step;
            r->clean = noise_free(m, rank, r->step, is_out ? m->now : r->start);
        }
        m->clean[n] = r->clean;
        m->taken[n++] = m->suspected[rank];
    }
    return n;
}

/* The same of ranks in lockstep that began together; whether one may be beyond its segment. */
COLUMNS static int take_columns(double *restrict clean, const double *rate, const double *until,
                                whole n, double start) {
    whole leaves = 0; /* as wide as a double */
#pragma omp simd reduction(| : leaves)
    for (whole p = 0; p < n; p++) {
        double end = start + rate[p];
        clean[p] = end - start;
        leaves |= end >= until[p];
    }
    return leaves;
}

COLUMNS static whole count_above(const double *clean, const flag *suspected, whole n, double limit,
                                 whole *both) {
    whole above = 0, hits = 0;
#pragma omp simd reduction(+ : above, hits)
    for (whole p = 0; p < n; p++) {
        int is_above = clean[p] > limit;
        above += is_above;
        hits += is_above & suspected[p];
    }
    *both = hits;
    return above;
}

/* Count the ranks that are suspected, and those that straggle; a queue keeps `clean` itself. */
static void judge(struct job *m) {
    double *clean = m->clean, *rate = field(m, CLEAN_RATE), *until = field(m, CLEAN_UNTIL);
    double start = m->quorums[0].got;
    whole n = m->workers, hits;
    int queue = goes_alone(m, QUEUED), race = goes_alone(m, RACE) && !m->replays;
    if (!queue && !race) n = take_steps(m);
    else if (race && take_columns(clean, rate, until, n, start))
        for (whole p = 0; p < n; p++)
            if (start + rate[p] >= until[p])
                clean[p] = follow(m, p, 0, start, 1.0, 1.0, 1, &rate[p], &until[p]) - start;
    double limit = threshold(clean, n, m->straggler_ratio);
    whole above = count_above(clean, queue || race ? m->suspected : m->taken, n, limit, &hits);
    m->hits += hits; m->false_alarms += m->suspects - hits; m->misses += above - hits;
}
