/* Windows of recent values, for policies: a column per rank, the rows in order of time or of size.
   Nothing here knows a job.  medians.py and policies/estimators/columns.py call these functions,
   and have each of them in numpy too, with the same bits. */

enum { ABREAST = 32 }; /* columns that are sorted together */

/* Batcher's odd-even merge sort: every column of a block ascending, by the same comparisons. */
COLUMNS static void sort_block(double (*restrict rows)[ABREAST], whole height) {
    for (whole run = 1; run < height; run *= 2)
        for (whole step = run; step >= 1; step /= 2)
            for (whole first = step % run; first + step < height; first += 2 * step)
                for (whole i = first; i < first + step && i + step < height; i++) {
                    if ((i ^ (i + step)) >= 2 * run) continue; /* of two blocks of `2 * run` */
                    double *restrict upper = rows[i], *restrict lower = rows[i + step];
#pragma omp simd
                    for (whole p = 0; p < ABREAST; p++) {
                        double a = upper[p], b = lower[p];
                        upper[p] = least(a, b);
                        lower[p] = most(a, b);
                    }
                }
}

/* Copy the row that is `back` rows before the newest of each column's ring. */
COLUMNS static void gather_row(double *restrict row, const double *values, const whole *steps,
                               whole ring, whole back, whole width, whole count) {
#pragma omp simd
    for (whole p = 0; p < count; p++) row[p] = values[((steps[p] - 1 - back) & (ring - 1)) * width + p];
}

/* Put a block of columns into `rows`, with infinity for NaN, and count the other values of each
   column in `known`.  steps: of each column, of whose ring of rows the newest are meant; NULL where
   the rows themselves are. */
COLUMNS static void load_block(double (*restrict rows)[ABREAST], const double *values,
                               const whole *steps, whole ring, whole height, whole width,
                               whole count, double *restrict known) {
    double gathered[ABREAST];
    whole differ = 0;
    for (whole p = 0; p < ABREAST; p++) known[p] = (double)height;
    for (whole p = 0; steps && p < count; p++) differ |= steps[p] ^ steps[0];
    for (whole k = 0; k < height; k++) {
        double *restrict to = rows[k];
        const double *from = values + (steps ? (steps[0] - 1 - k) & (ring - 1) : k) * width;
        if (differ) {
            gather_row(gathered, values, steps, ring, k, width, count);
            from = gathered;
        }
#pragma omp simd
        for (whole p = 0; p < count; p++) {
            int is_unknown = from[p] != from[p];
            to[p] = is_unknown ? INFINITY : from[p];
            known[p] -= is_unknown ? 1.0 : 0.0;
        }
        for (whole p = count; p < ABREAST; p++) to[p] = 0.0;
    }
}

/* The median of each column of `height` rows; with NaN in it, NaN, or the median of the others if
   `skip`.  steps, ring: as of `load_block`; `times` rows of steps, a row of medians for each.
   Returns whether there was room to work in. */
EXPORT int medians(const double *values, const whole *steps, whole times, whole ring, whole height,
                   whole width, whole skip, double *result) {
    if (height == ring && times == 1) steps = NULL; /* the whole ring, in any order */
    char *room = malloc((size_t)(height + 1) * sizeof(double[ABREAST]));
    if (!room) return 0;
    double(*rows)[ABREAST] = (void *)(room + (-(uintptr_t)room & 63)), known[ABREAST];
    for (whole t = 0; t < times; t++, result += width) {
        for (whole at = 0; at < width; at += ABREAST) {
            whole count = width - at < ABREAST ? width - at : ABREAST;
            load_block(rows, values + at, steps ? steps + t * width + at : NULL, ring, height,
                       width, count, known);
            sort_block(rows, height);
            for (whole p = 0; p < count; p++) {
                whole those = (whole)known[p];
                result[at + p] = those == 0 || (those < height && !skip)
                                     ? NAN
                                     : (rows[(those - 1) / 2][p] + rows[those / 2][p]) / 2;
            }
        }
    }
    free(room);
    return 1;
}

/* The median of each of `rows` rows of `width` numbers without its NaN; NaN of none.  Their number
   goes into `known`.  Returns whether there was room to work in. */
EXPORT int row_medians(const double *values, whole rows, whole width, whole *known,
                       double *result) {
    double *row = malloc((size_t)width * sizeof *row), low, high, top;
    if (!row) return 0;
    for (whole k = 0; k < rows; k++, values += width) {
        whole n = 0;
        for (whole p = 0; p < width; p++) {
            row[n] = values[p];
            n += values[p] == values[p];
        }
        known[k] = n;
        if (n) {
            low = kth(row, n, (n + 1) / 2);
            high = low;
            if (n % 2 == 0 && split(row, n, low, &top, &high) > n / 2) high = low;
        }
        result[k] = n ? (low + high) / 2 : NAN;
    }
    free(row);
    return 1;
}

/* The sum of a row, rounded once; NaN where its last bit is not certain.  What the additions round
   off is added up apart, and `doubt` is more than what that sum may be wrong by. */
