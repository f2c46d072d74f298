/*
 * Double of the CUDA runtime on host memory: devices, streams with a worker thread each, events.
 */
#define _GNU_SOURCE
#include "cuda_double.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_DEVICES 64
#define MAX_COUNTERS 128
#define GREATEST_PRIORITY -5
#define API __attribute__((visibility("default")))

struct CUevent_st {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int device;
    uint64_t recorded; /* how often it was queued */
    uint64_t reached;  /* up to where streams have come */
    int references;
};

struct task {
    struct task *next;
    enum { RUN, RECORD, WAIT } kind;
    cudaHostFn_t function;
    void *data;
    cudaEvent_t event;
    uint64_t generation;
};

struct CUstream_st {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int device;
    struct task *first;
    struct task **last;
    bool busy;
    bool destroyed; /* the worker ends when the queue is empty */
};

static __thread int current_device;
static __thread bool device_set; /* by the thread; one that has not is on device 0 */
static __thread cudaError_t last_error;
static atomic_int device_count = -1;
static atomic_int pageable = 1;
static atomic_bool inline_null; /* the null streams are the threads that use them */
static atomic_long live_streams, live_events, live_allocations;
static atomic_long strays; /* threads that used device 0 and never said so */
static atomic_long queued[MAX_DEVICES]; /* tasks of a device that are not done */
static pthread_mutex_t context_locks[MAX_DEVICES] = {
    [0 ... MAX_DEVICES - 1] = PTHREAD_MUTEX_INITIALIZER};
static pthread_mutex_t global = PTHREAD_MUTEX_INITIALIZER;
static cudaStream_t null_streams[MAX_DEVICES];
static struct {
    const char *name;
    long calls;
} counters[MAX_COUNTERS];

/* ---------------------------------------------------------------- control */

API void tp_double_count(const char *function) {
    pthread_mutex_lock(&global);
    int i = 0;
    while (i < MAX_COUNTERS - 1 && counters[i].name && strcmp(counters[i].name, function)) {
        i++;
    }
    counters[i].name = function;
    counters[i].calls++;
    pthread_mutex_unlock(&global);
}

API long tp_double_calls(const char *function) {
    long calls = 0;
    pthread_mutex_lock(&global);
    for (int i = 0; i < MAX_COUNTERS && counters[i].name; i++) {
        if (!strcmp(counters[i].name, function)) {
            calls = counters[i].calls;
        }
    }
    pthread_mutex_unlock(&global);
    return calls;
}

API void tp_double_set_devices(int count) { device_count = count; }

API void tp_double_set_pageable(int on) { pageable = on; }

/*
 * What a thread computes on the CPU takes the place of the kernels of the null streams: it is done
 * when an event is recorded behind it, and a wait of the null stream is one of the thread.
 */
API void tp_double_set_inline(int on) { inline_null = on; }

/* A kernel on the current device's null stream: copies floats after a while. */
struct kernel {
    float *to;
    const float *from;
    long count;
    long millis;
};

static void run_kernel(void *argument) {
    struct kernel *kernel = argument;
    usleep((useconds_t)kernel->millis * 1000);
    memcpy(kernel->to, kernel->from, (size_t)kernel->count * sizeof(float));
    free(kernel);
}

API void tp_double_copy_later(float *to, const float *from, long count, long millis) {
    struct kernel *kernel = malloc(sizeof(*kernel));
    *kernel = (struct kernel){to, from, count, millis};
    cudaLaunchHostFunc(NULL, run_kernel, kernel);
}

API long tp_double_strays(void) { return strays; }

API long tp_double_live_streams(void) { return live_streams; }

API long tp_double_live_events(void) { return live_events; }

API long tp_double_live_allocations(void) { return live_allocations; }

static int devices(void) {
    if (device_count < 0) {
        const char *text = getenv("TP_DOUBLE_DEVICES");
        device_count = text ? atoi(text) : 8;
    }
    return device_count;
}

static cudaError_t result(cudaError_t error) {
    if (error != cudaSuccess && error != cudaErrorNotReady) {
        last_error = error;
    }
    return error;
}

/*
 * A call that works in the context of the thread's device: makes one if there is none, and waits
 * for whoever holds its lock.
 */
static void enter_context(void) {
    static __thread bool counted;
    if (!device_set && !counted) {
        counted = true;
        strays++;
    }
    tp_double_make_context(current_device);
    pthread_mutex_lock(&context_locks[current_device]);
    pthread_mutex_unlock(&context_locks[current_device]);
}

/*
 * The first launch of a kernel under lazy loading, on the current device: waits for all that the
 * device has to do, and holds the lock of the context meanwhile.
 */
API void tp_double_load_kernel(void) {
    enter_context();
    pthread_mutex_lock(&context_locks[current_device]);
    while (queued[current_device]) {
        usleep(200);
    }
    pthread_mutex_unlock(&context_locks[current_device]);
}

/* ---------------------------------------------------------------- devices */

API cudaError_t cudaGetDeviceCount(int *count) {
    tp_double_count(__func__);
    *count = devices();
    return result(devices() > 0 ? cudaSuccess : cudaErrorNoDevice);
}

API cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= devices()) {
        return result(devices() > 0 ? cudaErrorInvalidDevice : cudaErrorNoDevice);
    }
    current_device = device;
    device_set = true;
    tp_double_make_context(device);
    return cudaSuccess;
}

API cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device) {
    if (device < 0 || device >= devices()) {
        return result(cudaErrorInvalidDevice);
    }
    switch (attribute) {
        case 75: /* cudaDevAttrComputeCapabilityMajor */
            *value = 7;
            break;
        case 76: /* cudaDevAttrComputeCapabilityMinor */
            *value = 5;
            break;
        case 88: /* cudaDevAttrPageableMemoryAccess: of any GPU, by page faults, or better */
            *value = 1;
            break;
        case 100: /* cudaDevAttrPageableMemoryAccessUsesHostPageTables */
            *value = pageable;
            break;
        default:
            *value = 0;
    }
    return cudaSuccess;
}

API cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = 12090;
    return cudaSuccess;
}

API cudaError_t cudaDriverGetVersion(int *version) {
    *version = devices() > 0 ? 12090 : 0;
    return cudaSuccess;
}

API const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess:
            return "cudaSuccess";
        case cudaErrorInvalidValue:
            return "cudaErrorInvalidValue";
        case cudaErrorMemoryAllocation:
            return "cudaErrorMemoryAllocation";
        case cudaErrorNoDevice:
            return "cudaErrorNoDevice";
        case cudaErrorInvalidDevice:
            return "cudaErrorInvalidDevice";
        case cudaErrorInvalidResourceHandle:
            return "cudaErrorInvalidResourceHandle";
        case cudaErrorNotReady:
            return "cudaErrorNotReady";
        default:
            return "cudaErrorUnknown";
    }
}

API const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess:
            return "no error";
        case cudaErrorInvalidValue:
            return "invalid argument";
        case cudaErrorMemoryAllocation:
            return "out of memory";
        case cudaErrorNoDevice:
            return "no CUDA-capable device is detected";
        case cudaErrorInvalidDevice:
            return "invalid device ordinal";
        case cudaErrorInvalidResourceHandle:
            return "invalid resource handle";
        case cudaErrorNotReady:
            return "device not ready";
        default:
            return "unknown error";
    }
}

API cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

API cudaError_t cudaMalloc(void **memory, size_t size) {
    enter_context();
    *memory = calloc(1, size ? size : 1);
    live_allocations++;
    return result(*memory ? cudaSuccess : cudaErrorMemoryAllocation);
}

API cudaError_t cudaFree(void *memory) {
    enter_context();
    if (memory) {
        live_allocations--;
        free(memory);
    }
    return cudaSuccess;
}

/* ---------------------------------------------------------------- events */

static void release(cudaEvent_t event) {
    pthread_mutex_lock(&event->mutex);
    bool last = --event->references == 0;
    pthread_mutex_unlock(&event->mutex);
    if (last) {
        pthread_mutex_destroy(&event->mutex);
        pthread_cond_destroy(&event->changed);
        free(event);
        live_events--;
    }
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    (void)flags;
    enter_context();
    tp_double_count(__func__);
    cudaEvent_t created = calloc(1, sizeof(*created));
    pthread_mutex_init(&created->mutex, NULL);
    pthread_cond_init(&created->changed, NULL);
    created->device = current_device;
    created->references = 1;
    live_events++;
    *event = created;
    return cudaSuccess;
}

API cudaError_t cudaEventDestroy(cudaEvent_t event) {
    enter_context();
    if (!event) {
        return result(cudaErrorInvalidResourceHandle);
    }
    release(event);
    return cudaSuccess;
}

API cudaError_t cudaEventQuery(cudaEvent_t event) {
    enter_context();
    pthread_mutex_lock(&event->mutex);
    bool done = event->reached >= event->recorded;
    pthread_mutex_unlock(&event->mutex);
    return done ? cudaSuccess : cudaErrorNotReady;
}

static void await_event(cudaEvent_t event, uint64_t generation) {
    pthread_mutex_lock(&event->mutex);
    while (event->reached < generation) {
        pthread_cond_wait(&event->changed, &event->mutex);
    }
    pthread_mutex_unlock(&event->mutex);
}

API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    enter_context();
    tp_double_count(__func__);
    pthread_mutex_lock(&event->mutex);
    uint64_t generation = event->recorded;
    pthread_mutex_unlock(&event->mutex);
    await_event(event, generation);
    return cudaSuccess;
}

/* ---------------------------------------------------------------- streams */

static void execute(struct task *task) {
    switch (task->kind) {
        case RUN:
            task->function(task->data);
            break;
        case WAIT:
            await_event(task->event, task->generation);
            release(task->event);
            break;
        case RECORD:
            pthread_mutex_lock(&task->event->mutex);
            if (task->event->reached < task->generation) {
                task->event->reached = task->generation;
            }
            pthread_cond_broadcast(&task->event->changed);
            pthread_mutex_unlock(&task->event->mutex);
            release(task->event);
            break;
    }
    free(task);
}

