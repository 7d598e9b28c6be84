/* When things end: the arithmetic of `trace.slowdown` and `timing.timing`, bit for bit (rule 0). */

enum { NEAR = 8 }; /* as many segments onwards are looked at one by one */

/* So much before the end of a segment of a looped trace no rounding reaches beyond it. */
static const double SURELY = 1 - 4 * 0x1p-52;

/* A segment of a step function: its number, and in which cycle of a looped trace, whose period all
   step functions that change have; 0 of one that is not looped. */
struct segment {
    whole k;
    double cycle;
};

static inline double segment_end(struct job *m, const struct piece_row *p, struct segment s) {
    if (s.k == p->last) return m->period > 0 ? (s.cycle + 1) * m->period : INFINITY;
    return s.cycle * m->period + m->times[p->at + s.k + 1];
}

/* The segment that holds at `time`.  The search begins with segment `hint`. */
static struct segment segment_at(struct job *m, const struct piece_row *p, whole hint,
                                 double time) {
    const double *starts = m->times + p->at;
    double cycle = m->period > 0 ? floor(time / m->period) : 0.0, now = time - cycle * m->period;
    whole k = hint, last = p->last;
    if (k > last || starts[k] > now || (k + NEAR < last && starts[k + NEAR] <= now)) {
        whole low = 0, high = last + 1;
        while (low < high) {
            whole middle = (low + high) / 2;
            if (starts[middle] <= now) low = middle + 1;
            else high = middle;
        }
        k = low - 1;
    }
    while (k < last && starts[k + 1] <= now) k++;
    return (struct segment){k, cycle};
}

/* The end of work that begins at `start`, in segment `s`, with all values times `factor`: see
   `trace.slowdown.finish`.  Afterwards `s` is the segment in which it ends. */
static inline double walk(struct job *m, const struct piece_row *p, struct segment *s, double start,
                          double work, double factor) {
    const double *value = m->values + p->at;
    for (;;) {
        double end = segment_end(m, p, *s), slow = value[s->k] * factor, alone = start + work * slow;
        if (alone <= end) return alone;
        work = most(work - (end - start) / slow, 0.0);
        start = end;
        s->cycle += s->k == p->last;
        s->k = s->k == p->last ? 0 : s->k + 1;
    }
}

/* The end of work under any step function; `piece` is -1 without one, and `hint` a segment near the
   start. */
static inline double finish(struct job *m, whole piece, whole hint, double start, double work) {
    if (piece < 0) return start + work;
    const struct piece_row *p = &m->pieces[piece];
    if (p->last == 0) return start + work * m->values[p->at];
    struct segment s = segment_at(m, p, hint, start);
    return walk(m, p, &s, start, work, 1.0);
}

/* When a push or pull of a rank ends, which may take longer by a delay (rule 8b). */
static double transfer(struct job *m, whole rank, double start, double seconds) {
    const struct rank_row *r = &m->ranks[rank];
    if (r->delay >= 0) {
        const struct piece_row *p = &m->pieces[r->delay];
        seconds += m->values[p->at + segment_at(m, p, 0, start).k];
    }
    return finish(m, r->net[m->loaded], 0, start, seconds);
}

/* See `constants.Step.effort` and `recorded_effort`. */
static double effort(struct job *m, double share) { return share + m->fixed_share * (1.0 - share); }

static double recorded_effort(struct job *m, double share) {
    double own = effort(m, share);
    return m->overlaps ? most(m->host, m->gpu * own) / most(m->host, m->gpu) : own;
}

/* Units of work of a step without noise; by the overlapping law its rate has the share (6). */
static inline double units(struct job *m, double share) {
    return m->overlaps ? 1.0 : effort(m, share);
}

/* The recorded duration of a step; those in reduced precision follow the others (rule 10). */
static double recorded(struct job *m, whole rank, whole k, int amp) {
    struct rank_row *r = &m->ranks[rank];
    if (k >= r->recorded) {
        if (m->halts) m->out = rank;
        k = m->loops ? k % r->recorded : r->recorded - 1;
    }
    return m->durations[(amp ? m->durations_size / 2 : 0) + r->recorded_at + k];
}

/* The end of work under a step function times `factor`, whose segment near the start is `cursor`.
   Also the seconds per unit of work, and the time until which they surely hold: from the segment of
   the start if the work may be aborted, else from that of the end. */
