/* The operations of the double of NCCL. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_double.h"

#define BLOCK 4096

size_t type_size(int type) {
    switch (type) {
        case 0: /* int8 */
        case 1: /* uint8 */
            return 1;
        case 6: /* float16 */
        case 9: /* bfloat16 */
            return 2;
        case 2: /* int32 */
        case 7: /* float32 */
            return 4;
        case 4: /* int64 */
        case 8: /* float64 */
            return 8;
        default:
            return 0;
    }
}

/* ---------------------------------------------------------------- arithmetic */

static float from_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (value != value) {
        return 0x7fc0;
    }
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16); /* to nearest, ties to even */
}

#define SAME(x) (x)
#define FROM_F16(x) ((float)(x))
#define TO_F16(x) ((_Float16)(x))

/* MAX and MIN pass on what is not a number; for integers that never applies. */
#define REDUCE_BLOCK(T, WIDE, FROM, TO)                              \
    do {                                                             \
        T *to = out;                                                 \
        for (size_t i = 0; i < count; i++) {                         \
            WIDE a = FROM(((const T *)in[0])[start + i]);            \
            for (int r = 1; r < ranks; r++) {                        \
                WIDE b = FROM(((const T *)in[r])[start + i]);        \
                if (reduction == 0) {                                \
                    a = a + b;                                       \
                } else if (reduction == 2) {                         \
                    a = b > a || b != b ? b : a;                     \
                } else {                                             \
                    a = b < a || b != b ? b : a;                     \
                }                                                    \
            }                                                        \
            to[i] = TO(a);                                           \
        }                                                            \
    } while (0)

static void reduce_block(int type, int reduction, const char **in, int ranks, size_t start,
                         size_t count, void *out) {
    switch (type) {
        case 0:
            REDUCE_BLOCK(int8_t, int8_t, SAME, SAME);
            break;
        case 1:
            REDUCE_BLOCK(uint8_t, uint8_t, SAME, SAME);
            break;
        case 2:
            REDUCE_BLOCK(int32_t, int32_t, SAME, SAME);
            break;
        case 4:
            REDUCE_BLOCK(int64_t, int64_t, SAME, SAME);
            break;
        case 6:
            REDUCE_BLOCK(_Float16, float, FROM_F16, TO_F16);
            break;
        case 7:
            REDUCE_BLOCK(float, float, SAME, SAME);
            break;
        case 8:
            REDUCE_BLOCK(double, double, SAME, SAME);
            break;
        case 9:
            REDUCE_BLOCK(uint16_t, float, from_bf16, to_bf16);
            break;
        default:
            abort();
    }
}

/* Reduces a part of all inputs; every block is complete before it is written. */
static void reduce(const struct op *op, const char **in, int ranks, size_t from, size_t start,
                   size_t count, char **out, int outs) {
    char block[BLOCK * 8];
    size_t size = type_size(op->type);
    for (size_t done = 0; done < count; done += BLOCK) {
        size_t length = count - done < BLOCK ? count - done : BLOCK;
        reduce_block(op->type, op->reduction, in, ranks, from + done, length, block);
        for (int i = 0; i < outs; i++) {
            memcpy(out[i] + (start + done) * size, block, length * size);
        }
    }
}

/* ---------------------------------------------------------------- meetings */

static bool await_phase(struct ncclComm *comm) {
    struct shared *shared = comm->shared;
    uint64_t phase = ++comm->phase;
    atomic_store(&slot_of(shared, comm->rank)->phase, phase);
    ring(shared);
    int rounds = 0;
    while (true) {
        unsigned bell = atomic_load(&shared->bell);
        bool all = true;
        for (int r = 0; r < comm->ranks && all; r++) {
            all = atomic_load(&slot_of(shared, r)->phase) >= phase;
        }
        if (all) {
            return true;
        }
        if (!linger(comm, bell, &rounds)) {
            return false;
        }
    }
}

static bool same(const struct call *a, const struct call *b) {
    return a->kind == b->kind && a->type == b->type && a->reduction == b->reduction
           && a->root == b->root && a->count == b->count;
}