static void *work(void *argument) {
    cudaStream_t stream = argument;
    pthread_mutex_lock(&stream->mutex);
    while (true) {
        struct task *task = stream->first;
        if (task) {
            stream->first = task->next;
            if (!stream->first) {
                stream->last = &stream->first;
            }
            stream->busy = true;
            pthread_mutex_unlock(&stream->mutex);
            execute(task);
            queued[stream->device]--;
            pthread_mutex_lock(&stream->mutex);
            stream->busy = false;
            pthread_cond_broadcast(&stream->changed);
        } else if (stream->destroyed) {
            break;
        } else {
            pthread_cond_wait(&stream->changed, &stream->mutex);
        }
    }
    pthread_mutex_unlock(&stream->mutex);
    pthread_mutex_destroy(&stream->mutex);
    pthread_cond_destroy(&stream->changed);
    free(stream);
    live_streams--;
    return NULL;
}

static cudaStream_t create_stream(int device) {
    cudaStream_t stream = calloc(1, sizeof(*stream));
    pthread_mutex_init(&stream->mutex, NULL);
    pthread_cond_init(&stream->changed, NULL);
    stream->device = device;
    stream->last = &stream->first;
    live_streams++;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 512 * 1024);
    pthread_t thread;
    pthread_create(&thread, &attributes, work, stream);
    pthread_attr_destroy(&attributes);
    return stream;
}

static cudaStream_t resolve(cudaStream_t stream) {
    enter_context();
    if (stream) {
        return stream;
    }
    pthread_mutex_lock(&global);
    cudaStream_t *own = &null_streams[current_device];
    if (!*own) {
        *own = create_stream(current_device);
        live_streams--; /* it is the device's, and stays */
    }
    cudaStream_t found = *own;
    pthread_mutex_unlock(&global);
    return found;
}

API int tp_double_stream_device(cudaStream_t stream) {
    return stream ? stream->device : current_device;
}

static void enqueue(cudaStream_t stream, struct task task) {
    struct task *copy = malloc(sizeof(task));
    *copy = task;
    copy->next = NULL;
    queued[stream->device]++;
    pthread_mutex_lock(&stream->mutex);
    *stream->last = copy;
    stream->last = &copy->next;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->mutex);
}

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
    (void)flags;
    tp_double_count(__func__);
    if (devices() == 0) {
        return result(cudaErrorNoDevice);
    }
    enter_context();
    *stream = create_stream(current_device);
    return cudaSuccess;
}

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority) {
    if (priority == GREATEST_PRIORITY) {
        tp_double_count(__func__);
    }
    return cudaStreamCreateWithFlags(stream, flags);
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = GREATEST_PRIORITY;
    return cudaSuccess;
}

API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    enter_context();
    if (!stream) {
        return result(cudaErrorInvalidResourceHandle);
    }
    pthread_mutex_lock(&stream->mutex);
    stream->destroyed = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->mutex);
    return cudaSuccess;
}

API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    tp_double_count(__func__);
    stream = resolve(stream);
    pthread_mutex_lock(&stream->mutex);
    while (stream->first || stream->busy) {
        pthread_cond_wait(&stream->changed, &stream->mutex);
    }
    pthread_mutex_unlock(&stream->mutex);
    return cudaSuccess;
}

API cudaError_t cudaDeviceSynchronize(void) {
    tp_double_count(__func__);
    return cudaStreamSynchronize(NULL);
}

API cudaError_t cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    (void)kind;
    tp_double_count(__func__);
    cudaStreamSynchronize(NULL);
    memcpy(to, from, size);
    return cudaSuccess;
}

API cudaError_t cudaStreamQuery(cudaStream_t stream) {
    stream = resolve(stream);
    pthread_mutex_lock(&stream->mutex);
    bool busy = stream->first || stream->busy;
    pthread_mutex_unlock(&stream->mutex);
    return busy ? cudaErrorNotReady : cudaSuccess;
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
    (void)flags;
    tp_double_count(__func__);
    bool in_thread = !stream && inline_null;
    stream = resolve(stream);
    pthread_mutex_lock(&event->mutex);
    event->references++;
    uint64_t generation = event->recorded;
    pthread_mutex_unlock(&event->mutex);
    if (in_thread) {
        await_event(event, generation);
        release(event);
        return cudaSuccess;
    }
    enqueue(stream, (struct task){.kind = WAIT, .event = event, .generation = generation});
    return cudaSuccess;
}

API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    stream = resolve(stream);
    if (!event || event->device != stream->device) {
        return result(cudaErrorInvalidResourceHandle);
    }
    pthread_mutex_lock(&event->mutex);
    event->references++;
    uint64_t generation = ++event->recorded;
    pthread_mutex_unlock(&event->mutex);
    enqueue(stream, (struct task){.kind = RECORD, .event = event, .generation = generation});
    return cudaSuccess;
}

API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    stream = resolve(stream);
    enqueue(stream, (struct task){.kind = RUN, .function = function, .data = data});
    return cudaSuccess;
}
