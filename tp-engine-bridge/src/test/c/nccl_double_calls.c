/* The calls of operations of the double of NCCL: groups, and the way to the stream. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "nccl_double.h"

/* A job that waits for the end of the thread's group. */
struct pending {
    struct pending *next;
    ncclComm_t comm;
    struct job *job;
};

static __thread int group_depth;
static __thread ncclResult_t group_error;
static __thread struct pending *group;

static atomic_int inject_rank = -1, inject_error;
static atomic_long inject_after;

/* Lets a rank's communicator have an error after this many more operations; the stream is stuck. */
API void tp_double_inject_async_error(int rank, long after_calls, int error) {
    inject_after = after_calls;
    inject_error = error;
    inject_rank = rank;
}

/* ---------------------------------------------------------------- groups */

static void free_ops(struct op *op) {
    while (op) {
        struct op *next = op->next;
        free(op);
        op = next;
    }
}

void enter_group(void) { group_depth++; }

bool in_group(void) { return group_depth > 0; }

void fail_group(ncclResult_t error) { group_error = error; }

API ncclResult_t ncclGroupStart(void) {
    tp_double_count(__func__);
    group_depth++;
    return ncclSuccess;
}

/* A send to oneself would wait for ever for a receive that is not in the same group. */
static ncclResult_t check_self(ncclComm_t comm, const struct op *ops) {
    long balance = 0;
    for (const struct op *op = ops; op; op = op->next) {
        if (op->root == comm->rank && (op->kind == SEND || op->kind == RECEIVE)) {
            balance += op->kind == SEND ? 1 : -1;
        }
    }
    return balance == 0 ? ncclSuccess
                        : fail(ncclInvalidUsage,
                               "Trying to send to self without a matching recv in the same group");
}

static ncclResult_t check_group(void) {
    if (group_error != ncclSuccess) {
        return group_error;
    }
    for (struct pending *p = group; p; p = p->next) {
        if (p->comm->blocking != group->comm->blocking) {
            return fail(ncclInvalidArgument,
                        "Blocking and nonblocking communicators are not allowed in the same group.");
        }
        ncclResult_t result = check_self(p->comm, p->job->ops);
        if (result != ncclSuccess) {
            return result;
        }
    }
    return ncclSuccess;
}

