/* How the double of NCCL brings ranks together: initialisation and split. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nccl_double.h"

#define ID_MAGIC "tp-nccl-double"

typedef struct {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
} ncclConfig_t;


/* Maps the shared memory and takes the rank's place in it; waits for the others. */
static ncclResult_t attach(ncclComm_t comm) {
    int file = shm_open(comm->name, O_RDWR | O_CREAT, 0600);
    if (file < 0) {
        return fail(ncclSystemError, "shm_open %s: %s", comm->name, strerror(errno));
    }
    comm->size = shared_size(comm->ranks);
    struct stat status;
    fstat(file, &status);
    if (status.st_size < (off_t)comm->size && ftruncate(file, (off_t)comm->size)) {
        close(file);
        return fail(ncclSystemError, "ftruncate: %s", strerror(errno));
    }
    void *memory = mmap(NULL, comm->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) {
        return fail(ncclSystemError, "mmap: %s", strerror(errno));
    }
    struct shared *shared = comm->shared = memory;
    int none = 0;
    if (!atomic_compare_exchange_strong(&shared->ranks, &none, comm->ranks)
        && none != comm->ranks) {
        fail_all(comm, ncclInvalidArgument, "Rank %d: %d ranks, but another says %d", comm->rank,
                 comm->ranks, none);
        return fail(ncclInvalidArgument, "Rank %d: %d ranks, but another says %d", comm->rank,
                    comm->ranks, none);
    }
    if (atomic_exchange(&slot_of(shared, comm->rank)->claimed, 1)) {
        fail_all(comm, ncclInvalidUsage, "Duplicate rank detected : two ranks with the number %d",
                 comm->rank);
        return fail(ncclInvalidUsage, "Duplicate rank detected : two ranks with the number %d",
                    comm->rank);
    }
    slot_of(shared, comm->rank)->device = comm->device;
    slot_of(shared, comm->rank)->pid = getpid();
    atomic_fetch_add(&shared->attached, 1);
    ring(shared);
    int rounds = 0;
    while (atomic_load(&shared->attached) < comm->ranks) {
        unsigned bell = atomic_load(&shared->bell);
        if (atomic_load(&shared->attached) < comm->ranks && !linger(comm, bell, &rounds)) {
            int error = atomic_load(&shared->error);
            return error ? fail((ncclResult_t)error, "%s", shared->text) : ncclInternalError;
        }
    }
    for (int a = 0; a < comm->ranks; a++) {
        for (int b = 0; b < a; b++) {
            if (slot_of(shared, a)->device == slot_of(shared, b)->device) {
                return fail(ncclInvalidUsage,
                            "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d", b,
                            a, slot_of(shared, a)->device);
            }
        }
    }
    return ncclSuccess;
}

static ncclResult_t initialise(ncclComm_t comm, struct job *job) {
    (void)job;
    ncclResult_t result = attach(comm);
    shm_unlink(comm->name); /* all have come, or it has failed */
    return result;
}

API ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    tp_double_count(__func__);
    memset(id, 0, sizeof(*id));
    strcpy(id->internal, ID_MAGIC);
    if (getrandom(id->internal + 16, 16, 0) != 16) {
        return fail(ncclSystemError, "getrandom: %s", strerror(errno));
    }
    return ncclSuccess;
}

static ncclResult_t begin_init(ncclComm_t *result, int ranks, const ncclUniqueId *id, int rank,
                               bool blocking) {
    int device;
    cudaGetDevice(&device);
    if (!result || ranks < 1 || rank < 0 || rank >= ranks) {
        return fail(ncclInvalidArgument, "Invalid rank requested : %d/%d", rank, ranks);
    }
    if (strcmp(id->internal, ID_MAGIC)) {
        return fail(ncclInvalidArgument, "Not an id of ncclGetUniqueId");
    }
    ncclComm_t comm = create_comm(ranks, rank, device, blocking);
    int length = sprintf(comm->name, "/tp-nccl-double-");
    for (int i = 16; i < 32; i++) {
        length += sprintf(comm->name + length, "%02x", (unsigned char)id->internal[i]);
    }
    struct job *job = calloc(1, sizeof(*job));
    job->run = initialise;
    defer(comm, job);
    *result = comm;
    return ncclSuccess;
}

