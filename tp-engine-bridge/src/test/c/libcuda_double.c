/*
 * Double of the CUDA driver library: what the binding's loader and device names need, and which
 * devices have a context. As since CUDA 12, setting a thread's device makes one.
 */
#include <stdatomic.h>
#include <stdio.h>

#define MAX_DEVICES 64

#define API __attribute__((visibility("default")))

static atomic_int contexts[MAX_DEVICES];

/* Called by the runtime when a thread's device is set. */
API void tp_double_make_context(int device) {
    contexts[device] = 1;
}

API int tp_double_has_context(int device) {
    return contexts[device];
}

API int cuDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active) {
    if (device < 0 || device >= MAX_DEVICES) {
        return 101; /* CUDA_ERROR_INVALID_DEVICE */
    }
    *flags = 0;
    *active = contexts[device];
    return 0;
}

API int cuInit(unsigned int flags) {
    (void)flags;
    return 0;
}

API int cuDriverGetVersion(int *version) {
    *version = 12090;
    return 0;
}

API int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}

API int cuDeviceGetName(char *name, int length, int device) {
    snprintf(name, (size_t)length, "Double %d", device);
    return 0;
}
