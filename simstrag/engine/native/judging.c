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