static inline double follow_piece(struct job *m, whole piece, whole *cursor, double start,
                                  double work, double factor, int may_abort, double *rate,
                                  double *until) {
    const struct piece_row *p = &m->pieces[piece];
    if (p->last == 0) {
        *rate = m->values[p->at] * factor;
        *until = INFINITY;
        return start + work * *rate;
    }
    struct segment first = segment_at(m, p, *cursor, start), last = first;
    double end = walk(m, p, &last, start, work, factor);
    struct segment s = may_abort ? first : last;
    *cursor = s.k;
    /* each rank walks through memory of its own, so no hardware foresees these */
    __builtin_prefetch(m->times + p->at + s.k + NEAR);
    __builtin_prefetch(m->values + p->at + s.k + NEAR);
    *rate = m->values[p->at + s.k] * factor;
    *until = segment_end(m, p, s) * (m->period > 0 ? SURELY : 1.0);
    return end;
}

/* When launching and computing of a step end by the overlapping law; the larger rate of the two. */
struct streams {
    double launched, computed;
};

static struct streams follow_streams(struct job *m, whole rank, whole variant, double start,
                                     double work, double share, int may_abort, double *rate,
                                     double *until) {
    struct rank_row *r = &m->ranks[rank];
    struct streams end;
    double slower, sooner;
    end.launched = follow_piece(m, r->launch[variant], &r->launch_cursor[variant], start, work,
                                1.0, may_abort, rate, until);
    end.computed = follow_piece(m, r->stretch[variant], &r->cursor[variant], start, work,
                                effort(m, share), may_abort, &slower, &sooner);
    *rate = most(*rate, slower);
    *until = least(*until, sooner);
    return end;
}

/* The end of a rank's work; precision and load are the `variant`, which stretches the work. */
static inline double follow(struct job *m, whole rank, whole variant, double start, double work,
                            double share, int may_abort, double *rate, double *until) {
    struct rank_row *r = &m->ranks[rank];
    if (m->overlaps) {
        struct streams end =
            follow_streams(m, rank, variant, start, work, share, may_abort, rate, until);
        return most(end.launched, end.computed);
    }
    return follow_piece(m, r->stretch[variant], &r->cursor[variant], start, work, 1.0, may_abort,
                        rate, until);
}

/* Note when the streams of the step under way end, which began with so much work (rule 8a). */
static void note_streams(struct job *m, whole rank, double start, double work) {
    struct rank_row *r = &m->ranks[rank];
    double rate, until;
    struct streams end = follow_streams(m, rank, 2 * m->loaded + r->amp, start, work, r->share, 1,
                                        &rate, &until);
    r->launched = end.launched; r->computed = end.computed;
}

/* When that part of the next step of a rank ends, if it starts computing at `start` (rule 2).
   factor: of its noise. */
static double compute(struct job *m, whole rank, double start, int amp, double share, double factor,
                      double part) {
    struct rank_row *r = &m->ranks[rank];
    if (r->recorded)
        return start + recorded(m, rank, r->started, amp) * recorded_effort(m, share) * part;
    double rate, until, work = factor * units(m, share) * part;
    return follow(m, rank, 2 * m->loaded + amp, start, work, share, 1, &rate, &until);
}

/* How many micro-batches of the next step a deadline leaves (rule 6a). */
static whole micro_batches(struct job *m, whole rank, double start, int amp, double share,
                           double factor) {
    whole low = 0, high = m->microbatches - 1;
    while (low < high) { /* as `bisect.bisect_right` */
        whole middle = (low + high) / 2;
        double part = (double)(middle + 1) / m->microbatches;
        if (m->deadline < compute(m, rank, start, amp, share, factor, part) - start) high = middle;
        else low = middle + 1;
    }
    return low + 1;
}

/* Seconds of a full-precision step without noise and server load (rule 27). */
static double noise_free(struct job *m, whole rank, whole k, double start) {
    struct rank_row *r = &m->ranks[rank];
    if (r->recorded) return recorded(m, rank, k, 0);
    double end = finish(m, r->stretch[0], r->cursor[0], start, 1.0);
    if (m->overlaps) end = most(end, finish(m, r->launch[0], r->launch_cursor[0], start, 1.0));
    return end - start;
}

/* Seconds of a rank's step that lie beyond the end of the trace (rule 8). */
static inline double beyond(struct job *m, whole rank, whole step, double start, double end) {
    whole recorded = m->replays ? m->ranks[rank].recorded : 0;
    if (recorded) return step >= recorded ? most(0.0, end - start) : 0.0;
    return most(0.0, end - most(start, m->trace_end));
}
