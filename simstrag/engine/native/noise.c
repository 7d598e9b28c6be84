/* Step-time noise (rule 4): the factor of a rank's step k depends on the rank's key and k alone.
   The same as `timing.noise`, bit for bit; what the tables hold is said there. */

enum { CELLS = 4096, NODES = CELLS + 1, BLOCK = 1024, REACH = 6, PER_UNIT = 512 };
enum { AHEAD = 8, TILE = 8, MANY = AHEAD * TILE }; /* steps and ranks that are drawn at once */

/* Output n of the generator SplitMix64 with this state. */
static inline word nth(word state, whole n) {
    word z = state + ((word)n + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* The place of a random word among the quantiles: 12 bits are the cell, the next 52 or 40 the place
   in it. */
struct place {
    word cell, bits;
};

static inline struct place place_of(word drawn) {
    word cell = drawn >> 52, row = cell == 0 ? NODES : cell == CELLS - 1 ? 2 * NODES : 0;
    drawn = row ? drawn << 12 : drawn;
    return (struct place){row + (drawn >> 52), drawn & 0xFFFFFFFFFFFFFu};
}

static inline double between(const double *node, double into) {
    return node[0] + into * (node[1] - node[0]);
}

/* The quantile at a random word. */
static inline double quantile(const double *table, word drawn) {
    struct place at = place_of(drawn);
    return between(table + at.cell, (double)(whole)at.bits * 0x1p-52);
}

/* Where a normal number is among the factors, in nodes; it may be beyond the last. */
static inline double node_at(double x) { return most((x + REACH) * PER_UNIT, 0.0); }

/* The factor there. */
static inline double marginal(const double *table, double place) {
    place = least(place, 2.0 * REACH * PER_UNIT);
    return between(table + (whole)place, place - (double)(whole)place);
}

/* The normal number before step `k`, the first of a block: in each block the autoregressive process
   starts anew, `warmup` draws before it, so that any step is reached at once. */
static double warm_up(struct job *m, word key, whole k) {
    whole from = k - m->warmup;
    double x = quantile(m->quantiles, nth(key, from));
    while (++from < k) x = m->rho * x + m->innovation * quantile(m->quantiles, nth(key, from));
    return x;
}

/* The normal number before the next step of a rank. */
static inline double normal_before(struct job *m, whole rank) {
    whole k = m->drawn[rank];
    return k % BLOCK == 0 ? warm_up(m, m->keys[rank], k) : m->normal[rank];
}

/* Numbers of a table.  Fetching has a loop of its own: no vector does it as fast. */
static inline void fetch(const double *table, const int *nodes, const double *into,
                         double *values) {
    double fetched[MANY][2];
    for (int i = 0; i < MANY; i++) memcpy(fetched[i], table + nodes[i], sizeof fetched[i]);
#pragma omp simd
    for (int i = 0; i < MANY; i++) values[i] = between(fetched[i], into[i]);
}

/* 52 bits as a fraction of 1, by way of a number from 1 to 2: few vectors convert words. */
static inline double fraction(word bits) {
    double above;
    bits |= 0x3FF0000000000000u;
    memcpy(&above, &bits, sizeof above);
    return above - 1.0;
}

/* Quantiles at random words. */
static inline void fetch_quantiles(struct job *m, const word *words, double *values) {
    int nodes[MANY];
    double into[MANY];
#pragma omp simd
    for (int i = 0; i < MANY; i++) {
        struct place at = place_of(words[i]);
        nodes[i] = (int)at.cell; into[i] = fraction(at.bits);
    }
    fetch(m->quantiles, nodes, into, values);
}

/* Factors at what `node_at` gives, in its place. */
static inline void fetch_factors(struct job *m, double *values) {
    int nodes[MANY];
    double into[MANY], last = (double)(m->marginal_size - 2); /* a constant would make a branch */
#pragma omp simd
    for (int i = 0; i < MANY; i++) {
        double place = least(values[i], last);
        nodes[i] = (int)place; into[i] = place - (int)place;
    }
    fetch(m->marginal, nodes, into, values);
}

/* The next factors of MANY ranks, without autocorrelation. */
WORDS static void draw_many(struct job *m, whole first, double *factors) {
    word words[MANY];
#pragma omp simd
    for (int p = 0; p < MANY; p++) words[p] = nth(m->keys[first + p], m->drawn[first + p]);
    fetch_quantiles(m, words, factors);
    for (int p = 0; p < MANY; p++) m->drawn[first + p]++;
}

/* The next AHEAD factors of TILE ranks, with autocorrelation. */
WORDS static void draw_tile(struct job *m, whole first) {
    word words[MANY];
    double x[MANY], normal[TILE], rho = m->rho, new = m->innovation;
    for (int k = 0; k < AHEAD; k++)
#pragma omp simd
        for (int p = 0; p < TILE; p++)
            words[k * TILE + p] = nth(m->keys[first + p], m->drawn[first + p] + k);
    fetch_quantiles(m, words, x);
    for (int p = 0; p < TILE; p++) normal[p] = normal_before(m, first + p);
    for (int k = 0; k < MANY; k += TILE)
#pragma omp simd
        for (int p = 0; p < TILE; p++) {
            normal[p] = rho * normal[p] + new * x[k + p];
            x[k + p] = node_at(normal[p]);
        }
    memcpy(m->normal + first, normal, sizeof normal);
    fetch_factors(m, x);
    for (int k = 0; k < AHEAD; k++)
        memcpy(m->factors + k * m->workers + first, x + k * TILE, TILE * sizeof *x);
}

/* The same of one rank. */
static void draw_ahead(struct job *m, whole rank) {
    double x = normal_before(m, rank);
    for (whole k = 0; k < AHEAD; k++) {
        word drawn = nth(m->keys[rank], m->drawn[rank] + k);
        x = m->rho * x + m->innovation * quantile(m->quantiles, drawn);
        m->factors[k * m->workers + rank] = marginal(m->marginal, node_at(x));
    }
    m->normal[rank] = x;
}

/* The factor of a rank's next step; 1 without noise. */
static inline double draw(struct job *m, whole rank) {
    if (!m->noisy) return 1.0;
    whole k = m->drawn[rank];
    if (m->rho != 0 && k % AHEAD == 0) draw_ahead(m, rank);
    m->drawn[rank]++;
    if (m->rho != 0) return m->factors[k % AHEAD * m->workers + rank];
    return quantile(m->quantiles, nth(m->keys[rank], k));
}

/* The work of the next step of `n` ranks from `first` on: factors times `effort`. */
static inline void draw_work(struct job *m, whole first, whole n, double *restrict work,
                             const double *effort) {
    whole *restrict drawn = m->drawn + first, k = drawn[0], differ = 0, p = 0;
    if (m->rho == 0) {
        for (; WIDE && p + MANY <= n; p += MANY) {
            draw_many(m, first + p, work + p);
            for (int i = 0; i < MANY; i++) work[p + i] *= effort[p + i];
        }
        const word *keys = m->keys + first;
        const double *table = m->quantiles;
#pragma omp simd
        for (whole i = p; i < n; i++)
            work[i] = quantile(table, nth(keys[i], drawn[i]++)) * effort[i];
        return;
    }
    for (whole i = 0; i < n; i++) differ |= drawn[i] ^ k;
    if (differ % AHEAD) { /* they have not taken as many */
        for (; p < n; p++) work[p] = draw(m, first + p) * effort[p];
        return;
    }
    if (k % AHEAD == 0) {
        for (; p + TILE <= n; p += TILE) draw_tile(m, first + p);
        for (; p < n; p++) draw_ahead(m, first + p);
    }
    const double *factors = m->factors + k % AHEAD * m->workers + first;
    for (whole i = 0; i < n; i++) {
        drawn[i]++;
        work[i] = factors[i] * effort[i];
    }
}
