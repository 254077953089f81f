/* The claim protocol: three workers, two sessions, and what may go wrong between them.
 *
 * The sessions are rows of patch_sessions. Each SQL statement of app/db/gate.py and of
 * app/db/sessions.py is one step with the guard that it has there; anything can happen between two
 * statements of a worker. README.md, beside this file, says what is checked, how, and what isn't.
 *
 * There are no seconds here, only orders of events. A backoff is over at any moment, and a lease
 * runs out at any moment at which nobody keeps it alive.
 */

#ifndef UPSETS
#define UPSETS 3                /* faults, and interventions by people: so many in a run */
#endif
#ifndef START
#define START clarified         /* or opened: with the clarify phase before the draft */
#endif
#define WORKERS 3
#define MAX_ATTEMPTS 2
#define MAX_CRASHES 2

/* ---- the database -------------------------------------------------------------------------- */

mtype = { opened, asking, clarified, drafting, drafted, failed, closed };

#define NOBODY 0                /* null */
#define STRAY (WORKERS + 1)     /* a token that no worker remembers any more */

typedef Session {
    mtype status;
    byte token;                 /* claim_token: 1 + the worker whose present bid it is, or STRAY */
    byte generation;            /* claim_generation */
    byte attempts;
    byte crashes;
    bool late_result;           /* there is one in late_results that was not adopted */
    bool stopping;              /* stopping_until is set, and has not passed */
    /* Only the properties look at these: */
    byte claimed;               /* the newest generation that was given to a claim */
    byte completed              /* the newest generation whose draft was accepted */
}
Session row[2];

/* ---- the workers --------------------------------------------------------------------------- */

mtype = {
    idle,
    unanswered,                 /* the claim had no answer: ask what the token holds */
    nothing_held,               /* nothing: claim again, with the same token */
    refused,                    /* the token is taken, by the first try: ask what it holds */
    working,                    /* the drafter runs: this is what has effects outside */
    clearing, completing, releasing, giving_back, failing, abandoning   /* the ends of a claim */
};

/* The local, monotonic bound up to which a worker may take its claim for alive. */
mtype = { ahead, passed };

typedef Memory {
    mtype at;
    byte session;
    byte generation;            /* that of its claim; 0 before it knows of one */
    mtype bound;
    bool stalled;               /* SIGSTOP, a swapped-out VM: does nothing, and wakes later */
    bool owed                   /* the outbox has a row with this claim's key */
}
Memory worker[WORKERS];

/* One message that is late: its sender has given it up, and it is carried out when it arrives. */
mtype = { no_message, claim };
typedef Message {
    mtype what;                 /* a claim, or one of the ends of one */
    byte session;
    byte generation;
    byte token
}
Message late;

byte upsets = UPSETS;
bool ended;                     /* the last END's answer, within one step */

/* ---- the guards, each of which can be taken out -------------------------------------------- */

#define IS_OWNED(s) (row[s].status == drafting || row[s].status == asking)

/* CLAIM_KNOWN, CLAIM_NEXT: where status = 'clarified', and stopping_until is null or has passed. It
 * is null again when the worker whose claim was taken has confirmed that its drafter is stopped, and
 * it passes with the lease, whose bound that worker keeps, or finds passed when it wakes. */
#define STOPS(w, s) \
    (worker[w].at == working && worker[w].session == s && !worker[w].stalled && \
     worker[w].generation != row[s].generation)
#ifdef NO_STOPPING
#define IS_STOPPED(s) true
#else
#define IS_STOPPED(s) (!row[s].stopping || !(STOPS(0, s) || STOPS(1, s) || STOPS(2, s)))
#endif
#ifdef NO_READY
#define IS_READY(s) IS_STOPPED(s)
#else
#define IS_READY(s) ((row[s].status == clarified || row[s].status == opened) && IS_STOPPED(s))
#endif

/* _END: and claim_generation = $2 */
#ifdef NO_GENERATION
#define HAS_GENERATION(s, g) true
#else
#define HAS_GENERATION(s, g) (row[s].generation == g)
#endif

