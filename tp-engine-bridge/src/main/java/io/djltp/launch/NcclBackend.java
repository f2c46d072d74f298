package io.djltp.launch;

import ai.djl.Device;

import io.djltp.collective.Communicator;
import io.djltp.collective.nccl.NcclCommunicator;
import io.djltp.job.Job;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/** The {@code nccl} backend: GPUs of one process or of many, which meet through the job. */
final class NcclBackend extends Backend {

    NcclBackend() {
        super("nccl");
    }

    /** {@inheritDoc} */
    @Override
    String obstacle(List<Device> devices, Job job) {
        return NcclCommunicator.whyNot(firstRank(job), devices).orElse(null);
    }

    /** {@inheritDoc} */
    @Override
    boolean isAutomatic(List<Device> devices, Job job) {
        boolean alone = devices.size() == 1 && (job == null || job.getRanks() == 1);
        return !alone && devices.stream().anyMatch(Device::isGpu);
    }

    /** {@inheritDoc} */
    @Override
    List<Communicator> connect(List<Device> devices, Job job, Duration timeout) {
        boolean first = job == null || job.getProcess() == 0;
        byte[] id = first ? NcclCommunicator.newUniqueId() : new byte[0];
        if (job != null) {
            id = job.exchange("the unique id of NCCL", id)[0];
        }
        int size = job == null ? devices.size() : job.getRanks();
        return new ArrayList<>(NcclCommunicator.create(id, size, firstRank(job), devices, timeout));
    }

    private static int firstRank(Job job) {
        return job == null ? 0 : job.getFirstRank();
    }
}