API ncclResult_t ncclCommInitRankConfig(ncclComm_t *result, int ranks, ncclUniqueId id, int rank,
                                        ncclConfig_t *config) {
    tp_double_count(__func__);
    bool blocking = true;
    if (config) {
        if (config->magic != 0xcafebeef) {
            return fail(ncclInvalidArgument,
                        "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
        }
        blocking = config->blocking != 0; /* undefined: blocking */
    }
    enter_group();
    ncclResult_t error = begin_init(result, ranks, &id, rank, blocking);
    if (error != ncclSuccess) {
        fail_group(error);
        if (result) {
            *result = NULL;
        }
    }
    ncclResult_t end = ncclGroupEnd();
    if (error != ncclSuccess || end != ncclSuccess) {
        return error != ncclSuccess ? error : end;
    }
    return in_group() && !blocking ? ncclInProgress : ncclSuccess;
}

API ncclResult_t ncclCommInitRank(ncclComm_t *result, int ranks, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(result, ranks, id, rank, NULL);
}

/* ---------------------------------------------------------------- split */

/* Tells color and key to the others and finds the rank's place in its part. */
static bool find_part(ncclComm_t comm, const struct job *job, int *rank, int *ranks) {
    struct slot *own = slot_of(comm->shared, comm->rank);
    own->color = job->color;
    own->key = job->key;
    uint64_t split = ++comm->splits;
    atomic_store(&own->splits, split);
    ring(comm->shared);
    int rounds = 0;
    for (int step = 0; step < 2; step++) {
        for (int r = 0; r < comm->ranks;) {
            unsigned bell = atomic_load(&comm->shared->bell);
            struct slot *other = slot_of(comm->shared, r);
            if (atomic_load(step ? &other->splits_read : &other->splits) >= split) {
                bool before = other->key < job->key || (other->key == job->key && r < comm->rank);
                if (step == 0 && other->color == job->color) {
                    *rank += before;
                    *ranks += 1;
                }
                r++;
            } else if (!linger(comm, bell, &rounds)) {
                return false;
            }
        }
        atomic_store(&own->splits_read, split); /* the second round: all have read */
        ring(comm->shared);
    }
    return true;
}

static ncclResult_t split(ncclComm_t comm, struct job *job) {
    int rank = 0;
    int ranks = 0;
    if (!find_part(comm, job, &rank, &ranks)) {
        return ncclInternalError;
    }
    if (job->color < 0) {
        return ncclSuccess;
    }
    ncclComm_t part = create_comm(ranks, rank, comm->device, comm->blocking);
    snprintf(part->name, sizeof(part->name), "%.150s-%llu-%d", comm->name,
             (unsigned long long)comm->splits, job->color);
    part->async = ncclInProgress;
    part->parent = comm;
    ncclResult_t result = attach(part);
    part->parent = NULL;
    shm_unlink(part->name);
    part->async = result;
    if (result != ncclSuccess || atomic_load(&comm->aborted)) {
        atomic_store(&part->aborted, 1);
        reclaim(part);
        return result;
    }
    *job->result = part; /* only now, as in the original */
    return ncclSuccess;
}

API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *result,
                               ncclConfig_t *config) {
    (void)config;
    tp_double_count(__func__);
    ncclResult_t error = check(comm);
    if (error == ncclSuccess && !result) {
        error = fail(ncclInvalidArgument, "CommSplit : newcomm argument is NULL");
    }
    enter_group();
    if (error == ncclSuccess) {
        *result = NULL;
        struct job *job = calloc(1, sizeof(*job));
        job->run = split;
        job->color = color;
        job->key = key;
        job->result = result;
        defer(comm, job);
    } else {
        fail_group(error);
    }
    ncclResult_t end = ncclGroupEnd();
    return error != ncclSuccess ? error : end;
}

