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

/* Put a block of columns into `rows`, with infinity for NaN, and count the other values of each
   column in `known`.  steps: of each column, of whose ring of WINDOW rows the newest are meant;
   NULL where the rows themselves are. */
COLUMNS static void load_block(double (*restrict rows)[ABREAST], const double *values,
                               const whole *steps, whole height, whole width, whole count,
                               double *restrict known) {
    for (whole p = 0; p < ABREAST; p++) known[p] = (double)height;
    for (whole k = 0; k < height; k++) {
        double *restrict to = rows[k];
#pragma omp simd
        for (whole p = 0; p < count; p++) {
            whole row = steps ? (steps[p] - 1 - k) & (WINDOW - 1) : k;
            double value = values[row * width + p];
            int is_unknown = value != value;
            to[p] = is_unknown ? INFINITY : value;
            known[p] -= is_unknown ? 1.0 : 0.0;
        }
        for (whole p = count; p < ABREAST; p++) to[p] = 0.0;
    }
}

/* The median of each column of `height` rows; with NaN in it, NaN, or the median of the others if
   `skip`.  steps: as of `load_block`.  Returns whether there was room to work in. */
EXPORT int medians(const double *values, const whole *steps, whole height, whole width, whole skip,
                   double *result) {
    if (height == WINDOW) steps = NULL; /* the whole ring, in any order */
    char *room = malloc((size_t)(height + 1) * sizeof(double[ABREAST]));
    if (!room) return 0;
    double(*rows)[ABREAST] = (void *)(room + (-(uintptr_t)room & 63)), known[ABREAST];
    for (whole at = 0; at < width; at += ABREAST) {
        whole count = width - at < ABREAST ? width - at : ABREAST;
        load_block(rows, values + at, steps ? steps + at : NULL, height, width, count, known);
        sort_block(rows, height);
        for (whole p = 0; p < count; p++) {
            whole those = (whole)known[p];
            result[at + p] = those == 0 || (those < height && !skip)
                                 ? NAN
                                 : (rows[(those - 1) / 2][p] + rows[those / 2][p]) / 2;
        }
    }
    free(room);
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

/* Enter a value in the columns that `enters` names, in the place of the oldest one.  ordered: the
   values of each column, ascending, then NaN for none. */
COLUMNS static void enter_row(double *restrict ordered, double *restrict values,
                              whole *restrict oldest, whole height, whole width,
                              const double *restrict row, const flag *restrict enters) {
    double old[ABREAST], new[ABREAST], kept[ABREAST];
    for (whole at = 0; at < width; at += ABREAST) {
        whole count = width - at < ABREAST ? width - at : ABREAST;
        for (whole p = 0; p < count; p++) {
            whole *place = &oldest[at + p];
            old[p] = values[*place];
            new[p] = enters[at + p] ? row[at + p] : old[p];
            kept[p] = -INFINITY;
            values[*place] = new[p];
            *place += enters[at + p] ? width : 0;
            if (*place >= height * width) *place -= height * width;
        }
        for (whole k = 0; k + 1 < height; k++) {
            double *restrict here = ordered + k * width + at, *restrict next = here + width;
#pragma omp simd
            for (whole p = 0; p < count; p++) { /* `stays`: the next value but `old` */
                double stays = here[p] >= old[p] ? next[p] : here[p];
                double least = stays <= new[p] || new[p] != new[p] ? stays : new[p];
                here[p] = kept[p] >= least || kept[p] != kept[p] ? kept[p] : least;
                kept[p] = stays;
            }
        }
        double *restrict last = ordered + (height - 1) * width + at;
#pragma omp simd
        for (whole p = 0; p < count; p++)
            last[p] = kept[p] >= new[p] || kept[p] != kept[p] ? kept[p] : new[p];
    }
}

/* Enter `rows` rows, the oldest first, of which the newest `fresh` of a column may enter where they
   are `usable`; says in `usable` which did, and in `entered` how many. */
EXPORT void enter_rows(double *ordered, double *values, whole *oldest, whole height, whole width,
                       const double *shown, flag *usable, whole rows, const whole *fresh,
                       whole *entered) {
    for (whole k = 0; k < rows; k++) {
        flag *enters = usable + k * width;
        for (whole p = 0; p < width; p++) {
            enters[p] &= rows - k <= fresh[p];
            entered[p] += enters[p];
        }
        enter_row(ordered, values, oldest, height, width, shown + k * width, enters);
    }
}
