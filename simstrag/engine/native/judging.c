/* Suspects against truth (rule 27). */

/* The bound of `ratio` times the median; infinity where no time can be above it. */
EXPORT double threshold(double *clean, whole n, double ratio) {
    double low, high;
    extent(clean, n, &low, &high);
    if (high <= ratio * low) return INFINITY;
    double upper = kth(clean, n, n / 2 + 1), lower = n % 2 ? upper : kth(clean, n, n / 2);
    return ratio * ((lower + upper) / 2);
}

/* Count the ranks that are suspected, and those that straggle. */
static void judge(struct job *m) {
    whole n = 0, above = 0, hits = 0;
    report(m);
    for (whole rank = 0; rank < m->workers; rank++) {
        struct rank_row *r = &m->ranks[rank];
        if (r->state == NOBODY) continue;
        if (r->clean_step != r->step) {
            r->clean_step = r->step;
            r->clean = noise_free(m, rank, r->step, r->start);
        }
        m->clean[n++] = r->clean;
    }
    double limit = threshold(m->clean, n, m->straggler_ratio);
    for (whole rank = 0; rank < m->workers; rank++) {
        struct rank_row *r = &m->ranks[rank];
        if (r->state == NOBODY || r->clean <= limit) continue;
        above++;
        hits += m->suspected[rank];
    }
    m->hits += hits; m->false_alarms += m->suspects - hits; m->misses += above - hits;
}
