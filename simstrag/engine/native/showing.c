/* What a view shows of the last steps of all ranks, read from the tables of records.h. */

/* The newest `rows` steps of each rank in a table of `bytes` an entry, the oldest first. */
EXPORT void newest(const struct job *m, const void *table, whole bytes, whole rows, void *result) {
    whole n = m->workers, differ = 0;
    for (whole p = 0; p < n; p++) differ |= m->known[p] ^ m->known[0];
    for (whole k = 0; k < rows; k++) {
        whole at = (m->known[0] - rows + k) & (WINDOW - 1);
        if (!differ) {
            memcpy((char *)result + k * n * bytes, (const char *)table + at * n * bytes,
                   (size_t)(n * bytes));
            continue;
        }
        for (whole p = 0; p < n; p++) {
            whole from = ((m->known[p] - rows + k) & (WINDOW - 1)) * n + p;
            if (bytes == 1) ((flag *)result)[k * n + p] = ((const flag *)table)[from];
            else ((double *)result)[k * n + p] = ((const double *)table)[from];
        }
    }
}
