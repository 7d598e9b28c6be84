/* Reviews that are passed by.  The plan in force stands until the policy has looked at all of them;
   if it changes its plan at one, the job goes back to where it was, and up to that review.

   `held` has the job's own record, its first quorum, and the tables of RACING, then the other
   quorums, events, jobs and the tables of OTHERS.  A race in lockstep leaves the second part as it
   is; it is held when the race is disbanded, before that changes it. */

/* Note what a review shows; whether others may follow. */
SELDOM static int note_review(struct job *m) {
    whole k = m->passed++;
    m->passed_times[k] = m->now; m->passed_versions[k] = m->version;
    m->passed_samples[k] = m->samples;
    memcpy(m->passed_steps + k * m->workers, m->known, (size_t)m->workers * sizeof(whole));
    m->reviewed_updates = m->version; m->reviewed_samples = m->samples; m->reviewed_time = m->now;
    return --m->ahead > 0;
}

/* A review is due: pass it by if others may follow; whether. */
static int pass_by(struct job *m) { return m->ahead && !m->overrun && note_review(m); }

/* What `held` has: nothing, the tables of a race in lockstep, or those of any other way too. */
enum { NOTHING, RACE_ALONE, ALL };

/* Copy a table to where `held` is filled up to, or back from there; where that ends. */
static flag *copy(flag *at, void *table, size_t bytes, int back) {
    memcpy(back ? table : at, back ? (void *)at : table, bytes);
    return at + bytes;
}

#define COPY_SOME(name, some) at = copy(at, m->name, (size_t)(some) * sizeof *m->name, back);
#define COPY(type, name) COPY_SOME(name, m->name##_size)
#define SIZE(type, name) + m->name##_size * (whole)sizeof(type)

static flag *copy_race(struct job *m, flag *at, int back) {
    RACING(COPY)
    COPY_SOME(quorums, 1)
    return at;
}

/* `m` says how many quorums, events and jobs there are: to go back, its record comes back first. */
static void copy_others(struct job *m, flag *at, int back) {
    at = copy(at, m->quorums + 1, (size_t)(m->quorum_count - 1) * sizeof *m->quorums, back);
    COPY_SOME(events, m->scheduled)
    COPY_SOME(jobs, m->queued)
    OTHERS(COPY)
}

static flag *others_at(struct job *m) {
    return m->held + sizeof *m + sizeof *m->quorums RACING(SIZE);
}

/* Bytes that `held` needs. */
EXPORT whole held_bytes(const struct job *m) {
    return (whole)(sizeof *m + (m->quorums_size + 1) * sizeof *m->quorums +
                   (m->events_size + m->jobs_size) * sizeof *m->events) RACING(SIZE) OTHERS(SIZE);
}

/* Complete `held` before records of ranks change that a race in lockstep leaves as they are. */
static void hold_others(struct job *m) {
    if (m->holding != RACE_ALONE) return;
    copy_others(m, others_at(m), 0);
    m->holding = ALL;
}

/* Note where the job is now, to go back to. */
EXPORT void hold(struct job *m) {
    memcpy(m->before, m->known, (size_t)m->workers * sizeof(whole));
    m->holding = RACE_ALONE;
    copy(m->held, m, sizeof *m, 0);
    copy_race(m, m->held + sizeof *m, 0);
    if (!goes_alone(m, RACE) || m->replays) hold_others(m);
}

/* Go back to there, where the job still holds it. */
EXPORT void go_back(struct job *m) {
    flag holding = m->holding;
    copy(m->held, m, sizeof *m, 1);
    copy_race(m, m->held + sizeof *m, 1);
    if (holding == ALL) copy_others(m, others_at(m), 1);
    m->holding = holding;
}
