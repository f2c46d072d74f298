package io.djltp.launch;

import ai.djl.Device;

import io.djltp.collective.Communicator;
import io.djltp.collective.nccl.NcclCommunicator;
import io.djltp.collective.nccl.NcclLibrary;
import io.djltp.job.Job;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/** The {@code nccl} backend in a job. */
final class NcclBackend {

    private NcclBackend() {}

    /** Returns why NCCL cannot be used here, or {@code null} if it can. */
    static String obstacle(List<Device> devices) {
        String missing = NcclLibrary.whyNot().orElse(null);
        if (missing != null) {
            return missing;
        }
        int count = NcclLibrary.deviceCount();
        for (Device device : devices) {
            if (device.isGpu() && device.getDeviceId() >= count) {
                return "there is no "
                        + device
                        + ": this machine shows "
                        + count
                        + " GPUs, from gpu(0) to gpu("
                        + (count - 1)
                        + "). Use fewer ranks, or check CUDA_VISIBLE_DEVICES";
            }
            if (!device.isGpu() && !NcclLibrary.reachesHostMemory(0)) {
                return "the backend nccl is for GPUs, and those of this machine do not reach the"
                        + " memory of "
                        + device
                        + ": use Device.gpu(i), or the backend local, tcp or mpi";
            }
        }
        return null;
    }

    static List<Communicator> connect(List<Device> devices, Job job, Duration timeout) {
        boolean first = job == null || job.getProcess() == 0;
        byte[] id = first ? NcclCommunicator.newUniqueId() : new byte[0];
        if (job != null) {
            id = job.exchange("the unique id of NCCL", id)[0];
        }
        int size = job == null ? devices.size() : job.getRanks();
        int firstRank = job == null ? 0 : job.getFirstRank();
        return new ArrayList<>(NcclCommunicator.create(id, size, firstRank, devices, timeout));
    }
}
