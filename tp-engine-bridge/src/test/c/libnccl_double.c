/*
 * Double of NCCL on host memory, for ranks that are threads or processes of one machine. The calls on
 * a communicator are carried out by a launcher thread of its own: initialisation, splitting, and handing
 * operations to their stream.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "nccl_double.h"

static pthread_mutex_t global = PTHREAD_MUTEX_INITIALIZER;
static char last_error[512];
static atomic_int version = -1;
static atomic_long live_comms;

/* ---------------------------------------------------------------- control */

API void tp_double_set_version(int value) { version = value; }

API long tp_double_live_comms(void) { return live_comms; }

/* ---------------------------------------------------------------- errors */

ncclResult_t fail(ncclResult_t result, const char *format, ...) {
    va_list arguments;
    char text[sizeof(last_error)];
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&global);
    if (strcmp(text, last_error)) { /* others may read the same text right now */
        memcpy(last_error, text, sizeof(text));
    }
    pthread_mutex_unlock(&global);
    return result;
}

void fail_all(struct ncclComm *comm, ncclResult_t result, const char *format, ...) {
    char text[sizeof(comm->shared->text)];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    int none = 0; /* only one rank's error counts, and it is seen when its text is complete */
    if (atomic_compare_exchange_strong(&comm->shared->failing, &none, 1)) {
        memcpy(comm->shared->text, text, sizeof(text));
        atomic_store(&comm->shared->error, result);
        ring(comm->shared);
    }
    while (!atomic_load(&comm->shared->error)) {
        sched_yield();
    }
}

API const char *ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess:
            return "no error";
        case ncclUnhandledCudaError:
            return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
        case ncclSystemError:
            return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
        case ncclInternalError:
            return "internal error - please report this issue to the NCCL developers";
        case ncclInvalidArgument:
            return "invalid argument (run with NCCL_DEBUG=WARN for details)";
        case ncclInvalidUsage:
            return "invalid usage (run with NCCL_DEBUG=WARN for details)";
        case ncclRemoteError:
            return "remote process exited or there was a network error";
        case ncclInProgress:
            return "NCCL operation in progress";
        default:
            return "unknown result code";
    }
}

API const char *ncclGetLastError(ncclComm_t comm) {
    (void)comm;
    return last_error;
}

API ncclResult_t ncclGetVersion(int *value) {
    if (version < 0) {
        const char *text = getenv("TP_DOUBLE_NCCL_VERSION");
        version = text ? atoi(text) : 22703;
    }
    *value = version;
    return ncclSuccess;
}

/* ---------------------------------------------------------------- shared memory */

size_t shared_size(int ranks) {
    size_t n = (size_t)ranks;
    return 4096 + n * sizeof(struct slot) + n * n * sizeof(struct channel) + n * BOUNCE;
}

struct slot *slot_of(const struct shared *shared, int rank) {
    return (struct slot *)((char *)shared + 4096) + rank;
}

struct channel *channel_of(const struct shared *shared, int ranks, int from, int to) {
    return (struct channel *)(slot_of(shared, ranks)) + from * ranks + to;
}

char *bounce_of(const struct shared *shared, int ranks, int rank) {
    return (char *)channel_of(shared, ranks, ranks, 0) + (size_t)rank * BOUNCE;
}

void ring(struct shared *shared) {
    atomic_fetch_add(&shared->bell, 1);
    syscall(SYS_futex, &shared->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool linger(struct ncclComm *comm, unsigned bell, int *rounds) {
    if (atomic_load(&comm->aborted) || atomic_load(&comm->shared->error)
        || (comm->parent && atomic_load(&comm->parent->aborted))) {
        return false;
    }
    if ((*rounds)++ < 20) {
        sched_yield();
    } else {
        struct timespec wait = {0, 2000000};
        syscall(SYS_futex, &comm->shared->bell, FUTEX_WAIT, bell, &wait, NULL, 0);
    }
    return true;
}

/* ---------------------------------------------------------------- communicators */

void release(ncclComm_t comm) {
    if (atomic_fetch_sub(&comm->references, 1) == 1) {
        if (comm->shared) {
            munmap(comm->shared, comm->size);
        }
        pthread_mutex_destroy(&comm->mutex);
        pthread_cond_destroy(&comm->changed);
        comm->magic = 0;
        free(comm);
        live_comms--;
    }
}

static void *launch(void *argument) {
    ncclComm_t comm = argument;
    cudaSetDevice(comm->device);
    pthread_mutex_lock(&comm->mutex);
    while (true) {
        struct job *job = comm->first;
        if (job) {
            comm->first = job->next;
            if (!comm->first) {
                comm->last = &comm->first;
            }
            pthread_mutex_unlock(&comm->mutex);
            ncclResult_t result = job->run(comm, job);
            free(job);
            pthread_mutex_lock(&comm->mutex);
            comm->unfinished--;
            if (result != ncclSuccess || comm->unfinished == 0) {
                int present = ncclInProgress;
                atomic_compare_exchange_strong(&comm->async, &present, result);
            }
            pthread_cond_broadcast(&comm->changed);
        } else if (comm->stopped) {
            break;
        } else {
            pthread_cond_wait(&comm->changed, &comm->mutex);
        }
    }
    pthread_mutex_unlock(&comm->mutex);
    return NULL;
}

ncclComm_t create_comm(int ranks, int rank, int device, bool blocking) {
    ncclComm_t comm = calloc(1, sizeof(*comm));
    comm->magic = MAGIC;
    comm->ranks = ranks;
    comm->rank = rank;
    comm->device = device;
    comm->blocking = blocking;
    comm->references = 1;
    comm->last = &comm->first;
    pthread_mutex_init(&comm->mutex, NULL);
    pthread_cond_init(&comm->changed, NULL);
    live_comms++;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * 1024);
    pthread_create(&comm->launcher, &attributes, launch, comm);
    pthread_attr_destroy(&attributes);
    return comm;
}

void reclaim(ncclComm_t comm) {
    pthread_mutex_lock(&comm->mutex);
    comm->stopped = true;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->mutex);
    pthread_join(comm->launcher, NULL);
    while (atomic_load(&comm->running)) {
        usleep(100);
    }
    release(comm);
}