/* _END: and status in (<owned>) */
#ifdef NO_STATUS
#define HAS_STATUS(move, s) true
#else
#define HAS_STATUS(move, s) \
    ((row[s].status == drafting && move != clearing) || \
     (row[s].status == asking && move != completing))
#endif

/* gate.beat: and claim_generation = $2 */
#ifdef NO_BEAT_GENERATION
#define BEATS_GENERATION(s, g) true
#else
#define BEATS_GENERATION(s, g) (row[s].generation == g)
#endif

/* gate.beat: and status in ('asking', 'drafting') */
#ifdef NO_BEAT_STATUS
#define BEATS_STATUS(s) true
#else
#define BEATS_STATUS(s) IS_OWNED(s)
#endif

/* create unique index one_session_per_claim_token */
#ifdef NO_UNIQUE_TOKEN
#define IS_NEW_TOKEN(t) true
#else
#define IS_NEW_TOKEN(t) (t == STRAY || (row[0].token != t && row[1].token != t))
#endif

/* ---- what the properties say --------------------------------------------------------------- */

/* Every write that is accepted must be one of these, whatever its guards let through. */
#define IS_LIVE(s, g) (IS_OWNED(s) && row[s].generation == g)

#define IS_AT_REST(s) \
    (row[s].status == drafted || row[s].status == failed || row[s].status == closed)

#define DRAFTS(w) (worker[w].at == working && !worker[w].stalled)       /* a drafter runs */
#define MEETS(w, v) \
    (w != v && DRAFTS(w) && DRAFTS(v) && worker[w].session == worker[v].session)

/* ---- leases -------------------------------------------------------------------------------- */

/* The worker that keeps the claim alive: it beats under it, or is about to be told of it. */
#define HOLDER(s) worker[row[s].token - 1]
#define HAS_HOLDER(s) \
    (row[s].token != STRAY && (HOLDER(s).generation == 0 || \
     (HOLDER(s).session == s && HOLDER(s).generation == row[s].generation)))

/* claim_expires_at <= app_now(). While the holder runs and its bound is ahead, it beats in time;
 * and the bound, counted from before the request and less a margin, passes before the lease ends.
 * With -DPHASE_END a lease also ends with its phase, and the bound is made not to know of that. */
#if defined(NO_EXPIRY)
#define HAS_RUN_OUT(s) false
#elif defined(PHASE_END)
#define HAS_RUN_OUT(s) true
#else
#define HAS_RUN_OUT(s) (!HAS_HOLDER(s) || HOLDER(s).stalled || HOLDER(s).bound == passed)
#endif

/* What a claim's holder has of it when it runs out: a drafter's bound may go on to matter. */
inline LEAVE(i)
{
    if
    :: HAS_HOLDER(i) && HOLDER(i).at == working && HOLDER(i).stalled -> HOLDER(i).bound = passed
    :: HAS_HOLDER(i) && HOLDER(i).at != working && HOLDER(i).generation > 0 ->
        HOLDER(i).bound = ahead
    :: else
    fi
}

/* The lease of a claim that was taken has passed when another one is given: a drafter that stalled
 * over that finds, when it wakes, that its bound has passed. */
#define OVERSLEEPS(w, s) \
    (worker[w].at == working && worker[w].session == s && worker[w].stalled)
inline PASS(w, s)
{
    if
    :: OVERSLEEPS(w, s) -> worker[w].bound = passed
    :: else
    fi
}

/* ---- fewer states, the same runs ----------------------------------------------------------- */

/* Generations are only compared with those that somebody remembers: when nobody does, they are
 * counted anew. */
#define REMEMBERS(w, s) (worker[w].generation > 0 && worker[w].session == s)
#define IS_REMEMBERED(s) \
    (REMEMBERS(0, s) || REMEMBERS(1, s) || REMEMBERS(2, s) || \
     (late.generation > 0 && late.session == s))
inline COUNT_ANEW(i)
{
    if
    :: IS_REMEMBERED(i)
    :: else ->
        row[i].generation = (IS_OWNED(i) -> 1 : 0);
        row[i].claimed = row[i].generation;
        row[i].completed = 0;
        row[i].stopping = false
    fi
}

