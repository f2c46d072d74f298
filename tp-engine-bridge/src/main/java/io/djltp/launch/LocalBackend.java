package io.djltp.launch;

import ai.djl.Device;

import io.djltp.collective.Communicator;
import io.djltp.collective.local.LocalCommunicator;
import io.djltp.job.Job;

import java.time.Duration;
import java.util.List;

/** The {@code local} backend: threads of one process. */
final class LocalBackend extends Backend {

    LocalBackend() {
        super("local");
    }

    /** {@inheritDoc} */
    @Override
    String obstacle(List<Device> devices, Job job) {
        if (job != null && job.getRanks() != devices.size()) {
            return "the backend local reaches the ranks of one process only, and the job has "
                    + job.getProcesses()
                    + " processes: use tcp or nccl";
        }
        return devices.size() > 1 && devices.stream().anyMatch(Device::isGpu)
                ? "the backend local is for CPUs, not for " + devices + ": use nccl"
                : null;
    }

    /** {@inheritDoc} */
    @Override
    boolean isAutomatic(List<Device> devices, Job job) {
        return job == null || job.getProcesses() == 1;
    }

    /** {@inheritDoc} */
    @Override
    List<Communicator> connect(List<Device> devices, Job job, Duration timeout) {
        return LocalCommunicator.create(devices.size(), timeout);
    }
}
