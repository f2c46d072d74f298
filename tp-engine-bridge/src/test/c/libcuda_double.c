/* Double of the CUDA driver library: only what the binding's loader and device names need. */
#include <stdio.h>

#define API __attribute__((visibility("default")))

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