/* Idle workers are alike: only the first of them is looked at. */
#define IS_FIRST_IDLE(w) \
    (worker[w].at == idle && (w < 1 || worker[0].at != idle) && (w < 2 || worker[1].at != idle))

/* So are sessions with the same in their rows and in nobody's memory: the first goes first. */
#define ARE_ALIKE \
    (row[0].generation == 0 && row[1].generation == 0 && row[0].status == row[1].status && \
     row[0].token == row[1].token && row[0].attempts == row[1].attempts && \
     row[0].crashes == row[1].crashes && row[0].late_result == row[1].late_result)

/* ---- the statements ------------------------------------------------------------------------ */

/* CLAIM_KNOWN, CLAIM_NEXT; the caller's guard is IS_READY. */
inline CLAIM(i, bid)
{
    d_step {
        PASS(0, i);
        PASS(1, i);
        PASS(2, i);
        row[i].status = (row[i].status == opened -> asking : drafting);
        row[i].token = bid;
        row[i].stopping = false;
        row[i].generation++;
        assert(row[i].generation > row[i].claimed);         /* generations only grow */
        assert(bid == STRAY || row[1 - i].token != bid);    /* a bid holds one session */
        row[i].claimed = row[i].generation
    }
}

/* gate.beat. The lease that it stamps lasts as long as somebody keeps it alive. */
#define BEAT_FINDS(s, g) (BEATS_GENERATION(s, g) && BEATS_STATUS(s))

/* Every statement that ends a claim makes its columns null. */
inline UNCLAIM(i, next)
{
    row[i].status = next;
    row[i].token = NOBODY
}
#define PRIOR(s) (row[s].status == drafting -> clarified : opened)

/* _END with the changes of CLEAR, COMPLETE, RELEASE, FAIL or ABANDON: the fence, the move, the
 * draft and what is owed commit together. The answer is whether it found the row. */
inline END(move, i, mine)
{
    d_step {
        if
        :: HAS_GENERATION(i, mine) && HAS_STATUS(move, i) ->
            assert(IS_LIVE(i, mine));                       /* only the live claim writes */
            if
            :: move == clearing -> UNCLAIM(i, clarified); row[i].attempts = 0
            :: move == completing ->
                assert(row[i].completed != mine);           /* a claim completes once */
                row[i].completed = mine;
                UNCLAIM(i, drafted);
                row[i].attempts = 0;
                row[i].crashes = 0
            :: move == releasing ->
                UNCLAIM(i, PRIOR(i));
                row[i].attempts++;
                assert(row[i].attempts < MAX_ATTEMPTS)      /* failures count once */
            :: move == giving_back -> UNCLAIM(i, PRIOR(i))
            :: move == failing ->
                UNCLAIM(i, failed);
                row[i].attempts++;
                assert(row[i].attempts == MAX_ATTEMPTS)     /* failures count once */
            :: move == abandoning -> UNCLAIM(i, closed); row[i].generation++
            fi;
            ended = true
        :: else -> ended = false
        fi
    }
}

/* gate.expire, by whichever process: `for update skip locked` lets one of them have the row. A
 * stalled worker finds, when it wakes, that its bound has long passed. */
inline EXPIRE(i)
{
    d_step {
        LEAVE(i);
        row[i].crashes++;
        row[i].generation++;
        UNCLAIM(i, (row[i].crashes >= MAX_CRASHES -> failed : PRIOR(i)));
        COUNT_ANEW(i)
    }
}

/* sessions.evict, sessions.take_away: the worker hears of it by its next look or beat. Until it has
 * confirmed that, or its lease has passed, IS_STOPPED keeps the next one out. */
inline TAKE(i, next)
{
    d_step {
        if
        :: HAS_HOLDER(i) && HOLDER(i).at != working && HOLDER(i).generation > 0 ->
            HOLDER(i).bound = ahead
        :: else
        fi;
        row[i].stopping = true;
        row[i].generation++;
        UNCLAIM(i, next);
        COUNT_ANEW(i)
    }
}

/* Where people send a session that is nobody's: sessions.save and its kin. */
inline MOVE(i, next)
{
    d_step {
        row[i].status = next;
        row[i].attempts = 0;
        row[i].crashes = 0
    }
}

