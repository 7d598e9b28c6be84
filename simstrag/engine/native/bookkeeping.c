/* What is written down while a job goes on; nothing here changes what happens. */

/* What a rank did from one pull to the next, in seconds. */
struct cycle {
    double compute, communication, wait;
};

/* The cycle from `pulled` to `time`: the parameters came at `got`, the step ended at `ended`, and
   communication kept the gradient busy for some seconds after that. */
static inline struct cycle cycle_of(double time, double pulled, double got, double ended,
                                    double busy) {
    double fetched = got - pulled, seconds = most(ended - got, 0.0);
    double after = least(busy, most(time - ended, 0.0));
    double wait = most(time - pulled - fetched - seconds - after, 0.0);
    return (struct cycle){seconds, fetched + after, wait};
}

static inline void account_cycle(struct rank_row *r, struct cycle cycle) {
    r->compute += cycle.compute;
    r->communication += cycle.communication;
    r->wait += cycle.wait;
}

/* Account for the time of a rank from its last pull up to now, its next one. */
static void close_cycle(struct job *m, whole rank) {
    struct rank_row *r = &m->ranks[rank];
    if (r->state == NOBODY) return;
    double time = m->now, ended = least(r->ended, time);
    double pushed = r->state == PUSHING ? time - r->sent : r->pushed;
    struct cycle c = cycle_of(time, r->pulled, least(r->got, time), ended, pushed + r->busy);
    double paused = least(c.compute, r->paused);
    c.compute -= paused; c.wait += paused; r->pauses += paused;
    account_cycle(r, c);
    if (m->holds && c.compute != 0.0) m->beyond += beyond(m, rank, r->step, r->start, ended);
    if (m->keeps_steps && r->ended <= time)
        m->step_log[m->steps++] =
            (struct step_row){rank,     r->step,  r->version, r->amp,
                              r->start, r->ended, c.wait,     c.communication};
}

/* One step more of a rank, in every table of what is shown. */
static void show_step(struct job *m, whole rank, double seconds, double share, double communicated,
                      flag amp, flag cancelled) {
    whole k = m->known[rank];
    if (m->ahead && k - m->before[rank] == m->ring - WINDOW) {
        m->overrun = 1; /* the row is still shown at the review before the block */
        return;
    }
    whole at = (k & (m->ring - 1)) * m->workers + rank;
    m->known[rank] = k + 1;
    if (m->shows) {
        m->shown_local_times[at] = seconds;
        m->shown_communication[at] = communicated;
        m->shown_batch[at] = share;
        m->shown_amp[at] = amp;
        m->shown_lower_bound[at] = cancelled;
    }
}

static struct kept_row *kept_of(struct job *m, whole rank) {
    return m->kept + rank * (m->kept_size / m->workers);
}

/* Gradients of its contribution among those that it keeps; the last may be beside them. */
static whole kept_for(const struct rank_row *r) { return r->prepared ? r->prepared : r->kept; }
static whole contributed(const struct rank_row *r) { return kept_for(r) + !r->prepared; }

/* Rule 7: a policy sees a step once its gradient has met its fate; what is kept comes first. */
static void show(struct job *m, whole rank, double seconds, int lower_bound) {
    struct rank_row *r = &m->ranks[rank];
    double batch = (double)m->batch;
    for (whole k = 0; k < kept_for(r); k++) {
        struct kept_row *w = kept_of(m, rank) + k;
        show_step(m, rank, w->seconds, w->samples / batch, w->communication, w->amp != 0, 0);
    }
    if (r->prepared) return;
    double share = lower_bound ? r->share : r->samples / batch;
    show_step(m, rank, seconds, share, r->got - r->pulled + r->pushed, r->amp, lower_bound);
}

/* Write the fate of a contribution down, gradient by gradient.  update: -1 for none.
   weight: of a gradient of `all` samples. */
static void tell(struct job *m, whole rank, whole fate, whole update, double weight, whole all) {
    struct rank_row *r = &m->ranks[rank];
    if (!m->keeps_fates) return;
    for (whole k = 0; k < contributed(r); k++) {
        struct kept_row last = {r->step, r->samples, 0, 0, r->amp, -1};
        struct kept_row *w = k < r->kept ? kept_of(m, rank) + k : &last;
        double share = (double)w->samples / all * weight;
        m->fate_log[m->fates++] = (struct fate_row){
            update, rank, w->step, r->version, w->amp, w->samples, share, fate, w->round};
    }
}

/* What the open visible update makes of progress (rule 25). */
static double worth(struct job *m) {
    return m->own / (m->noise_scale + m->own + m->c_tau * ((double)m->stale / m->own));
}

/* The progress so far. */
static double progress(struct job *m) { return m->unknown ? NAN : m->booked + worth(m); }

/* An update: samples before it, its gradients, the sum of their staleness, and the largest. */
struct tally {
    whole had, gradients, stale, stalest;
};

/* A sum that no run is too long for: `low` has its low 64 bits, `high` the others. */
static void accumulate(whole *low, whole *high, __int128 more) {
    __int128 sum = (__int128)((unsigned __int128)*high << 64 | (word)*low) + more;
    *low = (whole)sum; *high = (whole)(sum >> 64);
}

/* Gradients of ranks that saw `seen` samples at their pull become part of the parameters, and
   missed what was applied meanwhile (rule 25a). */
static void learn(struct job *m, struct tally *t, whole gradients, whole samples, whole staleness,
                  whole seen) {
    __int128 missed = t->had - seen;
    if (!m->own) m->began_at = t->had;
    m->own += samples;
    m->stale += samples * (m->began_at - seen);
    m->samples += samples;
    accumulate(&m->missed_low, &m->missed_high, gradients * (missed * missed));
    t->gradients += gradients;
    t->stale += gradients * staleness;
    t->stalest = larger(t->stalest, staleness);
}

/* A rank pulls: the open visible update, if any, ends. */
static void seen(struct job *m) {
    if (m->own) {
        m->booked += worth(m);
        accumulate(&m->stale_low, &m->stale_high, m->stale);
        m->own = m->stale = 0;
    }
}
