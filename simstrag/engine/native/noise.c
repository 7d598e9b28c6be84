/* Step-time noise (rule 4): the factor of a rank's step k depends on the rank's key and k alone.
   The same as `timing.noise`, bit for bit; what the tables hold is said there. */

enum { CELLS = 4096, NODES = CELLS + 1, BLOCK = 1024, REACH = 6, PER_UNIT = 512 };

/* Output n of the generator SplitMix64 with this state. */
static inline word nth(word state, whole n) {
    word z = state + ((word)n + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* The quantile at a random word: 12 bits are the cell, the next 52 or 40 the place in it. */
static inline double quantile(const double *table, word drawn) {
    word cell = drawn >> 52, row = cell == 0 ? NODES : cell == CELLS - 1 ? 2 * NODES : 0;
    drawn = row ? drawn << 12 : drawn;
    const double *node = table + row + (drawn >> 52);
    double into = (double)(whole)(drawn & 0xFFFFFFFFFFFFFu) * 0x1p-52;
    return node[0] + into * (node[1] - node[0]);
}

/* The factor at a normal number. */
static inline double marginal(const double *table, double x) {
    double place = least(most((x + REACH) * PER_UNIT, 0.0), 2.0 * REACH * PER_UNIT);
    const double *node = table + (whole)place;
    return node[0] + (place - (double)(whole)place) * (node[1] - node[0]);
}

/* The normal number before step `k`, the first of a block: in each block the autoregressive process
   starts anew, `warmup` draws before it, so that any step is reached at once. */
static double warm_up(struct job *m, word key, whole k) {
    whole from = k - m->warmup;
    double x = quantile(m->quantiles, nth(key, from));
    while (++from < k) x = m->rho * x + m->innovation * quantile(m->quantiles, nth(key, from));
    return x;
}

/* The work of the next step of `n` ranks from `first` on: factors times `effort`. */
static inline void draw_work(struct job *m, whole first, whole n, double *restrict work,
                             const double *effort) {
    const word *keys = m->keys + first;
    const double *table = m->quantiles, *factors = m->marginal, rho = m->rho, new = m->innovation;
    whole *restrict drawn = m->drawn + first;
    double *restrict normal = m->normal + first;
    if (rho == 0) { /* a loop of its own: clang makes nothing of one with a condition */
#pragma omp simd
        for (whole p = 0; p < n; p++) work[p] = quantile(table, nth(keys[p], drawn[p]++)) * effort[p];
        return;
    }
    for (whole p = 0; p < n; p++)
        if (drawn[p] % BLOCK == 0) normal[p] = warm_up(m, keys[p], drawn[p]);
#pragma omp simd
    for (whole p = 0; p < n; p++) {
        normal[p] = rho * normal[p] + new * quantile(table, nth(keys[p], drawn[p]++));
        work[p] = marginal(factors, normal[p]) * effort[p];
    }
}

/* The factor of a rank's next step; 1 without noise. */
static inline double draw(struct job *m, whole rank) {
    double factor = 1.0, alone = 1.0;
    if (m->noisy) draw_work(m, rank, 1, &factor, &alone);
    return factor;
}
