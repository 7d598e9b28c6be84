/* What a view shows of the last steps of all ranks, read from the tables of records.h. */

/* Copy the entry of each rank's step number `back`, counted back from its newest, which is 1. */
#define PICK(name, type) \
    COLUMNS static void name(type *restrict to, const type *restrict table, \
                             const whole *restrict known, whole n, whole back) { \
        _Pragma("omp simd") for (whole p = 0; p < n; p++) \
            to[p] = table[((known[p] - back) & (WINDOW - 1)) * n + p]; \
    }
PICK(pick_numbers, double)
PICK(pick_flags, flag)

/* The newest `rows` steps of each rank in a table of `bytes` an entry, the oldest first. */
EXPORT void newest(const struct job *m, const void *table, whole bytes, whole rows, void *result) {
    whole n = m->workers, differ = 0;
    for (whole p = 0; p < n; p++) differ |= m->known[p] ^ m->known[0];
    for (whole k = 0, size = n * bytes; k < rows; k++) {
        whole at = ((m->known[0] - rows + k) & (WINDOW - 1)) * size;
        if (!differ) memcpy((char *)result + k * size, (const char *)table + at, (size_t)size);
        else if (bytes == 1) pick_flags((flag *)result + k * n, table, m->known, n, rows - k);
        else pick_numbers((double *)result + k * n, table, m->known, n, rows - k);
    }
}
