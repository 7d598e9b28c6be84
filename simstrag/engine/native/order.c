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

/* The k-th least, by bisection of the range: a pass over a column costs less than moving times. */
static double kth(const double *times, whole n, whole k) {
    double low, high, top, above;
    split(times, n, INFINITY, &high, &above);
    if (k == n) return high;
    split(times, n, -INFINITY, &top, &low);
    while (low < high) {
        double guess = low + (high - low) / 2;
        if (!(guess < high)) guess = low;
        whole near = split(times, n, guess, &top, &above);
        if (near == k) return top;
        if (near > k) high = top;
        else low = above;
    }
    return low;
}

/* The bits of positive times are in the order of the times. */
static inline word bits_of(double time) {
    word bits;
    memcpy(&bits, &time, sizeof bits);
    return bits;
}

/* Ascending, in place: few by insertion, more by a radix sort byte by byte from the last.  `spare`
   has room for as many. */
static void sort_times(double *times, double *spare, whole n) {
    if (n <= 64) {
        for (whole k = 1; k < n; k++) {
            double time = times[k];
            whole j = k;
            for (; j > 0 && times[j - 1] > time; j--) times[j] = times[j - 1];
            times[j] = time;
        }
        return;
    }
    whole counts[sizeof(double)][256] = {{0}};
    for (whole p = 0; p < n; p++)
        for (size_t byte = 0; byte < sizeof(double); byte++)
            counts[byte][bits_of(times[p]) >> 8 * byte & 255]++;
    double *from = times, *to = spare;
    for (size_t byte = 0; byte < sizeof(double); byte++) {
        whole *place = counts[byte], at = 0;
        if (place[bits_of(from[0]) >> 8 * byte & 255] == n) continue;
        for (whole digit = 0; digit < 256; digit++) {
            whole many = place[digit];
            place[digit] = at;
            at += many;
        }
        for (whole p = 0; p < n; p++) to[place[bits_of(from[p]) >> 8 * byte & 255]++] = from[p];
        double *other = from;
        from = to;
        to = other;
    }
    if (from != times) memcpy(times, from, (size_t)n * sizeof *times);
}
