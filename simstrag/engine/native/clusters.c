/* Ward's clusters of times on a line, for policies: the walk of `_merge` in
   policies/estimators/time_to_progress.py, with the same bits. */

struct cluster {
    double mean, size, cost; /* `cost`: to merge with the one before */
};

static double ward_cost(struct cluster before, struct cluster after) {
    return sqrt(2 * before.size * after.size / (before.size + after.size)) *
           (after.mean - before.mean);
}

static struct cluster merged(struct cluster a, struct cluster b) {
    double size = a.size + b.size;
    return (struct cluster){(a.mean * a.size + b.mean * b.size) / size, size, INFINITY};
}

/* The sizes of the clusters of ascending times, and their number; -1 without room to work in.
   `ahead` are those to come, from `next` on; `walked` those that were passed. */
EXPORT whole ward_sizes(const double *times, whole n, double limit, double tie, whole *sizes) {
    struct cluster *ahead = malloc(2 * (size_t)n * sizeof *ahead);
    if (!ahead) return -1;
    struct cluster *walked = ahead + n;
    for (whole k = 0; k < n; k++) ahead[k] = (struct cluster){times[k], 1, INFINITY};
    struct cluster here = ahead[0];
    whole next = 1, passed = 0;
    for (;;) {
        double front = next < n ? ward_cost(here, ahead[next]) : INFINITY;
        if (passed && here.cost <= limit && here.cost <= front + tie) {
            here = merged(walked[--passed], here);
            if (!passed) continue;
            here.cost = ward_cost(walked[passed - 1], here);
            if (walked[passed - 1].cost <= limit && walked[passed - 1].cost <= here.cost + tie) {
                ahead[--next] = here;
                here = walked[--passed];
            }
        } else if (next < n) {
            walked[passed++] = here;
            here = ahead[next++];
            here.cost = front;
        } else {
            break;
        }
    }
    walked[passed++] = here;
    for (whole k = 0; k < passed; k++) sizes[k] = (whole)walked[k].size;
    free(ahead);
    return passed;
}
