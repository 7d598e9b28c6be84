/* Suspects against truth (rule 27). */

COLUMNS static void extent(const double *clean, whole n, double *low, double *high) {
    double lowest = clean[0], highest = clean[0];
#pragma omp simd reduction(min : lowest) reduction(max : highest)
    for (whole p = 0; p < n; p++) {
        lowest = least(lowest, clean[p]);
        highest = most(highest, clean[p]);
    }
    *low = lowest;
    *high = highest;
}

/* How many are not above a bound, the largest of them, and the least of the others. */
COLUMNS static whole split(const double *clean, whole n, double bound, double *top, double *above) {
    whole near = 0;
    double largest = -INFINITY, smallest = INFINITY;
#pragma omp simd reduction(+ : near) reduction(max : largest) reduction(min : smallest)
    for (whole p = 0; p < n; p++) {
        int is_near = clean[p] <= bound;
        near += is_near;
        largest = most(largest, is_near ? clean[p] : -INFINITY);
        smallest = least(smallest, is_near ? INFINITY : clean[p]);
    }
    *top = largest;
    *above = smallest;
    return near;
}

/* Bring the `half`-th of the times in order to its place, none larger before it (Hoare). */
static void select_time(double *times, whole n, whole half) {
    whole low = 0, high = n - 1;
    while (low < high) {
        double pivot = times[half];
        whole i = low, j = high;
        while (i <= j) {
            while (times[i] < pivot) i++;
            while (times[j] > pivot) j--;
            if (i <= j) {
                double time = times[i];
                times[i++] = times[j];
                times[j--] = time;
            }
        }
        if (j < half) low = i;
        if (i > half) high = j;
    }
}

/* Seconds that separate those above `ratio` times the median from the others.
   Nobody is above it who is not above `ratio` times the least.  If those are less than half of all,
   the median is one of the others, and often none of them is large enough to matter. */
EXPORT double threshold(double *clean, double *spare, whole n, double ratio) {
    whole half = n / 2;
    double low, high, top, above;
    extent(clean, n, &low, &high);
    if (high <= ratio * low) return INFINITY;
    whole near = split(clean, n, ratio * low, &top, &above);
    if (near > half && ratio * top < above) return ratio * top;
    memcpy(spare, clean, (size_t)n * sizeof *clean);
    select_time(spare, n, half);
    double below = spare[half];
    if (n % 2 == 0) {
        below = spare[0];
        for (whole k = 1; k < half; k++) below = most(below, spare[k]);
    }
    return ratio * ((below + spare[half]) / 2);
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
            if (!(start + rate[rank] <= until[rank])) {
                clean[rank] = finish_from(m, rank, 0, start, 1.0) - start;
                segment(m, rank, 0, start, &rate[rank], &until[rank]);
            }
    double limit = threshold(clean, clean + m->workers, m->workers, m->straggler_ratio);
    whole hits = 0, above = 0;
    if (limit < INFINITY) count_above(clean, m->suspected, m->workers, limit, &hits, &above);
    m->hits += hits; m->false_alarms += m->suspects - hits; m->misses += above - hits;
}

/* Count who is suspected, and who straggles. */
static void judge(struct job *m) {
    struct quorum_row *q = &m->quorums[0];
    if (q->lockstep && !q->queue && q->size == m->workers) {
        judge_all(m);
        return;
    }
    note_steps(m);
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
    double limit = threshold(clean, clean + m->workers, n, m->straggler_ratio);
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
