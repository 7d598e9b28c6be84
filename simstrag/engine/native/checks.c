/* What korel does at every check with each rank, with the same bits as policies/korel.py where there
   is no library: `_record_times`, `_count_suspect`, `_count_well` and `_steps_to_timer`. */

/* What korel knows of a rank, as `RANK` there. */
struct checked {
    whole dwell, cooldown, cooldown_until;
    double last_off;
    whole on_count, steps, probed, off_count;
    double before;
    flag in_amp, in_trial, tested;
};

/* Enter the newest times of each rank in its window, the oldest first: those that it had not `seen`
   yet, known, not of cancelled steps and in its precision; overwrites `amp`. */
EXPORT void record_times(struct checked *ranks, double *ordered, double *values, whole *oldest,
                         whole height, whole width, const double *times, flag *amp,
                         const flag *cancelled, whole rows, const whole *steps, const whole *seen) {
    for (whole k = 0, at = 0; k < rows; k++) {
        for (whole p = 0; p < width; p++, at++) {
            struct checked *r = &ranks[p];
            amp[at] = rows - k <= steps[p] - seen[p] && !cancelled[at] && times[at] == times[at] &&
                      amp[at] == r->in_amp;
            r->steps += amp[at] && r->in_amp;
        }
        enter_row(ordered, values, oldest, height, width, times + at - width, amp + at - width);
    }
}

/* AMP steps until the next efficacy test or probe of a rank, or `never`. */
EXPORT whole steps_to_timer(const struct checked *ranks, whole n, whole test_at, whole probe_at,
                            whole never) {
    for (whole p = 0; p < n; p++) {
        const struct checked *r = &ranks[p];
        if (!r->in_amp) continue;
        never = never < probe_at - r->steps + r->probed ? never : probe_at - r->steps + r->probed;
        if (!r->tested && test_at - r->steps < never) never = test_at - r->steps;
    }
    return never;
}

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