ncclResult_t check(ncclComm_t comm) {
    if (!comm || comm->magic != MAGIC) {
        return fail(ncclInvalidArgument, "Error: corrupted comm object detected");
    }
    int state = atomic_load(&comm->async);
    if (state == ncclInProgress) {
        return fail(ncclInvalidArgument,
                    "Attempt to use communicator before the previous operation returned ncclSuccess");
    }
    return (ncclResult_t)state;
}

void submit(ncclComm_t comm, struct job *job) {
    pthread_mutex_lock(&comm->mutex);
    int none = ncclSuccess; /* an error stays */
    atomic_compare_exchange_strong(&comm->async, &none, ncclInProgress);
    job->next = NULL;
    *comm->last = job;
    comm->last = &job->next;
    comm->unfinished++;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->mutex);
}

ncclResult_t await(ncclComm_t comm) {
    pthread_mutex_lock(&comm->mutex);
    while (comm->unfinished) {
        pthread_cond_wait(&comm->changed, &comm->mutex);
    }
    pthread_mutex_unlock(&comm->mutex);
    return (ncclResult_t)atomic_load(&comm->async);
}

/* ---------------------------------------------------------------- state and end */

API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    if (!comm || comm->magic != MAGIC) {
        return fail(ncclInvalidArgument, "Error: corrupted comm object detected");
    }
    *error = (ncclResult_t)atomic_load(&comm->async);
    return ncclSuccess;
}

API ncclResult_t ncclCommCount(ncclComm_t comm, int *count) {
    ncclResult_t result = check(comm);
    if (result == ncclSuccess) {
        *count = comm->ranks;
    }
    return result;
}

API ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) {
    ncclResult_t result = check(comm);
    if (result == ncclSuccess) {
        *rank = comm->rank;
    }
    return result;
}

API ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device) {
    ncclResult_t result = check(comm);
    if (result == ncclSuccess) {
        *device = comm->device;
    }
    return result;
}

static bool has_ended(const struct slot *slot) {
    return atomic_load(&slot->ended) || (kill(slot->pid, 0) && errno == ESRCH);
}

/* The last rank of a process to end waits for the processes beside it, as the original's proxies do. */
static ncclResult_t finalize(ncclComm_t comm, struct job *job) {
    (void)job;
    while (atomic_load(&comm->in_flight) && !atomic_load(&comm->aborted)) {
        usleep(200);
    }
    struct slot *slots = slot_of(comm->shared, 0);
    atomic_store(&slots[comm->rank].ended, 1);
    for (int r = 0; r < comm->ranks; r++) {
        if (slots[r].pid == getpid() && !has_ended(&slots[r])) {
            return ncclSuccess;
        }
    }
    for (int r = 0; r < comm->ranks; r++) {
        while (!has_ended(&slots[r]) && !atomic_load(&comm->aborted)) {
            usleep(200);
        }
    }
    return ncclSuccess;
}

API ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    tp_double_count(__func__);
    ncclResult_t result = check(comm);
    if (result != ncclSuccess) {
        return result;
    }
    if (atomic_exchange(&comm->finalized, true)) {
        return fail(ncclInvalidArgument, "the communicator was finalized before");
    }
    struct job *job = calloc(1, sizeof(*job));
    job->run = finalize;
    submit(comm, job);
    return comm->blocking ? await(comm) : ncclInProgress;
}

API ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    tp_double_count(__func__);
    if (!comm) {
        return ncclSuccess;
    }
    ncclResult_t result = check(comm);
    if (result != ncclSuccess) {
        return result;
    }
    while (atomic_load(&comm->in_flight)) {
        usleep(200);
    }
    reclaim(comm);
    return ncclSuccess;
}

API ncclResult_t ncclCommAbort(ncclComm_t comm) {
    tp_double_count(__func__);
    if (!comm) {
        return ncclSuccess;
    }
    if (comm->magic != MAGIC) {
        return fail(ncclInvalidArgument, "Error: corrupted comm object detected");
    }
    atomic_store(&comm->aborted, 1);
    if (comm->shared) {
        atomic_store(&slot_of(comm->shared, comm->rank)->ended, 1);
    }
    reclaim(comm);
    return ncclSuccess;
}
