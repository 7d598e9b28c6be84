/* Order statistics of columns of times: extremes, the k-th least, all in order. */

/* How many are not above a bound, the largest of them, and the least of the others. */
COLUMNS static whole split(const double *times, whole n, double bound, double *top, double *above) {
    whole near = 0;
    double largest = -INFINITY, smallest = INFINITY;
#pragma omp simd reduction(+ : near) reduction(max : largest) reduction(min : smallest)
    for (whole p = 0; p < n; p++) {
        int is_near = times[p] <= bound;
        near += is_near;
        largest = most(largest, is_near ? times[p] : -INFINITY);
        smallest = least(smallest, is_near ? INFINITY : times[p]);
    }
    *top = largest;
    *above = smallest;
    return near;
}

/* The k-th least, by interpolation in the range and bisection in turns: a pass over a column costs
   less than moving times. */
static double kth(const double *times, whole n, whole k) {
    double low, high, top, above;
    split(times, n, INFINITY, &high, &above);
    if (k == n) return high;
    split(times, n, -INFINITY, &top, &low);
    whole under = 0, upto = n; /* how many are less than `low`, and not above `high` */
    for (int bisects = 0; low < high; bisects = !bisects) {
        double share = bisects ? 0.5 : ((double)(k - under) - 0.5) / (double)(upto - under);
        double guess = low + (high - low) * share;
        if (!(guess < high)) guess = low;
        whole near = split(times, n, guess, &top, &above);
        if (near == k) return top;
        if (near > k) {
            high = top; upto = near;
        } else {
            low = above; under = near;
        }
    }
    return low;
}

/* The first `n` numbers in `scratch`, none below 0, in order: few by insertion, more by a radix sort
   byte by byte from the last. */
static void sort(struct job *m, whole n) {
    whole *from = m->scratch, *to = m->spare, k = 1;
    while (k < n && from[k - 1] <= from[k]) k++;
    for (; n <= 32 && k < n; k++) {
        whole number = from[k], j = k;
        for (; j > 0 && from[j - 1] > number; j--) from[j] = from[j - 1];
        from[j] = number;
    }
    if (k >= n) return;
    whole counts[sizeof(whole)][256] = {{0}};
    for (whole p = 0; p < n; p++)
        for (size_t byte = 0; byte < sizeof(whole); byte++) counts[byte][from[p] >> 8 * byte & 255]++;
    for (size_t byte = 0; byte < sizeof(whole); byte++) {
        whole *place = counts[byte], at = 0, *other = from;
        if (place[from[0] >> 8 * byte & 255] == n) continue;
        for (whole digit = 0; digit < 256; digit++) {
            whole many = place[digit];
            place[digit] = at;
            at += many;
        }
        for (whole p = 0; p < n; p++) to[place[from[p] >> 8 * byte & 255]++] = from[p];
        from = to;
        to = other;
    }
    if (from != m->scratch) memcpy(m->scratch, from, (size_t)n * sizeof *from);
}