/* ---- what a worker does -------------------------------------------------------------------- */

#define RUNS(w) (worker[w].at != idle && !worker[w].stalled)
#define IS_ENDING(w) (worker[w].generation > 0 && worker[w].at != working)
#define IS_ASKING(w) (row[worker[w].session].status == asking)
#define ATTEMPT(w) (row[worker[w].session].attempts + 1)

/* The end of a tick, or of a process: the bid is forgotten. */
inline FORGET(w)
{
    d_step {
        if
        :: row[0].token == w + 1 -> row[0].token = STRAY
        :: else
        fi;
        if
        :: row[1].token == w + 1 -> row[1].token = STRAY
        :: else
        fi;
        if
        :: late.token == w + 1 -> late.token = STRAY
        :: else
        fi;
        worker[w].at = idle;
        worker[w].session = 0;
        worker[w].generation = 0;
        worker[w].bound = ahead;
        worker[w].stalled = false;
        worker[w].owed = false;
        COUNT_ANEW(0);
        COUNT_ANEW(1)
    }
}

inline CHECK_ALONE(w)
{
    assert(!MEETS(w, 0) && !MEETS(w, 1) && !MEETS(w, 2))    /* a story has one drafter */
}

/* The answer to a claim: the work begins, unless the local bound has passed while asking: then the
 * claim is given back. */
inline BEGIN(w, i)
{
    worker[w].session = i;
    worker[w].generation = row[i].generation;
    worker[w].at = (worker[w].bound == passed -> giving_back : working);
    CHECK_ALONE(w)
}

/* No answer: the worker asks again, until half a lease has passed; the rest is left to expiry. */
inline ASK_AGAIN(w)
{
    if
    :: worker[w].at = unanswered
    :: FORGET(w)
    fi
}

inline ASK(w, i)
{
    if
    :: CLAIM(i, w + 1); BEGIN(w, i)
    :: upsets > 0 -> upsets--; CLAIM(i, w + 1); ASK_AGAIN(w)            /* the answer is lost */
    :: upsets > 0 && late.what == no_message -> upsets--;               /* the claim is late */
        late.what = claim;
        late.token = w + 1;
        ASK_AGAIN(w)
    fi
}

/* The work is over, and the claim is to be ended. The bound of a claim that is gone is of no
 * interest any more. */
inline FINISH(w, with)
{
    d_step {
        worker[w].at = with;
        if
        :: IS_LIVE(worker[w].session, worker[w].generation)
        :: else -> worker[w].bound = ahead
        fi
    }
}

/* The local bound passes: the drafter is stopped, if it hasn't finished that very moment. */
inline FENCE(w)
{
    worker[w].bound = passed;
#ifndef NO_SELF_FENCE
    if
    :: worker[w].at == working -> FINISH(w, giving_back)
    :: worker[w].at == working -> FINISH(w, completing)
    :: worker[w].at != working
    fi
#endif
}

/* COMPLETE and FAIL owe a comment, whose key is the claim's own. */
#define OWES(w) (worker[w].at == completing || worker[w].at == failing)

/* The answer to an END. A draft that was not accepted is kept: gate.keep_late_result. (When there
 * will be nobody to adopt it, that makes no difference.) */
inline HEAR_END(w)
{
    d_step {
#ifndef NO_IDEMPOTENT_END
        /* union all select true from outbox where key = $5 */
        ended = (ended || worker[w].owed);
#endif
        assert(!OWES(w) || ended == worker[w].owed);        /* what was accepted is known */
        if
        :: worker[w].at == completing && !ended && upsets > 0 ->
            row[worker[w].session].late_result = true
        :: else
        fi;
        ended = false
    }
    FORGET(w)
}

