/* Barriers whose members began their step together: a step of all is a few loops over columns.

   A quorum whose members are in `ranks` is advanced event by event.  Three kinds need not be:

   - a barrier (`barrier`), each member of which is waited for: what is known of its members stands
     in `lanes`, a column per member; its closings and updates are events as ever, and if it is the
     only quorum not even those (rounds.c);
   - a race (`race`), where all begin anew with each update: `lanes` too, and a whole round is done
     at once (races.c);
   - a queue (`queue`), where each gradient is an update of its own: `cards` (queues.c).

   `lockstep` of a quorum says that it is so now.  It becomes so when an update lets members go
   (`fall_in`, `form_queue`), never where somebody looks at single steps (`may_lockstep`).  Then
   totals, times, versions and states in `ranks` are stale; `report` writes state and pull for a
   view, `note_steps` start and number of the step for rule 27, `disband_all` everything, after
   which the quorum is advanced event by event again: before a new plan that says other things of
   steps or files gradients anew, before an event beyond which the outer world has to see every
   rank, and at the end. */

/* Rows of `lanes`.  RATE: seconds per unit of work, which hold for steps that end by UNTIL.
   EFFORT: work of a step without noise.  AMP: 1 of steps in reduced precision.  CLEAN_RATE,
   CLEAN_UNTIL: of steps in full precision.  From ARRIVAL on they are of races alone. */
enum {
    FINISH,
    COMPUTE,
    COMMUNICATION,
    WAIT,
    WORK,
    SHARE,
    RATE,
    UNTIL,
    EFFORT,
    AMP,
    CLEAN_RATE,
    CLEAN_UNTIL,
    ARRIVAL,
    WON,
    WINS,
    ORDERED,
    SPARE,
    LANES
};

static inline double *lane(struct job *m, whole row) { return m->lanes + row * m->workers; }

static void close_all(struct job *m, whole index, whole closing);
static whole apply_all(struct job *m, whole index, whole had);
static void let_go(struct job *m, whole closing);
static void restart(struct job *m, whole index);
static void fall_in(struct job *m, whole index);
static void form_queue(struct job *m);
EXPORT void disband_all(struct job *m);
static void note_steps(struct job *m);
static void judge(struct job *m);
