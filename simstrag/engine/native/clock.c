/* When things end: the arithmetic of `trace.slowdown` and `timing.timing`, bit for bit (rule 0). */

enum { NEAR = 8 }; /* as many segments onwards are looked at one by one */

/* So much before the end of a segment no rounding reaches beyond it. */
static const double SURELY = 1 - 4 * 0x1p-52;

/* Which segment of a piece holds at `now`, looked for from the segment `since` on. */
static whole segment_at(struct job *m, whole piece, whole since, double now) {
    const struct piece_row *p = &m->pieces[piece];
    const double *time = m->times + p->at;
    whole k = since, last = p->last;
    if (k > last || time[k] > now || (k + NEAR < last && time[k + NEAR] <= now)) {
        whole low = 0, high = last + 1;
        while (low < high) {
            whole middle = (low + high) / 2;
            if (time[middle] <= now) low = middle + 1;
            else high = middle;
        }
        return low - 1;
    }
    while (k < last && time[k + 1] <= now) k++;
    return k;
}

/* When `work` ends that begins at `start`, segment by segment: see `trace.slowdown.finish`. */
static double walk(struct job *m, whole piece, whole since, double start, double work) {
    const struct piece_row *p = &m->pieces[piece];
    const double *time = m->times + p->at, *value = m->values + p->at;
    int looped = p->period < INFINITY;
    double cycle = looped ? floor(start / p->period) : 0.0, base = looped ? cycle * p->period : 0.0;
    whole k = segment_at(m, piece, since, start - base);
    for (;;) {
        double end = k < p->last ? base + time[k + 1] : looped ? (cycle + 1) * p->period : INFINITY;
        double alone = start + work * value[k];
        if (alone <= end) return alone;
        work = most(work - (end - start) / value[k], 0.0);
        start = end;
        if (k < p->last) {
            k++;
        } else {
            k = 0;
            cycle++;
            base = cycle * p->period;
        }
    }
}

/* The same; `since` is a segment that does not begin after `start`. */
static inline double finish(struct job *m, whole piece, whole since, double start, double work) {
    const struct piece_row *p = &m->pieces[piece];
    return p->last ? walk(m, piece, since, start, work) : start + work * m->values[p->at];
}

/* When a push or pull of a rank ends. */
static double transfer(struct job *m, whole rank, double start, double seconds) {
    whole piece = m->ranks[rank].net[m->loaded];
    return piece < 0 ? start + seconds : finish(m, piece, 0, start, seconds);
}

/* See `constants.Step.effort`. */
static double effort(struct job *m, double share) { return share + m->fixed_share * (1.0 - share); }

/* The factor of noise of a rank's next step but `k` of those at hand (rule 4). */
static inline double factor(struct job *m, whole rank, whole k) {
    whole rows = m->noise_size / m->workers;
    m->low |= k + 1 >= rows;
    return m->noise[k * m->workers + rank];
}

/* The recorded duration of a step (rule 10). */
static double recorded(struct job *m, whole rank, whole k, int amp) {
    struct rank_row *r = &m->ranks[rank];
    if (k >= r->recorded) {
        if (m->halts) m->out = rank;
        k = m->loops ? k % r->recorded : r->recorded - 1;
    }
    double seconds = m->durations[r->recorded_at + k];
    return amp ? seconds / m->amp_ratio : seconds;
}

static double base_of(double now, double period) {
    return period < INFINITY ? floor(now / period) * period : 0.0;
}

/* When work of a rank ends; `variant`: precision and load, which stretch it. */
static double finish_from(struct job *m, whole rank, whole variant, double start, double work) {
    struct rank_row *r = &m->ranks[rank];
    whole piece = r->stretch[variant];
    const struct piece_row *p = &m->pieces[piece];
    if (p->last == 0) return start + work * m->values[p->at];
    double base = base_of(start, p->period);
    r->cursor[variant] = segment_at(m, piece, r->cursor[variant], start - base);
    return walk(m, piece, r->cursor[variant], start, work);
}

/* When that part of the next step of a rank ends, if it starts computing at `start` (rule 2). */
static double compute(struct job *m, whole rank, double start, int amp, double share, double part) {
    struct rank_row *r = &m->ranks[rank];
    if (r->recorded) return start + recorded(m, rank, r->started, amp) * effort(m, share) * part;
    double work = effort(m, share) * part;
    if (m->noisy) work = factor(m, rank, r->started - r->noise_from) * effort(m, share) * part;
    return finish_from(m, rank, 2 * m->loaded + amp, start, work);
}

/* How many micro-batches of the next step a deadline leaves (rule 6a). */
static whole micro_batches(struct job *m, whole rank, double start, int amp, double share) {
    whole low = 0, high = m->microbatches - 1;
    while (low < high) { /* as `bisect.bisect_right` */
        whole middle = (low + high) / 2;
        double part = (double)(middle + 1) / m->microbatches;
        if (m->deadline < compute(m, rank, start, amp, share, part) - start) high = middle;
        else low = middle + 1;
    }
    return low + 1;
}

/* Seconds of a full-precision step without noise and server load (rule 27). */
static double noise_free(struct job *m, whole rank, whole k, double start) {
    struct rank_row *r = &m->ranks[rank];
    if (r->recorded) return recorded(m, rank, k, 0);
    return finish(m, r->stretch[0], r->cursor[0], start, 1.0) - start;
}

/* Seconds of a rank's step that lie beyond the end of the trace (rule 8). */
static double beyond(struct job *m, whole rank, double end) {
    struct rank_row *r = &m->ranks[rank];
    if (r->recorded) return r->step >= r->recorded ? most(0.0, end - r->start) : 0.0;
    return most(0.0, end - most(r->start, m->trace_end));
}

/* Seconds per unit of work of a rank at `now`, and until when they surely hold. */
static void segment(struct job *m, whole rank, whole variant, double now, double *rate,
                    double *until) {
    struct rank_row *r = &m->ranks[rank];
    const struct piece_row *p = &m->pieces[r->stretch[variant]];
    if (p->last == 0) {
        *rate = m->values[p->at];
        *until = INFINITY;
        return;
    }
    double cycle = p->period < INFINITY ? floor(now / p->period) : 0.0;
    double base = p->period < INFINITY ? cycle * p->period : 0.0;
    whole k = segment_at(m, r->stretch[variant], r->cursor[variant], now - base);
    r->cursor[variant] = k;
    double end = k < p->last ? base + m->times[p->at + k + 1] : (cycle + 1) * p->period;
    *rate = m->values[p->at + k];
    *until = end * SURELY;
}