proctype Worker(byte me)
{
    end: do

    /* --- ask for a claim --- */

    :: atomic { IS_FIRST_IDLE(me) && IS_READY(0) -> ASK(me, 0) }
    :: atomic { IS_FIRST_IDLE(me) && IS_READY(1) && !ARE_ALIKE -> ASK(me, 1) }

    /* gate.held: where claim_token = $1 */
    :: atomic { worker[me].at == unanswered && RUNS(me) ->
        if
#ifdef NO_TOKEN
        :: worker[me].at = nothing_held
#else
        :: row[0].token == me + 1 -> BEGIN(me, 0)
        :: row[1].token == me + 1 -> BEGIN(me, 1)
        :: row[0].token != me + 1 && row[1].token != me + 1 -> worker[me].at = nothing_held
        :: upsets > 0 -> upsets--; ASK_AGAIN(me)
#endif
        fi }

    /* CLAIM_NEXT once more; a token that is taken is refused by its unique index. */
    :: atomic { worker[me].at == nothing_held && RUNS(me) ->
        if
#ifdef NO_TOKEN
        :: IS_READY(0) -> ASK(me, 0)
        :: IS_READY(1) -> ASK(me, 1)
#else
        :: IS_READY(0) && IS_NEW_TOKEN(me + 1) -> ASK(me, 0)
        :: IS_READY(1) && IS_NEW_TOKEN(me + 1) -> ASK(me, 1)
        :: (IS_READY(0) || IS_READY(1)) && !IS_NEW_TOKEN(me + 1) -> worker[me].at = refused
#endif
        :: !IS_READY(0) && !IS_READY(1) -> FORGET(me)
        fi }

    /* gate.held */
    :: atomic { worker[me].at == refused && RUNS(me) ->
        if
        :: row[0].token == me + 1 -> BEGIN(me, 0)
        :: row[1].token == me + 1 -> BEGIN(me, 1)
        :: row[0].token != me + 1 && row[1].token != me + 1 -> FORGET(me)
        :: upsets > 0 -> upsets--; ASK_AGAIN(me)
        fi }

    /* --- work --- */

    :: atomic { worker[me].at == working && RUNS(me) ->
        if
        :: FINISH(me, (IS_ASKING(me) -> clearing : completing))
        /* The drafter fails. As long as the claim is live, the row's attempts are the claim's. */
        :: ATTEMPT(me) < MAX_ATTEMPTS -> FINISH(me, releasing)
        :: ATTEMPT(me) >= MAX_ATTEMPTS -> FINISH(me, failing)
        /* A shutdown; or there is no text yet. */
        :: upsets > 0 -> upsets--; FINISH(me, giving_back)
        :: upsets > 0 -> upsets--; FINISH(me, abandoning)               /* the story is gone */
        fi }

    /* gate.beat, gate.lost: no row, and the drafter is killed. A row that is found changes nothing
     * here, but it must not be another's, whenever the beat was sent. */
    :: atomic { worker[me].at == working && RUNS(me) &&
                !BEAT_FINDS(worker[me].session, worker[me].generation) -> FORGET(me) }
    :: atomic { worker[me].generation > 0 &&
                BEAT_FINDS(worker[me].session, worker[me].generation) &&
                !IS_LIVE(worker[me].session, worker[me].generation) ->
        assert(IS_LIVE(worker[me].session, worker[me].generation))  /* only the live claim beats */
    }

    /* --- end the claim, again until there is an answer --- */

    :: atomic { IS_ENDING(me) && RUNS(me) ->
        if
        :: END(worker[me].at, worker[me].session, worker[me].generation);
            worker[me].owed = (worker[me].owed || (ended && OWES(me)));
            HEAR_END(me)
        :: upsets > 0 -> upsets--;                                      /* the answer is lost */
            END(worker[me].at, worker[me].session, worker[me].generation);
            worker[me].owed = (worker[me].owed || (ended && OWES(me)));
            ended = false
        :: upsets > 0 && late.what == no_message -> upsets--;           /* the END is late */
            late.what = worker[me].at;
            late.session = worker[me].session;
            late.generation = worker[me].generation
        fi }

    /* --- what goes wrong --- */

    /* Answers, or beats, take too long. */
    :: atomic { RUNS(me) && worker[me].bound == ahead && upsets > 0 &&
                (worker[me].generation == 0 || worker[me].at == working ||
                 IS_LIVE(worker[me].session, worker[me].generation)) ->
        upsets--;
        FENCE(me) }

    /* It stalls while its drafter runs. (At any other time that is just taking too long.) */
    :: atomic { worker[me].at == working && RUNS(me) && upsets > 0 ->
        upsets--;
        worker[me].stalled = true }

    /* It wakes: in time, or to find that its bound has passed. */
    :: atomic { worker[me].stalled ->
        worker[me].stalled = false;
        if
        :: worker[me].bound != passed
        :: FENCE(me)
        fi;
        CHECK_ALONE(me) }

    /* kill -9; its successor is one more idle worker. */
    :: atomic { worker[me].at != idle && upsets > 0 -> upsets--; FORGET(me) }

    od
}

