/* The parameter server: one job at a time, first in first out by (arrival, rank) (rule 11). */

/* Whether a job was not withdrawn; those of leaders never are. */
static int waits(struct job *m, const struct event_row *job) {
    struct rank_row *r = &m->ranks[job->order];
    return job->what >= 0 || (r->ticket == job->serial && r->job == WAITING);
}

/* A job begins to wait: of a rank's gradient, or of the closing that it brings as a leader. */
static void enqueue(struct job *m, double arrival, whole rank, whole closing) {
    m->serial++;
    if (closing < 0) {
        struct rank_row *r = &m->ranks[rank];
        r->job = WAITING; r->job_arrival = arrival; r->ticket = m->serial;
    }
    if (m->queued == m->jobs_size) compact(m, m->jobs, &m->queued, waits);
    push(m->jobs, &m->queued, (struct event_row){arrival, rank, m->serial, closing});
    m->take_due |= !m->serving;
}

/* The job in service ends then. */
EXPORT void serve_until(struct job *m, double end) {
    m->asks_server = 0;
    schedule(m, end, END, m->server_serial, -1);
    for (whole k = m->server_closing; k >= 0; k = m->closings[k].beside)
        m->closings[k].busy += end - m->now;
}

/* All other jobs that fuse are taken with the one in service. */
static void fuse(struct job *m) {
    struct closing_row *chief = &m->closings[m->server_closing];
    whole n = m->queued;
    m->queued = 0;
    for (whole k = 0; k < n; k++) {
        whole closing = m->jobs[k].what;
        if (closing >= 0 && m->closings[closing].fuse) {
            m->closings[closing].beside = chief->beside;
            chief->beside = closing;
        } else {
            push(m->jobs, &m->queued, m->jobs[k]);
        }
    }
}

/* The idle server takes its next job, and with a fusing one all others that fuse. */
static void take(struct job *m) {
    struct event_row job = {.what = -1};
    m->take_due = 0;
    do {
        if (m->queued == 0) return;
        job = pop(m->jobs, &m->queued);
    } while (!waits(m, &job));
    m->server_rank = job.order; m->server_ticket = job.serial; m->server_closing = job.what;
    m->serving = 1;
    m->server_serial = ++m->serial;
    if (job.what < 0) {
        m->ranks[job.order].job = IN_SERVICE;
    } else {
        struct closing_row *c = &m->closings[job.what];
        if (c->fuse) fuse(m);
        m->asks_server = m->fused_allreduce && c->beside >= 0;
    }
    if (!m->asks_server) serve_until(m, m->now + m->service);
}