/* Waits until all ranks have come with the same operation. */
static bool meet(struct ncclComm *comm, const struct op *op, struct call *calls) {
    struct shared *shared = comm->shared;
    struct slot *own = slot_of(shared, comm->rank);
    own->call = (struct call){op->kind,  op->type, op->reduction, op->root,
                              op->count, getpid(), op->in,        op->out};
    atomic_store(&own->posted, ++comm->sequence);
    ring(shared);
    int rounds = 0;
    for (int r = 0; r < comm->ranks;) {
        unsigned bell = atomic_load(&shared->bell);
        if (atomic_load(&slot_of(shared, r)->posted) >= comm->sequence) {
            calls[r] = slot_of(shared, r)->call;
            r++;
        } else if (!linger(comm, bell, &rounds)) {
            return false;
        }
    }
    for (int r = 1; r < comm->ranks; r++) {
        if (!same(&calls[r], &calls[0])) {
            fail_all(comm, ncclInvalidUsage,
                     "Rank %d and rank 0 called different operations: kind %d count %llu type %d"
                     " op %d root %d, and kind %d count %llu type %d op %d root %d",
                     r, calls[r].kind, (unsigned long long)calls[r].count, calls[r].type,
                     calls[r].reduction, calls[r].root, calls[0].kind,
                     (unsigned long long)calls[0].count, calls[0].type, calls[0].reduction,
                     calls[0].root);
            return false;
        }
    }
    return true;
}

/* ---------------------------------------------------------------- collectives in one process */

static void move(void *to, const void *from, size_t size) {
    if (to != from && size) {
        memmove(to, from, size);
    }
}

/* Every rank works on its part of the result and reads and writes the others' memory. */
static void run_direct(struct ncclComm *comm, const struct op *op, struct call *calls) {
    int ranks = comm->ranks;
    size_t size = type_size(op->type);
    size_t start = op->count * (size_t)comm->rank / (size_t)ranks;
    size_t length = op->count * (size_t)(comm->rank + 1) / (size_t)ranks - start;
    const char *in[ranks];
    char *out[ranks];
    for (int r = 0; r < ranks; r++) {
        in[r] = calls[r].in;
        out[r] = calls[r].out;
    }
    switch (op->kind) {
        case ALL_REDUCE:
            reduce(op, in, ranks, start, start, length, out, ranks);
            break;
        case REDUCE:
            reduce(op, in, ranks, start, start, length, &out[op->root], 1);
            break;
        case REDUCE_SCATTER:
            reduce(op, in, ranks, op->count * (size_t)comm->rank, 0, op->count, &out[comm->rank], 1);
            break;
        case BROADCAST:
            move(op->out, in[op->root], op->count * size);
            break;
        case ALL_GATHER:
            for (int r = 0; r < ranks; r++) {
                move(op->out + op->count * size * (size_t)r, in[r], op->count * size);
            }
            break;
        default:
            abort();
    }
}

/* ---------------------------------------------------------------- between processes */

/* One piece of data of every rank goes through its bounce buffer. */
static bool bounce(struct ncclComm *comm, const struct op *op, size_t from, size_t done,
                   size_t length, bool puts, bool takes) {
    int ranks = comm->ranks;
    size_t size = type_size(op->type);
    if (puts) {
        memcpy(bounce_of(comm->shared, ranks, comm->rank), op->in + (from + done) * size,
               length * size);
    }
    if (!await_phase(comm)) {
        return false;
    }
    const char *in[ranks];
    for (int r = 0; r < ranks; r++) {
        in[r] = bounce_of(comm->shared, ranks, r);
    }
    if (takes && op->kind == BROADCAST) {
        memcpy(op->out + done * size, in[op->root], length * size);
    } else if (takes && op->kind == ALL_GATHER) {
        for (int r = 0; r < ranks; r++) {
            memcpy(op->out + (op->count * (size_t)r + done) * size, in[r], length * size);
        }
    } else if (takes) {
        char *out = op->out;
        reduce(op, in, ranks, 0, done, length, &out, 1);
    }
    return await_phase(comm);
}