/* ---- the others ---------------------------------------------------------------------------- */

/* What a late END wrote into the outbox is there for the worker that sent it. */
inline SETTLE(w)
{
    worker[w].owed = (worker[w].owed || (ended && OWES(w) &&
        worker[w].session == late.session && worker[w].generation == late.generation))
}

/* The late message arrives, or never does. Nobody hears its answer. */
proctype Network()
{
    end: do
    :: atomic { late.what != no_message ->
        if
        :: true
        :: late.what == claim && IS_READY(0) && IS_NEW_TOKEN(late.token) -> CLAIM(0, late.token)
        :: late.what == claim && IS_READY(1) && IS_NEW_TOKEN(late.token) -> CLAIM(1, late.token)
        :: late.what != claim ->
            END(late.what, late.session, late.generation);
            SETTLE(0);
            SETTLE(1);
            SETTLE(2);
            ended = false
        fi;
        d_step {
            late.what = no_message;
            late.session = 0;
            late.generation = 0;
            late.token = NOBODY;
            COUNT_ANEW(0);
            COUNT_ANEW(1)
        } }
    od
}

proctype Expirers()
{
    end: do
    :: atomic { IS_OWNED(0) && HAS_RUN_OUT(0) -> EXPIRE(0) }
    :: atomic { IS_OWNED(1) && HAS_RUN_OUT(1) -> EXPIRE(1) }
    od
}

inline INTERVENE(i)
{
    if
    :: IS_OWNED(i) -> TAKE(i, closed)                                   /* evict: it closes */
    :: row[i].status == asking -> TAKE(i, closed); MOVE(i, clarified)   /* evict, save: /draft */
    :: IS_OWNED(i) -> TAKE(i, PRIOR(i))                                 /* take_away */
    :: !IS_OWNED(i) && row[i].status != closed -> MOVE(i, closed)       /* save: it closes */
    :: row[i].status == failed || row[i].status == drafted ->           /* save: /retry, /revise */
        MOVE(i, clarified)
    :: row[i].status == closed -> MOVE(i, START)                        /* save: it opens again */
    :: row[i].status == failed ->                                       /* retry, by an operator */
        MOVE(i, clarified);
        row[i].generation++
    :: row[i].late_result &&                                            /* gate.adopt */
        (row[i].status == clarified || row[i].status == failed || row[i].status == drafted) ->
        MOVE(i, drafted);
        row[i].generation++;
        row[i].late_result = false
    fi;
    COUNT_ANEW(i)
}

proctype People()
{
    end: do
    :: atomic { upsets > 0 -> upsets--; INTERVENE(0) }
    :: atomic { upsets > 0 && !ARE_ALIKE -> upsets--; INTERVENE(1) }
    od
}

/* Nothing has to go wrong, and nobody has to intervene: from any point on, nothing more of that
 * may come. When after it there is nothing left to do, all must be well. */
proctype Calm()
{
    end: do
    :: atomic { upsets > 0 -> upsets = 0 }
    :: timeout ->
        assert(IS_AT_REST(0) && IS_AT_REST(1));             /* every session comes to rest */
        break
    od
}

init
{
    atomic {
        row[0].status = START;
        row[1].status = START;
        worker[0].at = idle;
        worker[1].at = idle;
        worker[2].at = idle;
        worker[0].bound = ahead;
        worker[1].bound = ahead;
        worker[2].bound = ahead;
        late.what = no_message;
        run Worker(0);
        run Worker(1);
        run Worker(2);
        run Network();
        run Expirers();
        run People();
        run Calm()
    }
}
