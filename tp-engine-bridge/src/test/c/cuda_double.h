/* The part of the CUDA runtime's interface that the doubles have. */
#ifndef CUDA_DOUBLE_H
#define CUDA_DOUBLE_H

#include <stddef.h>

typedef int cudaError_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef void (*cudaHostFn_t)(void *);

enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600
};

cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data);

/* The device of a stream; the null stream is that of the thread's current device. */
int tp_double_stream_device(cudaStream_t stream);

/* Gives a device a context; of the driver library. */
void tp_double_make_context(int device);

/* Counts a call of a function. */
void tp_double_count(const char *function);

#endif