static bool run_bounced(struct ncclComm *comm, const struct op *op) {
    size_t piece = BOUNCE / type_size(op->type);
    int parts = op->kind == REDUCE_SCATTER ? comm->ranks : 1;
    for (int part = 0; part < parts; part++) {
        for (size_t done = 0; done < op->count; done += piece) {
            size_t length = op->count - done < piece ? op->count - done : piece;
            bool puts = op->kind != BROADCAST || comm->rank == op->root;
            bool takes = (op->kind != REDUCE || comm->rank == op->root)
                         && (op->kind != REDUCE_SCATTER || comm->rank == part);
            if (!bounce(comm, op, op->count * (size_t)part, done, length, puts, takes)) {
                return false;
            }
        }
    }
    return true;
}

static bool run_collective(struct ncclComm *comm, const struct op *op) {
    struct call calls[comm->ranks];
    if (!meet(comm, op, calls)) {
        return false;
    }
    bool direct = true;
    for (int r = 1; r < comm->ranks; r++) {
        direct &= calls[r].pid == calls[0].pid;
    }
    if (direct) {
        run_direct(comm, op, calls);
    } else if (!run_bounced(comm, op)) {
        return false;
    }
    return await_phase(comm); /* from here on, the tensors and the slots are free again */
}

/* ---------------------------------------------------------------- send and receive */

/* Puts the next piece into the channel, if there is room. */
static bool push(struct ncclComm *comm, struct op *op) {
    struct channel *channel = channel_of(comm->shared, comm->ranks, comm->rank, op->root);
    uint64_t sent = atomic_load(&channel->sent);
    if (atomic_load(&channel->received) != sent) {
        return false;
    }
    uint64_t total = op->count * type_size(op->type);
    uint64_t length = total - op->moved < CHANNEL ? total - op->moved : CHANNEL;
    channel->type = op->type;
    channel->total = total;
    channel->length = length;
    if (length) {
        memcpy(channel->data, op->in + op->moved, length);
    }
    op->moved += length;
    op->done = op->moved == total;
    atomic_store(&channel->sent, sent + 1);
    return true;
}

/* Takes the next piece out of the channel, if there is one. */
static bool pull(struct ncclComm *comm, struct op *op) {
    struct channel *channel = channel_of(comm->shared, comm->ranks, op->root, comm->rank);
    uint64_t received = atomic_load(&channel->received);
    if (atomic_load(&channel->sent) == received) {
        return false;
    }
    uint64_t total = op->count * type_size(op->type);
    if (channel->total != total || channel->type != op->type) {
        fail_all(comm, ncclInvalidUsage,
                 "rank %d sends %llu bytes of type %d to rank %d, which expects %llu of type %d",
                 op->root, (unsigned long long)channel->total, channel->type, comm->rank,
                 (unsigned long long)total, op->type);
        return false;
    }
    if (channel->length) {
        memcpy(op->out + op->moved, channel->data, channel->length);
    }
    op->moved += channel->length;
    op->done = op->moved == total;
    atomic_store(&channel->received, received + 1);
    return true;
}

/* Whether an earlier operation of the same kind with the same peer is still under way. */
static bool is_behind(const struct op *ops, const struct op *op) {
    for (const struct op *o = ops; o != op; o = o->next) {
        if (o->kind == op->kind && o->root == op->root && !o->done) {
            return true;
        }
    }
    return false;
}

static bool run_peers(struct ncclComm *comm, struct op *ops) {
    int rounds = 0;
    while (true) {
        unsigned bell = atomic_load(&comm->shared->bell);
        bool waits = false;
        bool moved = false;
        for (struct op *op = ops; op; op = op->next) {
            if ((op->kind == SEND || op->kind == RECEIVE) && !op->done) {
                if (!is_behind(ops, op)) {
                    moved |= op->kind == SEND ? push(comm, op) : pull(comm, op);
                }
                waits |= !op->done;
            }
        }
        if (moved) {
            ring(comm->shared);
            rounds = 0;
        }
        if (!waits) {
            return true;
        }
        if (!moved && !linger(comm, bell, &rounds)) {
            return false;
        }
    }
}

bool run_ops(struct ncclComm *comm, struct op *ops) {
    for (struct op *op = ops; op; op = op->next) {
        if (op->kind != SEND && op->kind != RECEIVE && !run_collective(comm, op)) {
            return false;
        }
    }
    return run_peers(comm, ops);
}
