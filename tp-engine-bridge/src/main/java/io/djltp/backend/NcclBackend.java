package io.djltp.backend;

import ai.djl.Device;

import io.djltp.collective.Communicator;
import io.djltp.job.Job;

import java.time.Duration;
import java.util.List;

/** What the choice of a backend needs to know of NCCL. */
final class NcclBackend {

    private NcclBackend() {}

    static String obstacle(List<Device> devices) {
        return "nccl is not there yet";
    }

    static List<Communicator> connect(List<Device> devices, Job job, Duration timeout) {
        throw new UnsupportedOperationException();
    }
}
