/* Counts of checks in a row of slow ranks, for korel: `_count_suspect` and `_count_well` of
   policies/korel.py, with the same bits. */

/* What korel knows of a rank, as `RANK` there. */
struct checked {
    whole dwell, cooldown, cooldown_until;
    double last_off;
    whole on_count, steps, probed, off_count;
    double before;
    flag in_amp, in_trial, tested;
};

/* The numbers of a check that are the same for all ranks; `least`, `most_well`: of times. */
struct limits {
    double reference, least, scale, z_on, most_well, scale_well, z_off, tie;
    double version, on, off, due, test_at, probe_at;
};

/* Count the checks that found each rank suspect, or well if it is in AMP.  Says in `act` which go to
   AMP (1), and which need another action (2); returns how many. */
EXPORT whole count_checks(struct checked *ranks, const double *x, whole n, const struct limits *l,
                          flag *act) {
    whole acting = 0;
    for (whole p = 0; p < n; p++) {
        struct checked *r = &ranks[p];
        double z = x[p] - l->reference;
        if (!r->in_amp) {
            int suspect = l->least * l->tie <= x[p] && l->z_on < z / l->scale * l->tie;
            r->on_count = suspect && l->version >= r->cooldown_until ? r->on_count + 1 : 0;
            act[p] = r->on_count >= l->on;
        } else {
            int well = x[p] * l->tie <= l->most_well && z / l->scale_well * l->tie <= l->z_off;
            whole off = well ? r->off_count + 1 : 0;
            int acts = off >= l->off && r->steps >= r->dwell;
            acts |= l->due && (r->in_trial || r->steps - r->probed >= l->probe_at ||
                               (!r->tested && r->steps >= l->test_at));
            r->on_count = 0;
            r->off_count = acts ? r->off_count : off;
            act[p] = (flag)(2 * acts);
        }
        acting += act[p] > 0;
    }
    return acting;
}
