/* What a view shows of the last steps of all ranks, read from the tables of records.h. */

/* Copy the entry of each rank's step number `back`, counted back from the last of `known`, 1. */
#define PICK(name, type) \
    COLUMNS static void name(type *restrict to, const type *restrict table, \
                             const whole *restrict known, whole ring, whole n, whole back) { \
        _Pragma("omp simd") for (whole p = 0; p < n; p++) \
            to[p] = table[((known[p] - back) & (ring - 1)) * n + p]; \
    }
PICK(pick_numbers, double)
PICK(pick_flags, flag)

/* The last `rows` of each rank's `known` steps in a table of `bytes` an entry, the oldest first. */
static void show_rows(const struct job *m, const void *table, whole bytes, const whole *known,
                      whole rows, char *result) {
    whole n = m->workers, ring = m->ring, differ = 0;
    for (whole p = 0; p < n; p++) differ |= known[p] ^ known[0];
    for (whole k = 0, size = n * bytes; k < rows; k++, result += size) {
        whole at = ((known[0] - rows + k) & (ring - 1)) * size;
        if (!differ) memcpy(result, (const char *)table + at, (size_t)size);
        else if (bytes == 1) pick_flags((flag *)result, table, known, ring, n, rows - k);
        else pick_numbers((double *)result, table, known, ring, n, rows - k);
    }
}

/* The newest steps of each rank. */
EXPORT void newest(const struct job *m, const void *table, whole bytes, whole rows, void *result) {
    show_rows(m, table, bytes, m->known, rows, result);
}

/* The newest step of each rank at each of so many reviews that were passed by. */
EXPORT void newest_passed(const struct job *m, const void *table, whole bytes, whole reviews,
                          void *result) {
    for (whole k = 0, n = m->workers; k < reviews; k++)
        show_rows(m, table, bytes, m->passed_steps + k * n, 1, (char *)result + k * n * bytes);
}