API ncclResult_t ncclGroupEnd(void) {
    if (group_depth == 0) {
        return fail(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
    }
    if (--group_depth > 0) {
        return ncclSuccess;
    }
    ncclResult_t result = check_group();
    struct pending *list = group;
    group = NULL;
    group_error = ncclSuccess;
    bool blocking = list && list->comm->blocking;
    for (struct pending *p = list; p; p = p->next) {
        if (result == ncclSuccess) {
            submit(p->comm, p->job);
        } else {
            free_ops(p->job->ops);
            free(p->job);
        }
    }
    bool any = list != NULL;
    while (list) {
        struct pending *p = list;
        list = p->next;
        if (result == ncclSuccess && blocking) {
            result = await(p->comm);
        }
        free(p);
    }
    return result == ncclSuccess && any && !blocking ? ncclInProgress : result;
}

void defer(ncclComm_t comm, struct job *job) {
    struct pending **last = &group;
    while (*last) {
        last = &(*last)->next;
    }
    *last = calloc(1, sizeof(struct pending));
    (*last)->comm = comm;
    (*last)->job = job;
}

/* ---------------------------------------------------------------- operations */

struct task {
    ncclComm_t comm;
    struct op *ops;
};

static bool is_injected(ncclComm_t comm) {
    return inject_rank == comm->rank && atomic_fetch_sub(&inject_after, 1) == 0;
}

/* On the worker thread of the stream. */
static void execute(void *argument) {
    struct task *task = argument;
    ncclComm_t comm = task->comm;
    atomic_fetch_add(&comm->running, 1);
    bool done = false;
    if (!atomic_load(&comm->aborted)) {
        if (is_injected(comm)) {
            inject_rank = -1;
            atomic_store(&comm->async, fail((ncclResult_t)inject_error, "NET/IB : injected error"));
        } else {
            done = run_ops(comm, task->ops);
            int error = atomic_load(&comm->shared->error);
            if (!done && error && !atomic_load(&comm->aborted)) {
                atomic_store(&comm->async, fail((ncclResult_t)error, "%s", comm->shared->text));
            }
        }
    }
    while (!done && !atomic_load(&comm->aborted)) {
        usleep(500); /* a kernel that has lost its peers spins until it is told to stop */
    }
    free_ops(task->ops);
    free(task);
    atomic_fetch_sub(&comm->in_flight, 1);
    atomic_fetch_sub(&comm->running, 1);
    release(comm);
}

static ncclResult_t hand_over(ncclComm_t comm, struct job *job) {
    struct task *task = calloc(1, sizeof(*task));
    task->comm = comm;
    task->ops = job->ops;
    atomic_fetch_add(&comm->references, 1);
    atomic_fetch_add(&comm->in_flight, 1);
    cudaLaunchHostFunc(job->ops->stream, execute, task);
    return ncclSuccess;
}

static ncclResult_t check_op(ncclComm_t comm, const struct op *op) {
    ncclResult_t result = check(comm);
    if (result != ncclSuccess) {
        return result;
    }
    if (type_size(op->type) == 0) {
        return fail(ncclInvalidArgument, "invalid type %d", op->type);
    }
    if (op->reduction != 0 && op->reduction != 2 && op->reduction != 3) {
        return fail(ncclInvalidArgument, "invalid reduction operation %d", op->reduction);
    }
    if (op->root < 0 || op->root >= comm->ranks) {
        return fail(ncclInvalidArgument, "invalid root %d (root should be in the 0..%d range)",
                    op->root, comm->ranks);
    }
    if (op->count && ((op->kind != RECEIVE && !op->in) || (op->kind != SEND && !op->out))) {
        return fail(ncclInvalidArgument, "a buffer is NULL");
    }
    if (tp_double_stream_device(op->stream) != comm->device) {
        return fail(ncclUnhandledCudaError, "Cuda failure 400 'invalid resource handle'");
    }
    if (atomic_load(&comm->finalized)) {
        return fail(ncclInvalidUsage, "the communicator was finalized");
    }
    return ncclSuccess;
}

static ncclResult_t append(ncclComm_t comm, struct op op) {
    struct pending *p = group;
    while (p && p->comm != comm) {
        p = p->next;
    }
    if (!p) {
        struct job *job = calloc(1, sizeof(*job));
        job->run = hand_over;
        defer(comm, job);
        p = group;
        while (p->comm != comm) {
            p = p->next;
        }
    } else if (p->job->run != hand_over || p->job->ops->stream != op.stream) {
        return fail(ncclInvalidUsage, "one group, one communicator, but different streams or tasks");
    }
    struct op **last = &p->job->ops;
    while (*last) {
        last = &(*last)->next;
    }
    *last = malloc(sizeof(op));
    **last = op;
    return ncclSuccess;
}

static ncclResult_t operate(ncclComm_t comm, struct op op) {
    ncclResult_t error = check_op(comm, &op);
    /* as in the original, an empty collective is no operation */
    if (error == ncclSuccess && op.count == 0 && op.kind != SEND && op.kind != RECEIVE) {
        return ncclSuccess;
    }
    group_depth++;
    if (error == ncclSuccess) {
        error = append(comm, op);
    }
    if (error != ncclSuccess) {
        group_error = error;
    }
    ncclResult_t end = ncclGroupEnd();
    return error != ncclSuccess ? error : end;
}

API ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, int type, int reduction,
                               ncclComm_t comm, cudaStream_t stream) {
    tp_double_count(__func__);
    return operate(comm, (struct op){.kind = ALL_REDUCE, .type = type, .reduction = reduction,
                                     .count = count, .in = in, .out = out, .stream = stream});
}

API ncclResult_t ncclReduce(const void *in, void *out, size_t count, int type, int reduction,
                            int root, ncclComm_t comm, cudaStream_t stream) {
    tp_double_count(__func__);
    const void *none = in; /* ranks other than the root need no output */
    return operate(comm, (struct op){.kind = REDUCE, .type = type, .reduction = reduction,
                                     .root = root, .count = count, .in = in,
                                     .out = out ? out : (void *)none, .stream = stream});
}

API ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, int type, int root,
                               ncclComm_t comm, cudaStream_t stream) {
    tp_double_count(__func__);
    return operate(comm, (struct op){.kind = BROADCAST, .type = type, .root = root, .count = count,
                                     .in = in ? in : out, .out = out, .stream = stream});
}

API ncclResult_t ncclAllGather(const void *in, void *out, size_t count, int type, ncclComm_t comm,
                               cudaStream_t stream) {
    tp_double_count(__func__);
    return operate(comm, (struct op){.kind = ALL_GATHER, .type = type, .count = count, .in = in,
                                     .out = out, .stream = stream});
}

API ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, int type, int reduction,
                                   ncclComm_t comm, cudaStream_t stream) {
    tp_double_count(__func__);
    return operate(comm, (struct op){.kind = REDUCE_SCATTER, .type = type, .reduction = reduction,
                                     .count = count, .in = in, .out = out, .stream = stream});
}

API ncclResult_t ncclSend(const void *in, size_t count, int type, int peer, ncclComm_t comm,
                          cudaStream_t stream) {
    tp_double_count(__func__);
    return operate(comm, (struct op){.kind = SEND, .type = type, .root = peer, .count = count,
                                     .in = in, .stream = stream});
}

API ncclResult_t ncclRecv(void *out, size_t count, int type, int peer, ncclComm_t comm,
                          cudaStream_t stream) {
    tp_double_count(__func__);
    return operate(comm, (struct op){.kind = RECEIVE, .type = type, .root = peer, .count = count,
                                     .out = out, .stream = stream});
}

