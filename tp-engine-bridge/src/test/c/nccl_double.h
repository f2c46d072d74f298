/* What the parts of the double of NCCL share. */
#ifndef NCCL_DOUBLE_H
#define NCCL_DOUBLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cuda_double.h"

#define API __attribute__((visibility("default")))
#define MAGIC 0x6e63636c64626c65ull
#define BOUNCE (128 * 1024)
#define CHANNEL (16 * 1024)

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
} ncclResult_t;

typedef struct {
    char internal[128];
} ncclUniqueId;

typedef struct ncclComm *ncclComm_t;

enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECEIVE };

/* An operation of one rank. */
struct op {
    struct op *next;
    enum kind kind;
    int type;
    int reduction;
    int root; /* or the peer */
    uint64_t count;
    const char *in;
    char *out;
    cudaStream_t stream;
    uint64_t moved; /* bytes that a send or receive is done with */
    bool begun;
    bool done;
};

/* What a rank tells the others about its collective. */
struct call {
    int kind, type, reduction, root;
    uint64_t count;
    pid_t pid;
    const char *in;
    char *out;
};

/* A rank's place in the shared memory. */
struct slot {
    _Alignas(64) atomic_int claimed;
    atomic_int ended; /* finalized or aborted */
    pid_t pid;
    int device;
    atomic_ullong posted; /* collectives that the rank has come to */
    atomic_ullong phase;  /* steps of them that it has done */
    atomic_ullong splits;
    atomic_ullong splits_read;
    int color, key;
    struct call call;
};

/* From one rank to another. */
struct channel {
    _Alignas(64) atomic_ullong sent;
    atomic_ullong received;
    int type;
    uint64_t total;
    uint64_t length;
    char data[CHANNEL];
};

/* The shared memory of a communicator; slots, channels and bounce buffers follow. */
struct shared {
    atomic_int ranks;
    atomic_int attached;
    atomic_int failing; /* a rank writes the error */
    atomic_int error;   /* of all ranks */
    atomic_uint bell;   /* rung whenever something has changed */
    char text[512];
};

struct job {
    struct job *next;
    ncclResult_t (*run)(ncclComm_t comm, struct job *job);
    struct op *ops;
    ncclComm_t *result;
    int color, key;
};

struct ncclComm {
    uint64_t magic;
    int rank, ranks, device;
    bool blocking;
    char name[200];
    struct shared *shared;
    size_t size;
    atomic_int aborted;
    ncclComm_t parent; /* while it is being split off: it ends with it */
    atomic_int async;
    atomic_int references;
    atomic_int in_flight; /* operations given to a stream */
    atomic_int running;
    atomic_bool finalized;
    uint64_t sequence, phase, splits;

    pthread_t launcher;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct job *first, **last;
    int unfinished; /* jobs */
    bool stopped;
};

struct slot *slot_of(const struct shared *shared, int rank);
struct channel *channel_of(const struct shared *shared, int ranks, int from, int to);
char *bounce_of(const struct shared *shared, int ranks, int rank);
size_t shared_size(int ranks);

/* Keeps the text of an error and returns its code. */
ncclResult_t fail(ncclResult_t result, const char *format, ...)
        __attribute__((format(printf, 2, 3)));

/* Gives all ranks an error. */
void fail_all(struct ncclComm *comm, ncclResult_t result, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

/* Creates a communicator and its launcher. */
ncclComm_t create_comm(int ranks, int rank, int device, bool blocking);

/* Ends the launcher, waits for the operation that is running, and lets go. */
void reclaim(ncclComm_t comm);

void release(ncclComm_t comm);

/* Whether a communicator takes a call. */
ncclResult_t check(ncclComm_t comm);

/* Gives a job to the launcher. */
void submit(ncclComm_t comm, struct job *job);

/* Waits for the launcher. */
ncclResult_t await(ncclComm_t comm);

/* Begins an implicit group, which ncclGroupEnd ends, and whether it is in another one. */
void enter_group(void);
ncclResult_t ncclGroupEnd(void);
bool in_group(void);

/* Lets the thread's group fail. */
void fail_group(ncclResult_t error);

/* Lets a job wait for the end of the thread's group. */
void defer(ncclComm_t comm, struct job *job);

void ring(struct shared *shared);

/* Waits a little for the bell; false if the rank has aborted or all have failed. */
bool linger(struct ncclComm *comm, unsigned bell, int *rounds);

size_t type_size(int type);

/* Carries out operations; false if it was given up. */
bool run_ops(struct ncclComm *comm, struct op *ops);

#endif