EXPORT double correctly_rounded_sum(const double *values, whole n) {
    double sum = 0, rest = 0, size = 0;
    for (whole k = 0; k < n; k++) {
        double before = sum, added;
        sum += values[k];
        added = sum - before;
        double lost = (before - (sum - added)) + (values[k] - added);
        rest += lost;
        size += fabs(lost);
    }
    double doubt = (double)(n + 2) * 0x1p-51 * size;
    return sum + (rest - doubt) == sum + (rest + doubt) ? sum + rest : NAN;
}

/* Enter a value in those of `count` columns that `enters` names, in the place of the oldest one.
   ordered: the values of each column, ascending, then infinity for none. */
COLUMNS static void enter_block(double (*restrict ordered)[ABREAST], double *restrict values,
                                whole *restrict oldest, whole height, whole width, whole count,
                                const double *restrict row, const flag *restrict enters) {
    double old[ABREAST] = {0}, new[ABREAST] = {0}, kept[ABREAST];
    whole first = oldest[0], size = height * width, apart = 0;
    for (whole p = 0; p < count; p++) apart |= (oldest[p] - p) ^ first;
    for (whole p = 0; apart && p < count; p++) old[p] = values[oldest[p]];
    if (!apart) memcpy(old, values + first, (size_t)count * sizeof *old);
#pragma omp simd
    for (whole p = 0; p < count; p++) new[p] = enters[p] ? row[p] : old[p];
    for (whole p = 0; apart && p < count; p++) values[oldest[p]] = new[p];
    if (!apart) memcpy(values + first, new, (size_t)count * sizeof *new);
#pragma omp simd
    for (whole p = 0; p < count; p++) {
        whole next = oldest[p] + (enters[p] ? width : 0);
        oldest[p] = next >= size ? next - size : next;
    }
#pragma omp simd
    for (whole p = 0; p < ABREAST; p++) {
        old[p] = old[p] != old[p] ? INFINITY : old[p];
        new[p] = new[p] != new[p] ? INFINITY : new[p];
        kept[p] = -INFINITY;
    }
    for (whole k = 0; k + 1 < height; k++) {
        double *restrict here = ordered[k], *restrict next = ordered[k + 1];
#pragma omp simd
        for (whole p = 0; p < ABREAST; p++) { /* `stays`: the next value but `old` */
            double stays = here[p] >= old[p] ? next[p] : here[p];
            here[p] = most(kept[p], least(stays, new[p]));
            kept[p] = stays;
        }
    }
    double *restrict last = ordered[height - 1];
#pragma omp simd
    for (whole p = 0; p < ABREAST; p++) last[p] = most(kept[p], new[p]);
}

/* Copy some columns, with another number for none. */
COLUMNS static void move_columns(double *restrict to, const double *restrict from, whole count,
                                 double none, double other) {
#pragma omp simd
    for (whole p = 0; p < count; p++)
        to[p] = from[p] == none || from[p] != from[p] ? other : from[p];
}

/* Which of `count` columns a row enters, the newest but so many, and how many have entered. */
COLUMNS static void count_in_block(flag *restrict enters, whole back, const whole *restrict fresh,
                                   whole count, whole *restrict entered) {
#pragma omp simd
    for (whole p = 0; p < count; p++) {
        flag may = (flag)(enters[p] & (back <= fresh[p]));
        enters[p] = may;
        entered[p] += may;
    }
}

/* Enter `rows` rows, the oldest first, of which the newest `fresh` of a column may enter where they
   are `usable`; says in `usable` which did, and in `entered` how many.  middles: NULL, or where the
   two values go whose mean is the median after each row, NaN where one is missing: all lower ones,
   then all higher ones.  Returns whether there was room to work in. */
EXPORT int enter_rows(double *ordered, double *values, whole *oldest, whole height, whole width,
                      const double *shown, flag *usable, whole rows, const whole *fresh,
                      whole *entered, double *middles) {
    double(*order)[ABREAST] = calloc((size_t)height, sizeof *order);
    if (!order) return 0;
    for (whole at = 0; at < width; at += ABREAST) { /* side by side, for the cache */
        whole count = width - at < ABREAST ? width - at : ABREAST;
        for (whole k = 0; k < height; k++)
            move_columns(order[k], ordered + k * width + at, count, NAN, INFINITY);
        for (whole k = 0; k < rows; k++) {
            flag *enters = usable + k * width + at;
            count_in_block(enters, rows - k, fresh + at, count, entered + at);
            enter_block(order, values, oldest + at, height, width, count, shown + k * width + at,
                        enters);
            double *low = middles + k * width + at, *high = low + rows * width;
            for (whole p = 0; middles && p < count; p++) {
                int is_full = order[height - 1][p] < INFINITY;
                low[p] = is_full ? order[(height - 1) / 2][p] : NAN;
                high[p] = is_full ? order[height / 2][p] : NAN;
            }
        }
        for (whole k = 0; k < height; k++)
            move_columns(ordered + k * width + at, order[k], count, INFINITY, NAN);
    }
    free(order);
    return 1;
}
