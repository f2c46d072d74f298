package io.djltp.collective.nccl;

import ai.djl.Device;

import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * Which GPU each rank of this process works on: the one that it was given, or, for ranks on the
 * CPU, one after another.
 */
final class GpuAssignment {

    private final int[] gpus;
    private final String refusal;

    /**
     * Finds a GPU for each rank.
     *
     * @param firstRank the first rank of this process
     * @param devices the devices that the ranks were given
     */
    GpuAssignment(int firstRank, List<Device> devices) {
        gpus = new int[devices.size()];
        refusal = assign(firstRank, devices, NcclLibrary.deviceCount());
    }

    /** Returns why there is not a GPU for each rank, or nothing if there is. */
    Optional<String> whyNot() {
        return Optional.ofNullable(refusal);
    }

    /**
     * Returns the GPUs.
     *
     * @return the number of each rank's GPU
     * @throws IllegalArgumentException if there is not one for each
     */
    int[] getGpus() {
        if (refusal != null) {
            throw new IllegalArgumentException(refusal);
        }
        return gpus;
    }

    private String assign(int firstRank, List<Device> devices, int count) {
        Set<Integer> taken = new HashSet<>();
        for (int i = 0; i < gpus.length; i++) {
            Device device = devices.get(i);
            String rank = "Rank " + (firstRank + i);
            boolean isCpu = Device.Type.CPU.equals(device.getDeviceType());
            int gpu = isCpu ? (firstRank + i) % Math.max(1, count) : device.getDeviceId();
            if (gpu >= count) {
                return rank
                        + " cannot work on GPU "
                        + gpu
                        + ": this process sees "
                        + count
                        + " GPUs, numbered from 0; use fewer ranks, or check CUDA_VISIBLE_DEVICES";
            }
            if (!taken.add(gpu)) {
                return rank
                        + " cannot share GPU "
                        + gpu
                        + " with another rank, NCCL needs one for each: this process sees "
                        + count
                        + " GPUs for "
                        + gpus.length
                        + " ranks; use fewer ranks, or the local backend on the CPU";
            }
            if (isCpu && !NcclLibrary.reachesHostMemory(gpu)) {
                return rank
                        + " cannot work on cpu(): GPU "
                        + gpu
                        + " does not reach host memory; give the rank Device.gpu("
                        + gpu
                        + ") or use the backend local or tcp";
            }
            gpus[i] = gpu;
        }
        return null;
    }
}
